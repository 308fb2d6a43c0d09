"""Which tokens are known, and whether the server is still needed. Threads of the server and its main loop share it.

The server is needed while a request is under way and for a while behind the last one. It is needed while a plan waits
for its first request, and while the process that planned keeps a plan and lives. Behind its end a plan waits only for
:data:`UNASKED_SECONDS`: no task asks where all of them see the queue. A write is over when another process commits or
aborts it: the server is needed until that process says so.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from holdfast.clock import Clock
from holdfast.spark.remote.grant import Grant

UNASKED_SECONDS = 3600.0
"""So long a stage may wait for its first task in a busy cluster."""

_TOKEN_BYTES = 32


@dataclass(slots=True)
class _Known:
    """A grant, and what is known of its use."""

    grant: Grant
    token: str
    is_kept: bool
    is_asked: bool = False


class Grants:
    """The grants of one server.

    Parameters
    ----------
    clock : Clock
        Tells how long ago the last request was.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()  # guards all of these
        self._known: dict[bytes, _Known] = {}
        self._under_way = 0
        self._last = clock.monotonic()
        self._unasked_until = float("inf")

    def add(self, grant: Grant, *, is_kept: bool) -> str:
        """Return a token for a grant: the one that it has already, if it has one. It waits for its first request."""
        with self._lock:
            self._last = self._clock.monotonic()
            for known in self._known.values():
                if known.grant == grant:
                    known.is_asked, known.is_kept = False, is_kept
                    return known.token
            token = secrets.token_urlsafe(_TOKEN_BYTES)
            self._known[_digest(token)] = _Known(grant, token, is_kept)
            return token

    def forget(self, token: str) -> None:
        """Refuse a token from now on."""
        with self._lock:
            self._known.pop(_digest(token), None)

    def release(self, grant: Grant) -> None:
        """Refuse the token of a write from now on: it is committed or aborted."""
        with self._lock:
            self._known = {token: known for token, known in self._known.items() if known.grant != grant}

    def keep_writes(self) -> None:
        """Keep only writes, and for a while what was not asked for: the process that planned has ended."""
        with self._lock:
            self._unasked_until = self._clock.monotonic() + UNASKED_SECONDS
            for known in self._known.values():
                known.is_kept = known.is_kept and bool(known.grant.write_id)

    def find(self, token: str) -> Grant | None:
        """Return what a token allows, whose plan was asked for then; None if it is unknown."""
        with self._lock:
            known = self._known.get(_digest(token))
            if known is None:
                return None
            known.is_asked = True
            return known.grant

    @contextmanager
    def request(self) -> Iterator[None]:
        """Note that a request is under way."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._last = self._clock.monotonic()

    def idle_seconds(self) -> float:
        """Return for how long the server was not needed; 0 while it is."""
        with self._lock:
            now = self._clock.monotonic()
            waits = now < self._unasked_until
            if self._under_way or any(
                known.is_kept or (waits and not known.is_asked) for known in self._known.values()
            ):
                return 0.0
            return now - self._last


def _digest(token: str) -> bytes:
    """Return what a token is looked up by: how long a comparison takes tells nothing of the token."""
    return hashlib.sha256(token.encode()).digest()
