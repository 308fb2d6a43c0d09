"""Open transactions: over one queue, and how several queues commit together.

Invariants: a transaction that is not committed leaves nothing behind; its commit record is the one moment that decides.

May import: prepared, inspect and everything below them.
"""
