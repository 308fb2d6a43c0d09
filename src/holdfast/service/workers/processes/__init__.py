"""Handlers in worker processes: a pool, each process as its parent sees it, and what runs inside.

Invariants: a worker process has one message at a time; if it dies, its message counts as failed and it is replaced.

May import: ``job``, ``consumer`` and ``settlement`` beside it, and the imports of the service.
"""
