"""Reads a queue as a table: plans ranges of data files in the driver, and makes Arrow of them in tasks. docs/spark.md.

Invariants: a read takes no lock and changes nothing; each message is verified before it becomes a row; a task fails
rather than give rows of another file than the planned one.

May import: ``worker_memory`` of spark, persistence, and the ground.
"""
