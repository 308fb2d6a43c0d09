"""Appends messages: the write side, capacity, deduplication, and batches that wait outside the log.

Invariants: one thread appends at a time, under the append lock; a put returns when the flush policy allows it; nothing
that follows an append makes it fail.

May import: options, threads, persistence, and the ground.
"""
