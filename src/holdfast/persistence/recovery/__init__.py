"""Opens a queue after a crash: where the log ends, which commit records are pending, whether it may be opened at all.

Invariants: recovery runs under the write lock; it removes nothing that was acknowledged; a crash during recovery leaves
a queue that recovers to the same contents.

May import: outcomes and everything below it.
"""
