"""A transaction that puts one plain message, which has no branch, beside the same one in the general way."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Empty, Full, PersistentQueue, Transaction
from holdfast.queue.options.put_options import Put
from support.builders.clocks import FakeClock
from support.builders.transactions import FILE_BYTES, open_queue
from support.storages.simulated_storage import SimulatedStorage

LARGE = bytes(FILE_BYTES)
"""It spills."""

Work = Callable[[PersistentQueue, Transaction, FakeClock], object]


def receive_and_ack(queue: PersistentQueue, tx: Transaction, _: FakeClock) -> None:
    """Put what was received."""
    tx.ack(tx.receive(timeout=0))


def wait_too_long(queue: PersistentQueue, tx: Transaction, clock: FakeClock) -> None:
    """Let its time run out."""
    clock.advance(61)


STEPS: dict[str, Work] = {
    "put": lambda queue, tx, clock: tx.put(b"one"),
    "put nothing": lambda queue, tx, clock: tx.put(b""),
    "put with headers": lambda queue, tx, clock: tx.put(b"two", headers={"a": "b"}),
    "put a Put": lambda queue, tx, clock: tx.put(Put(b"three", priority=3)),
    "put a bytearray": lambda queue, tx, clock: tx.put(bytearray(b"four")),  # type: ignore[arg-type]
    "put a text": lambda queue, tx, clock: tx.put("five"),  # type: ignore[arg-type]
    "put 4 KiB": lambda queue, tx, clock: tx.put(bytes(4096)),
    "put more": lambda queue, tx, clock: tx.put(bytes(4097)),
    "put a large one": lambda queue, tx, clock: tx.put(LARGE),
    "put one too large": lambda queue, tx, clock: tx.put(bytes(2 * FILE_BYTES)),
    "put_many": lambda queue, tx, clock: tx.put_many([b"six", b"seven"]),
    "put_stream": lambda queue, tx, clock: tx.put_stream([b"eight", b"nine"]),
    "receive, ack": receive_and_ack,
    "commit": lambda queue, tx, clock: tx.commit(),
    "abort": lambda queue, tx, clock: tx.abort(),
    "call off": lambda queue, tx, clock: tx.call_off(),
    "prepare": lambda queue, tx, clock: tx.prepare("a"),
    "wait too long": wait_too_long,
    "take": lambda queue, tx, clock: queue.get(timeout=0),
    "close": lambda queue, tx, clock: queue.close(),
}

WORKS = [
    *(["put", each, "commit", "commit"] for each in STEPS),
    *([each, "put", "commit"] for each in STEPS if each.startswith("put")),
    ["commit", "put"],
    ["put", "put", "put", "commit"],
    ["put", "put one too large", "commit"],
    ["put", "abort", "put", "abort"],
    ["put", "prepare", "prepare", "abort"],
]


def outcome(work: list[str], *, is_general: bool) -> list[Any]:
    """Return what each step answers, the states, what is in the queue then, and how often the storage was changed."""
    storage, clock = SimulatedStorage(), FakeClock()
    queue = open_queue(storage, clock=clock, record_bytes_max=FILE_BYTES)
    queue.put_many([b"before", b"too"])
    tx = queue.begin()
    if is_general:
        assert tx._branch.is_idle
    before = storage.mutation_count
    answers: list[Any] = []
    for step in work:
        try:
            answers.append(STEPS[step](queue, tx, clock))
        except Exception as error:
            answers.append((type(error), str(error).replace(tx.id, "its id")))
        answers.append(tx.state)
    answers.append(storage.mutation_count - before)
    queue.close()
    with open_queue(storage, clock=clock) as again:
        answers.append([each.id for each in again.prepared()])
        while True:
            try:
                taken = again.receive(timeout=0)
            except Empty:
                return answers
            answers.append((taken.offset, taken.payload, dict(taken.headers)))


@pytest.mark.parametrize("work", WORKS, ids=", ".join)
def test_it_answers_and_leaves_what_the_general_way_does(work: list[str]) -> None:
    """Whatever comes before its put, or behind it."""
    assert outcome(work, is_general=False) == outcome(work, is_general=True)


@pytest.mark.parametrize("is_general", [False, True])
def test_a_full_queue_refuses_it_and_it_may_be_committed_once_there_is_space(*, is_general: bool) -> None:
    """As the general way does."""
    with open_queue(SimulatedStorage(), maxsize=1) as queue:
        queue.put(b"before")
        refused, tx = queue.begin(timeout=0.05), queue.begin()
        for each in (refused, tx):
            if is_general:
                assert each._branch.is_idle
            each.put(b"one")
        with pytest.raises(Full):
            refused.commit()
        assert queue.get(timeout=0) == b"before"
        assert tx.commit() == range(1, 2)
        assert queue.get(timeout=0) == b"one"


def test_it_has_no_branch_until_it_does_more() -> None:
    """Else it would not be what is tested here."""
    with open_queue(SimulatedStorage()) as queue, queue.transaction() as tx:
        tx.put(b"one")
        assert tx._branches == []
        tx.put(b"two")
        assert len(tx._branches) == 1
    assert tx._only is None
