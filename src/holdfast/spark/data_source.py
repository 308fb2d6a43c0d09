"""The format ``holdfast``: the classes that Spark calls to read a queue, or to write into one.

``spark.read`` is a snapshot (``reading/``), ``spark.readStream`` follows the log (``streaming/``), ``df.write`` and
``df.writeStream`` put (``writing/``). docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from holdfast.errors import ConfigError
from holdfast.spark.reading.decode_options import decode_option
from holdfast.spark.reading.options import ReadOptions
from holdfast.spark.reading.queue_reader import QueueReader
from holdfast.spark.reading.schema import full_schema, row_maker
from holdfast.spark.streaming.options import StreamOptions
from holdfast.spark.worker_memory import keep_modules
from holdfast.spark.writing.many_sink import sink_for
from holdfast.spark.writing.options import WriteOptions
from holdfast.spark.writing.sink import QueueWriter

if TYPE_CHECKING:
    from holdfast.spark.streaming.source import BatchReader
    from holdfast.spark.writing.stream_sink import QueueStreamWriter


class HoldfastDataSource(DataSource):
    """Queues as tables; ``register(spark)`` makes a session know it."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        keep_modules()

    def schema(self) -> StructType | str:
        given = {name.lower(): value for name, value in self.options.items()}
        return full_schema(has_queue="queues" in given, decoding=decode_option(given))

    def reader(self, schema: StructType) -> QueueReader:
        keep_modules()
        options = ReadOptions.parse(self.options)
        rows = row_maker(schema, has_queue=options.queues is not None, decoding=options.decoding)
        return QueueReader(options, rows)

    def streamReader(self, schema: StructType) -> BatchReader:  # noqa: N802  # Spark's own name
        try:
            from holdfast.spark.streaming.many_source import ManyQueuesStreamReader
            from holdfast.spark.streaming.source import QueueStreamReader
        except ImportError as error:
            raise ConfigError("a stream of a queue needs pyspark 4.2 or newer, which knows rate limits") from error
        options = StreamOptions.parse(self.options)
        rows = row_maker(schema, has_queue=options.queues is not None, decoding=options.decoding)
        return (QueueStreamReader if options.queues is None else ManyQueuesStreamReader)(options, rows)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        options = WriteOptions.parse(self.options)
        return QueueWriter(sink_for(options, schema, overwrite=overwrite), options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: N802  # Spark's own name
        try:
            from holdfast.spark.writing.stream_sink import QueueStreamWriter
        except ImportError as error:
            raise ConfigError("a stream into a queue needs pyspark 4.1 or newer, which hands over Arrow") from error
        options = WriteOptions.parse(self.options, is_stream=True)
        return QueueStreamWriter(sink_for(options, schema, overwrite=overwrite), options.checkpoint)
