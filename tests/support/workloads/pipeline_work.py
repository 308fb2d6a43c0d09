"""What a process does in transactions while it waits to be killed, so that every moment can be judged afterwards.

*Moving*: numbered messages go from one queue to another, in order. Whatever happens, "out" holds 0, 1, 2 … up to some
number, and "in" the rest.

*Relaying*: a queue holds one message for each of some keys, which says how often it was passed on. Passing on takes it
and puts the next one in one transaction. Whatever happens, there is one message for each key, and the hops of all are
as many as there were commits.

A journal has a line ``b`` before each commit and a line ``C`` once it has returned; ``X`` is what must never happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from holdfast import Delivery, Empty, FlushPolicy, PersistentQueue, transaction
from holdfast.queue.options.queue_options import Mode
from support.builders.settings import set_first
from support.workloads.kill_work import Journal

KEY_COUNT = 12
AHEAD_COUNT = 40  # messages that wait to be moved when a round begins
LARGE_EVERY = 17
LARGE_BYTES = 6000  # more than a quarter of a data file, so that it is adopted
POLICIES = (FlushPolicy.every_commit(), FlushPolicy.every(commits=10), FlushPolicy.never())

Work = Callable[[Path, FlushPolicy, Journal, random.Random], None]


def open_queue(path: Path, policy: FlushPolicy, mode: Mode = "exclusive") -> PersistentQueue:
    """Open a queue with files so small that rolling and retiring happen all the time."""
    set_first(path, flush=policy)
    return PersistentQueue(path, mode=mode, flush=policy, data_file_bytes=16 * 2**10, max_deliveries=None)


# -- Moving ----------------------------------------------------------------------------------------------------------


def numbered(number: int) -> bytes:
    """Return the payload of a number; some are large."""
    filler = LARGE_BYTES if number % LARGE_EVERY == 0 else number % 50
    return b"%d:" % number + bytes(filler)


def number_of(payload: bytes) -> int:
    """Return the number of a payload; raises AssertionError where any byte of it is wrong."""
    number = int(payload.partition(b":")[0])
    assert payload == numbered(number), f"message {number} has come back with other bytes"
    return number


def feed(queue: PersistentQueue) -> None:
    """Put the next numbers, one batch: the number is the offset."""
    first = queue.stats().next_offset
    if queue.stats().depth < AHEAD_COUNT:
        queue.put_many([numbered(number) for number in range(first, first + AHEAD_COUNT)])


def move(path: Path, policy: FlushPolicy, journal: Journal, choice: random.Random) -> None:
    """Move messages in transactions over two queues, feeding the first one, until killed."""
    queues = [open_queue(path / name, policy) for name in choice.sample(("in", "out"), 2)]
    source, target = sorted(queues, key=lambda queue: queue.path.name)
    while True:
        feed(source)
        _move_some(source, target, journal, choice)


def move_between_shared_queues(path: Path, policy: FlushPolicy, journal: Journal, choice: random.Random) -> None:
    """Move messages through the owners of both, which are in this process; somebody else has fed the first."""
    target = open_queue(path / "out", policy, "shared")
    source = open_queue(path / "in", policy, "shared")
    while True:
        try:
            _move_some(source, target, journal, choice)
        except Empty:
            return


def _move_some(source: PersistentQueue, target: PersistentQueue, journal: Journal, choice: random.Random) -> None:
    with transaction(source, target) as tx:
        for number in range(choice.randint(1, 4)):
            delivery = tx.receive(source, timeout=0 if number == 0 else None)
            tx.ack(source, delivery)
            if choice.random() < 0.2:
                tx.put_stream(target, [delivery.payload])
            else:
                tx.put(target, delivery.payload)
            if source.empty():
                break
        journal.note("b")
    journal.note("C")


# -- Relaying --------------------------------------------------------------------------------------------------------


def relayed(key: int, hop: int) -> bytes:
    """Return the payload of a key that was passed on ``hop`` times; some are large."""
    return b"%d:%d:" % (key, hop) + bytes(LARGE_BYTES if (key + hop) % LARGE_EVERY == 0 else hop % 50)


def hop_of(payload: bytes) -> tuple[int, int]:
    """Return key and hop of a payload; raises AssertionError where any byte of it is wrong."""
    key, hop = map(int, payload.split(b":")[:2])
    assert payload == relayed(key, hop), f"message {key}:{hop} has come back with other bytes"
    return key, hop


def relay(path: Path, policy: FlushPolicy, journal: Journal, choice: random.Random) -> None:
    """Pass messages on until killed; now and then a transaction is aborted."""
    queue = open_queue(path / "relay", policy)
    while True:
        tx = queue.begin()
        for _ in range(choice.randint(1, 3)):
            _pass_on(tx.receive(timeout=0), tx.put, tx.ack)
        if choice.random() < 0.1:
            tx.abort()
            continue
        journal.note("b")
        tx.commit()
        journal.note("C", len(tx.commit()))


def relay_prepared(path: Path, policy: FlushPolicy, journal: Journal, choice: random.Random) -> None:
    """Pass messages on in prepared transactions, several at a time; the id of each says how it has to be decided."""
    queue = open_queue(path / "relay", policy)
    decide_prepared(queue, journal)
    number = 0
    while True:
        waiting = []
        for _ in range(choice.randint(1, 3)):
            tx = queue.begin()
            for _ in range(choice.randint(1, 2)):
                _pass_on(tx.receive(timeout=0), tx.put, tx.ack)
            number += 1
            waiting.append(tx.prepare(f"{choice.choice(('commit', 'commit', 'abort'))}-{journal.size()}-{number}"))
            journal.note("p", waiting[-1])
        for each in choice.sample(waiting, len(waiting)):
            decide(queue, each, journal)


def decide_prepared(queue: PersistentQueue, journal: Journal) -> None:
    """Decide what an earlier process has prepared, as the ids say; each twice."""
    for each in queue.prepared():
        assert not each.damage, each
        assert each.put_count == each.ack_count, f"half of {each}"
        for _ in range(2):
            decide(queue, each.id, journal)


def decide(queue: PersistentQueue, transaction_id: str, journal: Journal) -> None:
    """Decide one transaction as its id says."""
    journal.note("b", transaction_id)
    if transaction_id.startswith("commit"):
        offsets = queue.commit_prepared(transaction_id)
        journal.note("C", transaction_id, len(offsets))
    else:
        queue.abort_prepared(transaction_id)
        journal.note("A", transaction_id)


def _pass_on(delivery: Delivery, put: Callable[[bytes], None], ack: Callable[[Delivery], None]) -> None:
    key, hop = hop_of(delivery.payload)
    put(relayed(key, hop + 1))
    ack(delivery)


def reporting(work: Work, path: Path, policy: FlushPolicy, journal: Journal, seed: int) -> None:
    """Do a work and note what stops it, unless that is a signal."""
    try:
        work(path, policy, journal, random.Random(seed))
    except BaseException as error:
        journal.note("X", repr(error).replace("\n", " "))
        raise
