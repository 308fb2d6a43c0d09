"""Draining: batches that are reserved, run and committed."""
