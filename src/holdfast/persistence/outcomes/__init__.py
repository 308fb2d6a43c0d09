"""Outcomes of transactions, at run time and after a crash: the outcome log, joint commits, and redo.

Invariants: an outcome never changes once it is durable; redo is idempotent; what a commit record orders is durable
before the record may be forgotten.

May import: groups and everything below it.
"""
