"""How tasks get at a queue that their machine does not see: from a range server on the host that plans.

``starting`` starts that server for a plan, ``client`` asks it, ``files`` reads data files through it, ``parts`` stages
the rows of a write. The server itself is in ``serving/``. docs/spark-cluster.md.

Invariants: bytes that come from the server are verified by the task, as those of a local file; nothing is asked for by
a path; without a place in the plan nothing is asked for at all.

May import: persistence, queue, and the ground.
"""
