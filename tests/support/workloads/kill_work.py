"""What a process does to a queue while it waits to be killed: it notes each call before and after, in a journal.

A journal is an append-only file, one line for each event. A line is written with one system call and so survives
SIGKILL whole. ``kill_oracle.py`` judges what the journals say.

===========  =====================================================================================================
producer     ``p key count`` before a batch is put, ``P key first_offset`` after the call returned
consumer     ``g n`` before ``get``/``get_many``, ``G key:index ...`` after; ``E`` where it found nothing;
             ``D offset=key:index ...`` after ``receive``; ``a offset ...`` before ``ack``, ``A`` after;
             ``N offset ...`` after ``nack``; ``f offset ...`` before ``release``, ``F`` after
both         ``R round`` where processes begin anew; ``X text`` what must never happen
===========  =====================================================================================================
"""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from holdfast import Delivery, DeliveryBatch, Empty, FlushPolicy, PersistentQueue
from holdfast.queue.options.queue_options import Mode

_HEAD = struct.Struct("<QIII")
_PAYLOAD_BYTES_MAX = 1500
BATCH_MAX = 40
KEYS_PER_ROUND = 1_000_000


class Journal:
    """An append-only file of lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, kind: str, *fields: object) -> None:
        """Append one line."""
        os.write(self._fd, (" ".join([kind, *map(str, fields)]) + "\n").encode())

    def size(self) -> int:
        """Return how many bytes it has."""
        return os.fstat(self._fd).st_size

    def lines(self) -> list[list[str]]:
        """Return all lines, split into fields."""
        return [line.split(" ") for line in self.path.read_text().splitlines()]

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def payload_of(key: int, index: int) -> bytes:
    """Return message ``index`` of batch ``key``: its bytes follow from the two numbers alone."""
    choice = random.Random(key * BATCH_MAX + index)
    return _HEAD.pack(key, index, BATCH_MAX, 0) + choice.randbytes(choice.randrange(_PAYLOAD_BYTES_MAX))


def name_of(payload: bytes) -> str:
    """Return ``key:index`` of a message; raises AssertionError where any byte of it is wrong."""
    key, index, _, _ = _HEAD.unpack_from(payload)
    assert payload == payload_of(key, index), f"message {key}:{index} has come back with other bytes"
    return f"{key}:{index}"


def open_queue(path: Path, mode: Mode, policy: FlushPolicy) -> PersistentQueue:
    """Open the queue with files so small that rolling and retiring happen all the time."""
    return PersistentQueue(
        path, mode=mode, flush=policy, data_file_bytes=16 * 2**10, max_deliveries=None, lease_seconds=3600
    )


def produce(queue: PersistentQueue, journal: Journal, choice: random.Random, round_number: int) -> None:
    """Put single messages and batches until killed."""
    for number in range(KEYS_PER_ROUND):
        key = round_number * KEYS_PER_ROUND + number
        count = 1 if choice.random() < 0.6 else choice.randint(1, BATCH_MAX)
        payloads = [payload_of(key, index) for index in range(count)]
        journal.note("p", key, count)
        first = queue.put(payloads[0]) if count == 1 else queue.put_many(payloads).start
        journal.note("P", key, first)


def consume(queue: PersistentQueue, journal: Journal, choice: random.Random) -> None:
    """Get, receive, acknowledge and give back until killed."""
    held: list[Delivery] = []
    while True:
        try:
            if choice.random() < 0.5:
                _get(queue, journal, choice)
            else:
                _receive(queue, journal, choice, held)
        except Empty:
            journal.note("E")


def _get(queue: PersistentQueue, journal: Journal, choice: random.Random) -> None:
    count = choice.choice([1, 1, 5, 30])
    journal.note("g", count)
    payloads = [queue.get(timeout=0.005)] if count == 1 else queue.get_many(count, timeout=0.005)
    journal.note("G", *map(name_of, payloads))


def _receive(queue: PersistentQueue, journal: Journal, choice: random.Random, held: list[Delivery]) -> None:
    """Take a batch; acknowledge a part of it, give a part back and hold on to the rest for a while."""
    batch: DeliveryBatch = queue.receive_many(choice.choice([1, 3, 20]), timeout=0.005)
    journal.note("D", *(f"{delivery.offset}={name_of(delivery.payload)}" for delivery in batch))
    taken = [*held, *batch]
    choice.shuffle(taken)
    keep, back = choice.choice([0, 0, 2]), choice.choice([0, 0, 0, 2])
    held[:] = taken[:keep]
    returned, done = taken[keep : keep + back], taken[keep + back :]
    if returned:
        if choice.random() < 0.5:
            batch.nack(returned, delay=0)
            journal.note("N", *_offsets(returned))
        else:
            journal.note("f", *_offsets(returned))
            batch.release(returned)
            journal.note("F")
    if done:
        journal.note("a", *_offsets(done))
        batch.ack(done)
        journal.note("A")


def _offsets(deliveries: Iterable[Delivery]) -> list[int]:
    return [delivery.offset for delivery in deliveries]


def drain(queue: PersistentQueue, journal: Journal) -> int:
    """Receive and acknowledge everything that is left; return the offset behind the last message of the log."""
    while True:
        try:
            batch = queue.receive_many(1000, timeout=0)
        except Empty:
            return queue.stats().next_offset
        journal.note("D", *(f"{delivery.offset}={name_of(delivery.payload)}" for delivery in batch))
        journal.note("a", *_offsets(batch))
        batch.ack()
        journal.note("A")


Role = Literal["both", "producer", "consumer"]
"""What a process does: both, with the queue to itself; or one, of a queue that it shares."""


def work(
    path: Path, role: Role, policy: FlushPolicy, journals: Sequence[Journal], seed: int, round_number: int
) -> None:
    """Open the queue and work on it until killed; ``journals`` are the producer's and the consumer's."""
    puts, takes = journals
    try:
        queue = open_queue(path, "exclusive" if role == "both" else "shared", policy)
        if role == "producer":
            produce(queue, puts, random.Random(seed), round_number)
        elif role == "consumer":
            consume(queue, takes, random.Random(seed))
        else:
            arguments = (queue, puts, random.Random(seed), round_number)
            threading.Thread(target=_reporting, args=(puts, produce, arguments), daemon=True).start()
            consume(queue, takes, random.Random(seed + 1))
    except BaseException as error:
        (takes if role == "consumer" else puts).note("X", repr(error).replace("\n", " "))
        raise


def _reporting(journal: Journal, function, arguments) -> None:  # type: ignore[no-untyped-def]
    try:
        function(*arguments)
    except BaseException as error:
        journal.note("X", repr(error).replace("\n", " "))
        raise
