"""Makes Arrow of the data files of a queue, and drains a queue in batches, without Spark.

Needs the extra ``holdfast[arrow]``. Rooms: ``reading/`` makes record batches of planned ranges; ``draining/``
reserves, runs and commits batches, for every engine. Spark builds upon both.

Invariants: pyarrow is imported here and in ``spark``, and nowhere else in ``holdfast``; what reads files opens no
queue and takes no lock.

May import: serializers, queue, persistence, and the ground.
"""

from holdfast.arrow.scanning import scan

__all__ = [
    "scan",
]
