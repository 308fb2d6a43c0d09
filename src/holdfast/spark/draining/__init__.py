"""Runs the batches of a drain in Spark: one batch is one DataFrame. docs/spark-drain.md.

Invariants: every action on a DataFrame reads the messages of its plan; no batch runs before the JVM of an earlier
drain of the group has ended.

May import: reading, ``json_columns`` and ``worker_memory`` of spark, arrow, serializers, queue, persistence, and the
ground.
"""
