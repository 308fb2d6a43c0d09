"""Writes a DataFrame, or the batches of a stream, into a queue. docs/spark-sink.md.

Invariants: tasks stage durable parts that no consumer sees; one joint commit makes all of them visible, or none; under
one ``txnid`` a write counts once.

May import: reading, ``remote`` and ``checkpoint`` of spark, arrow, serializers, queue, persistence, and the ground.
"""
