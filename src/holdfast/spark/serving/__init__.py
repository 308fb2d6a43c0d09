"""The range server: a process on the host that plans, which hands a queue's bytes to tasks that do not see it.

``starting`` of ``remote/`` starts it as ``python -m holdfast.spark.serving``. docs/spark.md, docs/adr/0057.

Invariants: a request without a plan's token is refused. Requests name data files by number, never by path. The server
takes no lock, and writes only what tasks that see the queue write.

May import: ``remote`` of spark, arrow, persistence, queue, and the ground.
"""
