"""What threads of workers note: lines in append-only files, each with one system call, so SIGKILL leaves it whole.

A call is noted before and after. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

CUT = "cut"
"""The outcome of a call that the process did not survive."""

Receipt = tuple[str, int, str]
"""A delivery: the journal and the number of the call that took it, and the key of the message."""


@dataclass
class Call:
    """A call of a thread.

    Attributes
    ----------
    journal : str
        The file that tells of it: the number of the worker, a point, and that of its thread.
    number : int
        Of this call, in its journal.
    verb : str
        "put", "take" (in hand behind it), "get" (finished behind it), "ack", "nack", "release", "extend", "commit",
        "abort", "open", "close" or "flush".
    queue : int
        Which queue.
    begin, end : float, seconds
        When it was called, and when it returned or raised. Infinite: its process has ended before, see ``outcome``.
    keys : list of str
        What it puts.
    receipts : list of Receipt
        What it settles.
    count : int
        How many messages it takes at most.
    once : bool
        Whether its only key is its ``dedup_id``.
    is_over_two : bool
        Whether it is a commit over two queues: its receipts are of ``queue``, and its keys say whose they are.
    outcome : str
        Empty: it returned. Otherwise the name of its error, or :data:`CUT`.
    detail : str
        The text of its error.
    first : int
        The offset of the first message put; -1: unknown.
    taken : list of (str, int, int)
        Key, offset and delivery count of each message taken.
    """

    journal: str
    number: int
    verb: str
    queue: int
    begin: float
    keys: list[str] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    count: int = 0
    once: bool = False
    is_over_two: bool = False
    end: float = math.inf
    outcome: str = CUT
    detail: str = ""
    first: int = -1
    taken: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def worker(self) -> int:
        """The number of its process."""
        return int(self.journal.split(".")[0])

    @property
    def has_returned(self) -> bool:
        """Whether it returned."""
        return not self.outcome

    @property
    def is_unknown(self) -> bool:
        """Whether what it puts may be there, or not."""
        return self.outcome in (CUT, "CommitUnknownError")

    def __str__(self) -> str:
        what = " ".join([*self.keys, *(f"{taker}#{number}:{key}" for taker, number, key in self.receipts)])
        taken = " ".join(f"{key}@{offset}" for key, offset, _ in self.taken)
        when = f"{self.begin:.4f}-{self.end:.4f}"
        return f"{when} {self.journal}#{self.number} {self.verb} {what} -> {self.outcome} {self.first} {taken}"


class Journal:
    """Notes the calls of one thread.

    Parameters
    ----------
    path : Path
        The file; its name is that of the journal.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._numbers = count(1)

    def call(self, verb: str, queue: int, do: Callable[[], Result], **told: Any) -> tuple[int, Result]:
        """Note a call, make it, note how it ended; return its number and its result. Raises what it raises.

        ``told``: fields of :class:`Call`. A result with the attribute ``noted`` is noted by its caller.
        """
        number = next(self._numbers)
        self._write({"n": number, "verb": verb, "queue": queue, "begin": time.monotonic(), **told})
        try:
            result = do()
        except BaseException as error:
            detail = repr(error)[:500]
            self._write({"n": number, "end": time.monotonic(), "outcome": type(error).__name__, "detail": detail})
            raise
        end = time.monotonic()
        self._write({"n": number, "end": end, "outcome": "", **_noted(result)})
        return number, result

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def _noted(result: Any) -> dict[str, Any]:
    """Return what is noted of a result: an offset, or messages; nothing of offsets in several queues."""
    if isinstance(result, bool | dict) or result is None:
        return {}
    if isinstance(result, int):
        return {"first": result}
    if isinstance(result, range):
        return {"first": result.start}
    return {"taken": result}


def read(directory: Path) -> Iterator[Call]:
    """Yield the calls that the journals of a directory tell of."""
    for path in sorted(directory.iterdir()):
        calls: dict[int, Call] = {}
        for text in path.read_text().splitlines():
            line = json.loads(text)
            number = line.pop("n")
            if "verb" in line:
                calls[number] = Call(path.name, number, **line)
                continue
            for name, value in line.items():
                setattr(calls[number], name, value)
        for call in calls.values():
            call.receipts = [(taker, number, key) for taker, number, key in call.receipts]
            call.taken = [(key, offset, times) for key, offset, times in call.taken]
            yield call


def key_of(payload: bytes) -> str:
    """Return the key of a message."""
    return payload.split(b" ", 1)[0].decode()


def queue_of_key(key: str) -> int:
    """Return the queue that a message was put into."""
    return int(key.partition(":")[0])


def payload_of(key: str, size: int) -> bytes:
    """Return a message of about this size."""
    return key.encode() + b" " + b"." * size


def keys_of(payloads: Sequence[bytes]) -> list[tuple[str, int, int]]:
    """Return what is noted of messages whose offsets are unknown."""
    return [(key_of(each), -1, 0) for each in payloads]
