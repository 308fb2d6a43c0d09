"""Opens a queue after a crash: finds the end of the log and the pending commit records, and refuses unfit queues.

Invariants: recovery runs under the write lock; it removes nothing that was acknowledged; a crash during recovery leaves
a queue that recovers to the same contents.

May import: outcomes and everything below it.
"""
