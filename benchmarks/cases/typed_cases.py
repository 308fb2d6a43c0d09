"""Objects through a queue of a service, and what they may cost at most, as contestants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.cases.queue_cases import NEVER
from benchmarks.measuring.contestant import Body, Contestant
from benchmarks.measuring.load import BATCH, DATA_FILE_BYTES
from holdfast import PersistentQueue, QueueService, TypedQueue


class Line(msgspec.Struct):
    """One line of an order."""

    sku: str
    quantity: int
    cents: int


class Order(msgspec.Struct):
    """What an application puts: some 500 bytes of JSON."""

    number: int
    customer: str
    street: str
    city: str
    email: str
    note: str
    lines: list[Line]


ORDER = Order(
    42,
    "Ada Lovelace",
    "12 St James's Square",
    "London",
    "ada@example.org",
    "leave it with the neighbour, please",
    [Line(f"sku-{number:06d}", number, number * 99) for number in range(7)],
)
ENCODE = msgspec.json.Encoder().encode
DECODE = msgspec.json.Decoder(Order).decode
SIZE = len(ENCODE(ORDER))


@contextmanager
def _typed(folder: Path, name: str) -> Iterator[TypedQueue[Order]]:
    with QueueService(folder, mode="exclusive", catalog=False) as service:
        yield service.queue(name, type=Order, flush=NEVER, data_file_bytes=DATA_FILE_BYTES)


@contextmanager
def _raw(folder: Path, name: str) -> Iterator[PersistentQueue]:
    with PersistentQueue(folder / name, mode="exclusive", flush=NEVER, data_file_bytes=DATA_FILE_BYTES) as queue:
        yield queue


def fill(folder: Path, count: int) -> None:
    """Put orders into two queues, to be taken as objects from one and as bytes from the other."""
    with _typed(folder, "typed") as typed, _raw(folder, "raw") as raw:
        for _ in range(count // BATCH):
            typed.put_many([ORDER] * BATCH)
            raw.put_many([ENCODE(ORDER)] * BATCH)


def put(count: int) -> Contestant:
    """Put objects one by one."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with _typed(folder, "typed") as queue:

            def body() -> None:
                put_one, order = queue.put, ORDER
                for _ in range(count):
                    put_one(order)

            yield body

    return Contestant("put(object)", stage)


def put_allowance(count: int) -> Contestant:
    """Put bytes one by one, and have msgspec encode 1.5 objects for each of them: what an object may cost at most."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with _raw(folder, "raw") as queue:

            def body() -> None:
                put_one, encode, order = queue.put, ENCODE, ORDER
                for _ in range(count // 2):
                    put_one(encode(order))
                    put_one(encode(order))
                    encode(order)

            yield body

    return Contestant("put(bytes) + 1.5 x msgspec", stage)


def receive(count: int) -> Contestant:
    """Take objects one by one, and acknowledge each."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with _typed(folder, "typed") as queue:

            def body() -> None:
                for _ in range(count):
                    message = queue.receive()
                    message.ack()

            yield body
            assert queue.stats().depth == 0

    return Contestant("receive of objects", stage)


def receive_allowance(count: int) -> Contestant:
    """Take bytes one by one, and have msgspec decode 1.5 objects for each of them."""

    @contextmanager
    def stage(folder: Path) -> Iterator[Body]:
        with _raw(folder, "raw") as queue:

            def body() -> None:
                decode = DECODE
                for _ in range(count // 2):
                    for is_second in (False, True):
                        message = queue.receive()
                        decode(message.payload)
                        message.ack()
                        if is_second:
                            decode(message.payload)

            yield body
            assert queue.stats().depth == 0

    return Contestant("receive of bytes + 1.5 x msgspec", stage)
