"""The range server: a process on the host that plans, which hands a queue's bytes to tasks that do not see it.

For tasks that cannot write there it stages their rows. ``starting`` of ``remote/`` starts it as
``python -m holdfast.spark.serving``. docs/spark-cluster.md, docs/adr/0057 and 0060.

Invariants: a request without a plan's token is refused. Requests name data files by number, never by path. The server
takes no lock but those of the files that it is writing, and writes only what tasks that see the queue write. A stream
of messages that does not say that it is whole is discarded.

May import: ``remote`` and ``writing`` of spark, arrow, persistence, queue, and the ground.
"""
