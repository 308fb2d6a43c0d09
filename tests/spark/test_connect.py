"""Spark Connect: a client without a JVM reads and drains. Runs in `make test-connect`, which installs what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue
from holdfast.spark import behind, drain
from holdfast.spark.draining.directories import DirectoryWriter
from support.spark.drains import fill

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(600)]  # a server starts


@pytest.fixture(scope="module")
def connected(small_sparks: None) -> Iterator[Any]:
    """Return a session of a server that runs here."""
    del small_sparks
    if find_spec("grpc") is None or find_spec("pandas") is None:
        if os.environ.get("HOLDFAST_TEST_REQUIRE_CONNECT") == "1":
            pytest.fail("HOLDFAST_TEST_REQUIRE_CONNECT=1, and pyspark[connect] is not installed", pytrace=False)
        pytest.skip("pyspark[connect] is not installed: make test-connect")
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)  # the server finds the format there
        session = SparkSession.builder.remote("local[2]").getOrCreate()
        yield session
        session.stop()


def test_a_client_reads_and_drains_batches_of_any_size(connected: Any, tmp_path: Path) -> None:
    """It has no ``sparkContext``; the server knows the format by itself; rows are counted while they are written."""
    from pyspark.sql.types import StructType

    path, out = tmp_path / "q", tmp_path / "out"
    fill(path, range(2500))
    assert connected.read.format("holdfast").load(str(path)).count() == 2500
    writer = DirectoryWriter(str(out), "parquet", StructType.fromDDL("id BIGINT"))
    report = drain(path, connected, writer, max_messages=2000, group="night")
    assert (len(report.batch_ids), report.message_count, report.depth, writer.unfit_count) == (2, 2500, 0, 0)
    rows = connected.read.parquet(str(out)).select("id").orderBy("id").collect()
    assert [row.id for row in rows] == list(range(2500))


def test_a_client_writes_into_a_queue_once(connected: Any, tmp_path: Path) -> None:
    """Its tasks stage the rows, and the server commits them; a second write of that name adds nothing."""
    path = tmp_path / "q"
    fill(path, range(3))
    rows = connected.range(1000).selectExpr("cast(id as string) AS payload", "'eu' AS order_key")
    for _ in range(2):
        rows.write.format("holdfast").mode("append").option("txnid", "load").save(str(path))
    with PersistentQueue(path) as queue:
        assert queue.stats().depth == 1003
        assert {message.order_key for message in queue.browse(limit=2000)} == {None, "eu"}


def test_a_client_streams_from_a_queue_into_files_and_into_a_queue(connected: Any, tmp_path: Path) -> None:
    """The checkpoint is the server's; its queries report how far they are behind, and restart where they were."""
    path, copies, files = tmp_path / "q", tmp_path / "copies", tmp_path / "files"
    fill(path, range(2500))
    PersistentQueue(copies).close()
    for _ in range(2):
        for format_name, out in (("parquet", files), ("holdfast", copies)):
            rows = connected.readStream.format("holdfast").option("maxMessagesPerTrigger", 2000).load(str(path))
            stream = rows.select("payload").writeStream.format(format_name)
            stream = stream.option("checkpointLocation", str(tmp_path / f"checkpoint-{format_name}"))
            query = stream.trigger(availableNow=True).start(str(out))
            assert query.awaitTermination(300)
            assert behind(query.lastProgress) in (0, None)
    assert connected.read.parquet(str(files)).distinct().count() == 2500
    with PersistentQueue(copies) as queue:
        assert queue.stats().depth == 2500
