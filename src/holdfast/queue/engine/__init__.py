"""What a handle talks to: it opens, locks and recovers a queue, and holds its producer and its consumer.

Invariants: a side is locked before anything is recovered or written; whoever reads a log reads a recovered log.

May import: consumer and everything below it.
"""
