"""Spark reads queues as tables and streams, drains them in batches, and writes into them.

Needs the extra ``holdfast[spark]`` and Java 17 or newer. Rooms: ``reading/``, and above it ``draining/``,
``streaming/`` and ``writing/``, which do not know each other; ``data_source`` is the format that Spark calls.

Invariants: pyspark and pyarrow are imported here and nowhere else in ``holdfast``; executors read files and open no
queue, except to stage writes.

May import: serializers, queue, persistence, and the ground.
"""

from holdfast.arrow.draining.reports import DrainProgress, DrainReport
from holdfast.spark.draining.drainer import SparkDrainer, drain
from holdfast.spark.json_columns import with_json
from holdfast.spark.session import SETTINGS, local_session, register
from holdfast.spark.streaming.behind import behind
from holdfast.spark.streaming.finalizing import finalize

__all__ = [
    "SETTINGS",
    "DrainProgress",
    "DrainReport",
    "SparkDrainer",
    "behind",
    "drain",
    "finalize",
    "local_session",
    "register",
    "with_json",
]
