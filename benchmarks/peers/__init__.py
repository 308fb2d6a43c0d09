"""Holdfast beside other durable queues for Python: ``make bench-peers``. Each is used as its own documentation says."""
