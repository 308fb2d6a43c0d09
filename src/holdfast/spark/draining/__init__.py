"""Drains a queue into Spark: batches that are reserved, run and committed. docs/spark-drain.md.

Invariants: a batch that was not committed comes again with the same messages under the same id; a message is
acknowledged only after its batch was committed; tasks read only the files that the plan names.

May import: reading, ``json_columns`` and ``worker_memory`` of spark, serializers, queue, persistence, and the ground.
"""
