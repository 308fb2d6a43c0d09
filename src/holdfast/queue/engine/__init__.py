"""The engine behind a handle: it opens, locks and recovers a queue, and holds its producer and its consumer.

Invariants: a side is locked before anything is recovered or written; only a recovered log is read.

May import: consumer and everything below it.
"""
