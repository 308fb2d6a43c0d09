"""Benchmarks of Spark that reads a queue."""
