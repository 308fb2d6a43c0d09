"""Nonces of transactions and requests: random bytes of the calling thread, and its count. docs/format.md, "Nonces".

No two threads of any process have the same random bytes at once, and a count only goes up: so no nonce is drawn twice.
A thread that ends leaves both to one that begins later. So an owner that remembers threads remembers as many as there
were at once, and those that gave a request up.
"""

from __future__ import annotations

import secrets
import threading
from itertools import count

from holdfast import forks
from holdfast.persistence.format.constants import NONCE, NONCE_THREAD_BYTES

_Counts = tuple[bytes, "count[int]"]

_pack = NONCE.pack
_left = forks.left


class _Series:
    """Random bytes and their count, in the hands of one thread until it ends."""

    free: list[_Counts] | None = None

    def __init__(self, free: list[_Counts]) -> None:
        try:
            self.thread, self.counts = free.pop()
        except IndexError:
            self.thread, self.counts = secrets.token_bytes(NONCE_THREAD_BYTES), count(1)
        self.free = free  # last: what is not whole is not left to others

    def __del__(self) -> None:
        if self.free is not None:
            self.free.append((self.thread, self.counts))


class _Threads(threading.local):
    """The series of each thread."""

    series: _Series


_threads = _Threads()
_free: list[_Counts] = []


def next_nonce() -> bytes:
    """Return a new nonce, length 16."""
    if _left:
        forks.forget_left()
    try:
        series = _threads.series
    except AttributeError:
        series = _threads.series = _Series(_free)
    return _pack(series.thread, next(series.counts))  # the count is one step: a handler of signals may draw one, too


def give_up() -> None:
    """Give the calling thread other random bytes, because it does not wait for the answer to its request any more.

    Its next request would tell the owner that the answer has arrived. To be called on any exception that leaves a
    request without an answer.
    """
    series = getattr(_threads, "series", None)
    if series is not None:
        series.free = None  # nor has any other thread the answer
        del _threads.series


def begin_anew() -> None:
    """Give all threads other random bytes: a forked child is another process."""
    global _threads, _free
    _threads, _free = _Threads(), []


forks.in_child(begin_anew)
