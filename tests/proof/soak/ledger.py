"""Who put which message, and which group has finished it: one byte for each, in a file that processes share.

A file, and not a set, so that keeping the books takes no memory: what grows is the queue's.

A message is known by its lane, which is who puts it, and its number in that lane; both stand in its payload, with a
checksum over all of it.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import zlib
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

_HEAD = struct.Struct("<HxxII")
_FILLER = random.Random(20240521).randbytes(2**20)
_SIZE_MIN, _SIZE_SPREAD = 200, 1600
PAYLOAD_BYTES_MEAN = _HEAD.size + _SIZE_MIN + _SIZE_SPREAD // 2

_NEVER, _BEGUN, _ACKNOWLEDGED, _TAKEN_BACK = range(4)
_EXPECTED = bytes([0, 0xFF, 1, 0]) + bytes(252)
"""What each state of a put makes of the table of a group; begun and never answered agrees with nothing."""


class Lane(IntEnum):
    """Who puts."""

    SINGLE = 0
    BATCH = 1
    ONCE = 2
    PREPARED = 3
    STREAM = 4
    OTHER = 5
    OTHER_BATCH = 6
    RESULT = 7


class Table(IntEnum):
    """What is noted of each message: that it was put, and which group has finished it."""

    PUT = 0
    FAST = 1
    SLOW = 2
    RESULTS = 3


Name = tuple[int, int]
"""Lane and number."""


class AccountError(AssertionError):
    """A message is lost, doubled, or not what was put."""


def payload_of(lane: Lane, number: int, size: int | None = None) -> bytes:
    """Return a message, whose bytes follow from its name; of ``size`` bytes, or of one that its number says."""
    start = number * 7919 % (len(_FILLER) // 2)
    body = _FILLER[start : start + (_SIZE_MIN + number * 31 % _SIZE_SPREAD if size is None else size)]
    return _HEAD.pack(lane, number, zlib.crc32(body, _seed(lane, number))) + body


def name_of(payload: bytes) -> Name:
    """Return the name of a message; raises AccountError where any byte of it is wrong."""
    lane, number, crc = _HEAD.unpack_from(payload)
    if zlib.crc32(memoryview(payload)[_HEAD.size :], _seed(lane, number)) != crc:
        raise AccountError(f"message {number} of lane {lane} has come with other bytes than it was put with")
    return lane, number


def _seed(lane: int, number: int) -> int:
    return lane << 28 ^ number


class Ledger:
    """The file. Processes that fork share it.

    Parameters
    ----------
    path : Path
        Where it is made.
    lane_count_max : int
        Most messages that anybody puts.
    """

    def __init__(self, path: Path, lane_count_max: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._lane_count_max = lane_count_max
        self._lock = threading.Lock()

    def _position(self, table: Table, lane: int, number: int) -> int:
        assert number < self._lane_count_max, "the ledger is full"
        return (table * len(Lane) + lane) * self._lane_count_max + number

    # -- Putting -----------------------------------------------------------------------------------------------------

    def begin(self, lane: Lane, first: int, count: int = 1) -> None:
        """Take note that messages are about to be put."""
        self._write_puts(lane, first, count, _BEGUN)

    def acknowledge(self, lane: Lane, first: int, count: int = 1) -> None:
        """Take note that they were."""
        self._write_puts(lane, first, count, _ACKNOWLEDGED)

    def take_back(self, lane: Lane, first: int, count: int = 1) -> None:
        """Take note that their transaction was aborted."""
        self._write_puts(lane, first, count, _TAKEN_BACK)

    def _write_puts(self, lane: Lane, first: int, count: int, state: int) -> None:
        os.pwrite(self._fd, bytes([state]) * count, self._position(Table.PUT, lane, first))

    # -- Taking ------------------------------------------------------------------------------------------------------

    def finish(self, table: Table, names: Iterable[Name]) -> None:
        """Take note that a group has finished messages; raises AccountError where it had before."""
        with self._lock:
            for lane, number in names:
                self.check_is_open(table, (lane, number))
                os.pwrite(self._fd, b"\1", self._position(table, lane, number))

    def check_is_open(self, table: Table, name: Name) -> None:
        """Raise AccountError where a group had finished a message that it is given now."""
        if os.pread(self._fd, 1, self._position(table, *name)) == b"\1":
            raise AccountError(f"{table.name}: message {name[1]} of {Lane(name[0]).name} came again after its end")

    # -- Judging -----------------------------------------------------------------------------------------------------

    def put_count(self) -> int:
        """Return how many messages were put and acknowledged."""
        return sum(self._read(Table.PUT, lane).count(_ACKNOWLEDGED) for lane in Lane)

    def judge(self) -> list[str]:
        """Return what does not add up, once all groups have drained their queues; nothing: each message counts once."""
        wrong = []
        for lane in Lane:
            puts = self._read(Table.PUT, lane)
            for table in (Table.RESULTS,) if lane is Lane.RESULT else (Table.FAST, Table.SLOW):
                expected, found = puts.translate(_EXPECTED), self._read(table, lane)
                wrong += [
                    f"{table.name}: message {number} of {lane.name} was {_WORDS[puts[number]]}, and is "
                    f"{'finished' if found[number] else 'lost'}"
                    for number in range(self._lane_count_max if expected != found else 0)
                    if expected[number] != found[number]
                ]
        return wrong

    def _read(self, table: Table, lane: Lane) -> bytes:
        return os.pread(self._fd, self._lane_count_max, self._position(table, lane, 0)).ljust(
            self._lane_count_max, b"\0"
        )

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


_WORDS = ("never put", "begun and not answered", "acknowledged", "aborted")
