"""Many queues and typed payloads by a real session: one table, one stream, one write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import PersistentQueue, QueueService
from holdfast.serializers.codec import Codec
from holdfast.serializers.registry import Registry
from holdfast.spark import drain

pytestmark = pytest.mark.spark

NAMES = [f"orders-{number}" for number in range(3)]


class Order(msgspec.Struct):
    """What the queues hold."""

    id: int
    amount: float = 0.0


orders: Codec[Order] = Codec(Registry(), type=Order, version=2)


@orders.upcast(1, 2)
def number_is_id(order: dict[str, Any]) -> dict[str, Any]:
    """The field had another name."""
    return {"id": order["number"], **order}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A service with three queues of orders, and one broken message."""
    with QueueService(tmp_path / "data") as service:
        for place, name in enumerate(NAMES):
            service.queue(name, type=Order).put_many([Order(10 * place + each, each / 2) for each in range(3)])
        service.queue("other", type=str).put("nothing")
        service.queue(NAMES[0], type=Order).raw.put(b"broken")
    return tmp_path / "data"


def read(spark: Any, data: Path, **options: Any) -> Any:
    """Return the table of the orders."""
    return spark.read.format("holdfast").options(queues="orders-*", **options).load(str(data))


def test_many_queues_are_one_table_of_bodies(spark: Any, data: Path) -> None:
    """The fields are said in words of SQL; the broken message is in its column."""
    rows = read(spark, data, decode="id BIGINT, amount DOUBLE")
    assert rows.columns[-3:] == ["queue", "body", "undecodable"]
    good = rows.where("undecodable IS NULL").selectExpr("queue", "body.id AS id", "body.amount AS amount").collect()
    assert {(row.queue, row.id, row.amount) for row in good} == {
        (name, 10 * place + each, each / 2) for place, name in enumerate(NAMES) for each in range(3)
    }
    (bad,) = rows.where("undecodable IS NOT NULL").collect()
    assert (bad.queue, bytes(bad.undecodable.payload), bad.body) == (NAMES[0], b"broken", None)
    assert rows.groupBy("queue").count().count() == 3


def test_a_schema_chooses_columns_and_fields(spark: Any, data: Path) -> None:
    """Without the column of what does not fit, the first such message is an error with its place."""
    reader = spark.read.format("holdfast").options(queues="orders-1", decode="true").schema("body STRUCT<id: INT>")
    assert [row.body.id for row in reader.load(str(data)).collect()] == [10, 11, 12]
    reader = reader.option("queues", "orders-0")
    with pytest.raises(Exception, match="message 3 of orders-0 cannot be decoded"):
        reader.load(str(data)).collect()


def test_tasks_import_the_codec_of_the_application(spark: Any, data: Path) -> None:
    """With its upcasts; a module that is not there is an error that says so."""
    with PersistentQueue(data / NAMES[1]) as queue:
        queue.put(b'{"number": 99}', headers={"ce-type": "Order", "ce-schemaversion": "1"})
    spark.sparkContext.addPyFile(_module(data.parent))
    rows = read(spark, data, decode="id BIGINT", codec="shop_orders:orders", startingOffset=3)
    assert [row.body.id for row in rows.where("body IS NOT NULL").collect()] == [99]
    with pytest.raises(Exception, match="codec 'no_such_shop:orders' cannot be imported on"):
        read(spark, data, decode="id BIGINT", codec="no_such_shop:orders").collect()


def _module(directory: Path) -> str:
    path = directory / "shop_orders.py"
    path.write_text(
        "import msgspec\n"
        "from holdfast.serializers.codec import Codec\n"
        "from holdfast.serializers.registry import Registry\n"
        "class Order(msgspec.Struct):\n"
        "    id: int\n"
        "orders = Codec(Registry(), type=Order, version=2)\n"
        "@orders.upcast(1, 2)\n"
        "def number_is_id(order):\n"
        "    return {'id': order['number'], **order}\n"
    )
    return str(path)


def test_a_drain_gives_bodies(spark: Any, data: Path) -> None:
    """In batches of any size: read by the driver, and by tasks."""
    found: list[tuple[int | None, str | None]] = []

    def note(frame: Any, _: str) -> None:
        found.extend((row.body and row.body.id, row.undecodable and row.undecodable.reason) for row in frame.collect())

    drain(data / NAMES[0], spark, note, columns=["body", "undecodable"], decode="id BIGINT")
    assert [number for number, _ in found] == [0, 1, 2, None]
    assert "malformed" in (found[3][1] or "")
    with QueueService(data) as service:
        service.queue(NAMES[0], type=Order).put_many([Order(each) for each in range(1500)])
    found.clear()
    drain(data / NAMES[0], spark, note, columns=["body", "undecodable"], decode="id BIGINT")
    assert sorted(number or 0 for number, _ in found) == list(range(1500))


def test_a_stream_copies_many_queues_into_many_others_once(spark: Any, data: Path, tmp_path: Path) -> None:
    """Rows of a queue go to the queue of that name; one that is made later joins, and its copy is made."""
    (tmp_path / "copies").mkdir()

    def run() -> None:
        rows = spark.readStream.format("holdfast").options(queues="orders-*", group="copy").load(str(data))
        query = (
            rows.select("queue", "payload", "headers")
            .writeStream.format("holdfast")
            .options(checkpointLocation=str(tmp_path / "checkpoint"), create="true")
            .trigger(availableNow=True)
            .start(str(tmp_path / "copies"))
        )
        query.awaitTermination()

    run()
    with QueueService(data) as service:
        service.queue("orders-late", type=Order).put(Order(7))
        service.queue(NAMES[2], type=Order).put(Order(29))
    run()
    run()
    counts = {}
    for name in (*NAMES, "orders-late"):
        with PersistentQueue(tmp_path / "copies" / name, mode="read_only") as queue:
            counts[name] = [message.payload for message in queue.peek(100)]
    assert [len(counts[name]) for name in counts] == [4, 3, 4, 1]
    assert [orders.decode(payload, {}).id for payload in counts[NAMES[2]]] == [20, 21, 22, 29]


def test_a_write_that_fails_in_one_task_is_in_no_queue(spark: Any, data: Path) -> None:
    """A value that names no queue is in the error, and the rows of the other task are not there."""
    rows = spark.sql(
        "SELECT concat('orders-', CASE WHEN id = 999 THEN '/x' ELSE string(id % 3) END) AS queue, 'new' AS payload "
        "FROM range(0, 1000, 1, 2)"
    )
    before = read(spark, data).count()
    with pytest.raises(Exception, match="'orders-/x' cannot name a queue"):
        rows.write.format("holdfast").mode("append").save(str(data))
    assert read(spark, data).count() == before
    rows.where("queue NOT LIKE '%/%'").write.format("holdfast").mode("append").option("txnid", "t").save(str(data))
    assert read(spark, data).where("payload = 'new'").count() == 999
