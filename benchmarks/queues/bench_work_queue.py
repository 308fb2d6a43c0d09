"""What it costs to ask for more than put and take; and what it costs those who ask for nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.cases import work_queue_cases as cases
from benchmarks.cases.queue_cases import EVERY_COMMIT
from benchmarks.measuring import floors
from benchmarks.measuring.contestant import Against, Contestant
from benchmarks.measuring.load import BATCH, Load
from benchmarks.measuring.race import Race
from holdfast import PersistentQueue

RECORDS = 100_000
RECORDS_SINGLY = 30_000
RECORDS_SYNCED = 2_000
THREADS = 8
SIZE = 2_000

PLAIN_AT_LEAST = 0.95
"""What others ask for may cost a message that asks for nothing 5 %."""

Sized = Callable[[int, int], Load]


@pytest.mark.parametrize(
    ("title", "make", "beside", "at_least"),
    [
        ("receive + nack one by one", cases.nacks, cases.plain_receives, None),
        ("put with a priority", cases.prioritized_puts, cases.plain_puts, 0.6),
        ("get of a priority from behind as many without", cases.prioritized_gets, cases.plain_gets, 0.5),
        (f"receive + ack of {cases.KEYS} order keys", cases.keyed_receives, cases.plain_receives, 0.5),
        ("put with a dedup_id", cases.identified_puts, cases.plain_puts, 0.5),
        ("transaction of 1 put", cases.transactions_of_one, cases.plain_puts, 0.5),
    ],
    ids=["nack", "put-priority", "get-priority", "keys", "dedup", "transaction"],
)
def test_each_feature_beside_the_plain_verb(
    *,
    race: Race,
    sized: Sized,
    title: str,
    make: Callable[[Load], Contestant],
    beside: Callable[[Load], Contestant],
    at_least: float | None,
) -> None:
    """One by one, of a queue that only this thread uses."""
    load = sized(RECORDS_SINGLY, SIZE)
    race(f"{title}, never(), {SIZE:,} bytes", load, make(load), [Against(beside(load), at_least)])


def test_several_consumer_threads(race: Race, sized: Sized) -> None:
    """Threads share the interpreter, and the syncs of their acknowledgements."""
    load = sized(RECORDS_SYNCED, SIZE)
    one, synced = cases.receives_in_threads(load, EVERY_COMMIT, 1), floors.write_and_sync(Load(load.count, 64))
    case = cases.receives_in_threads(load, EVERY_COMMIT, THREADS)
    title = f"receive + ack, {EVERY_COMMIT}, {THREADS} threads, {SIZE:,} bytes"
    race(title, load, case, [Against(one), Against(synced)], rounds=7)


# -- The plain path --------------------------------------------------------------------------------------------------


def _put(queue: PersistentQueue, load: Load) -> None:
    put_one, payload = queue.put, load.payload
    for _ in range(load.count):
        put_one(payload)


def _put_many(queue: PersistentQueue, load: Load) -> None:
    batch = [load.payload] * BATCH
    for _ in range(load.batches):
        queue.put_many(batch)


def _get(queue: PersistentQueue, load: Load) -> None:
    get_one = queue.get
    for _ in range(load.count):
        get_one()


def _get_many(queue: PersistentQueue, load: Load) -> None:
    left = load.count
    while left:
        left -= len(queue.get_many(min(BATCH, left)))


def _receive(queue: PersistentQueue, load: Load) -> None:
    for _ in range(load.count):
        queue.receive().ack()


def _receive_many(queue: PersistentQueue, load: Load) -> None:
    left = load.count
    while left:
        batch = queue.receive_many(min(BATCH, left))
        batch.ack()
        left -= len(batch)


@pytest.mark.parametrize(
    ("title", "records", "use", "takes"),
    [
        ("put", RECORDS_SINGLY, _put, False),
        (f"put_many of {BATCH}", RECORDS, _put_many, False),
        ("get", RECORDS_SINGLY, _get, True),
        (f"get_many of {BATCH}", RECORDS, _get_many, True),
        ("receive + ack", RECORDS_SINGLY, _receive, True),
        (f"receive_many({BATCH}) + ack", RECORDS, _receive_many, True),
    ],
    ids=["put", "put_many", "get", "get_many", "receive", "receive_many"],
)
def test_plain_messages_beside_others_that_ask_for_more(
    *,
    race: Race,
    sized: Sized,
    title: str,
    records: int,
    use: Callable[[PersistentQueue, Load], None],
    takes: bool,
) -> None:
    """Thousands wait for their time and for their keys meanwhile, and messages have had priorities."""
    load = sized(records, SIZE)

    def contestant(*, are_there: bool) -> Contestant:
        fill = (lambda queue: _put_many(queue, load)) if takes else None
        return cases.beside_others(load, fill, lambda queue: use(queue, load), are_there=are_there)

    nobody = Against(contestant(are_there=False), PLAIN_AT_LEAST)
    race(
        f"{title}, never(), {SIZE:,} bytes, beside others' delays, keys, priorities",
        load,
        contestant(are_there=True),
        [nobody],
        rounds=7,
    )
