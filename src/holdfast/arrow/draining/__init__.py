"""Drains a queue: batches that are reserved, run by an engine, and committed. docs/spark-drain.md.

Invariants: a batch that was not committed comes again with the same messages under the same id; a message is
acknowledged only after its batch was committed; engines read only the files that the plan names.

May import: reading, queue, persistence, and the ground.
"""
