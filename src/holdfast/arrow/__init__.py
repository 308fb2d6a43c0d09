"""Makes Arrow of the data files of a queue, and drains a queue in batches, without Spark.

Needs the extra ``holdfast[arrow]``. Rooms: ``decoding/`` makes columns of payloads; ``reading/`` makes record batches
of planned ranges; ``draining/`` reserves, runs and commits batches, for every engine; ``writing/`` writes a batch as
files. Spark builds upon the first three.

Invariants: pyarrow is imported here and in ``spark``, and nowhere else in ``holdfast``; what reads files opens no
queue and takes no lock.

May import: serializers, queue, persistence, and the ground.
"""

from holdfast.arrow.decoding.decoding import Decoding
from holdfast.arrow.draining.drainer import ArrowDrainer, drain
from holdfast.arrow.draining.reports import DrainProgress, DrainReport
from holdfast.arrow.scanning import scan
from holdfast.arrow.writing.directory_writer import DirectoryWriter

__all__ = [
    "ArrowDrainer",
    "Decoding",
    "DirectoryWriter",
    "DrainProgress",
    "DrainReport",
    "drain",
    "scan",
]
