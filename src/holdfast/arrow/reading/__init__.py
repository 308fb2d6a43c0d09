"""Reads the messages of a queue as columns: plans ranges of data files, and makes Arrow of them. docs/spark.md.

Invariants: a read takes no lock and changes nothing; each message is verified before it becomes a row; a reader
fails rather than give rows of another file than the planned one.

May import: persistence, and the ground.
"""
