"""Benchmarks of ``QueueService``: typed messages, workers, an idle service."""
