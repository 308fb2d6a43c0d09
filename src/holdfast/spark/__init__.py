"""Spark reads queues as tables and drains them in batches. Needs the extra ``holdfast[spark]`` and Java 17 or newer."""

from holdfast.spark.draining.drainer import DrainProgress, DrainReport, SparkDrainer, drain
from holdfast.spark.json_columns import with_json
from holdfast.spark.session import SETTINGS, local_session, register
from holdfast.spark.streaming.finalizing import finalize

__all__ = [
    "SETTINGS",
    "DrainProgress",
    "DrainReport",
    "SparkDrainer",
    "drain",
    "finalize",
    "local_session",
    "register",
    "with_json",
]
