"""Reads the log of a queue as a stream of Spark. docs/spark-stream.md.

Invariants: Spark's checkpoint alone is the stream's place; the consumer group of the stream keeps every message that
Spark may still ask for; a batch that is asked for again has the same rows.

May import: reading and ``checkpoint`` of spark, queue, persistence, and the ground.
"""
