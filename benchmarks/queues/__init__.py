"""Benchmarks of ``PersistentQueue``."""
