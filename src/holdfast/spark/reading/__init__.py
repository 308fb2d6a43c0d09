"""Reads a queue as a table of Spark: its schema, its options, and the reader that Spark calls. docs/spark.md.

Invariants: the driver plans a read once; its tasks get all that they need with their partition, and hold no state.

May import: ``worker_memory`` of spark, reading of arrow, persistence, and the ground.
"""
