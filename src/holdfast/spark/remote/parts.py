"""The parts of a write, sent to a range server: what a task does if its machine cannot write into the queue.

The task encodes its rows and sends the messages; the server makes frames and checksums of them, and stages them as a
task on its host does. Only one chunk of messages is held in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.spark.remote.client import MESSAGES, RangeClient

CHUNK_BYTES = 2 * 2**20
"""Payload bytes that are sent at once: the server writes the one half while the other is under way."""


class RemoteParts:
    """Stages the parts of a task through a range server. For one thread.

    Parameters
    ----------
    client : RangeClient
        Asks the server, with the token of a write.

    Attributes
    ----------
    clock : Clock
        Shows the time of the server's host, which is that of the queue: delays count from there.
    """

    def __init__(self, client: RangeClient) -> None:
        self._client = client
        self.clock = _ClockAhead()

    def latest(self, application: str) -> int | None:
        """Return the version that an application has committed last. Raises HoldfastError."""
        latest, now_ns = self._client.latest(application)
        self.clock.set(now_ns)
        return latest

    def stage(
        self,
        batches: Iterable[tuple[Sequence[bytes], Mapping[int, bytes]]],
        application: str,
        version: int,
    ) -> tuple[str, ...]:
        """Stage batches of payloads with encoded headers; return the ids of the parts, in order.

        Raises as ``LocalParts.stage``, and RangeServerError. After any exception nothing of it can be committed.
        """
        return self.stage_into((("", *batch) for batch in batches), application, version)

    def stage_into(
        self, batches: Iterable[tuple[str, Sequence[bytes], Mapping[int, bytes]]], application: str, version: int
    ) -> tuple[str, ...]:
        """Stage batches, each for a queue. As ``ManyParts.stage_into``, and raises RangeServerError."""
        chunks = ((name, chunk) for name, payloads, headers in batches for chunk in _chunks(payloads, headers))
        return self._client.stage(application, version, chunks)

    def close(self) -> None:
        """Do nothing: the connection is for the next task, too."""


class _ClockAhead(SystemClock):
    """The clock of this machine, set by another one's."""

    def __init__(self) -> None:
        self._ahead_ns = 0

    def set(self, now_ns: int) -> None:
        """Set it to the time that another machine has now."""
        self._ahead_ns = now_ns - time.time_ns()

    def time_ns(self) -> int:
        return time.time_ns() + self._ahead_ns


def _chunks(payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> Iterator[Any]:
    """Yield messages as record batches of :data:`MESSAGES`, each of about ``CHUNK_BYTES`` or one message."""
    first = size = 0
    for end, payload in enumerate(payloads, 1):
        size += len(payload)
        if size >= CHUNK_BYTES or end == len(payloads):
            stored = [headers.get(number) for number in range(first, end)] if headers else [None] * (end - first)
            columns = [pa.array(payloads[first:end], pa.binary()), pa.array(stored, pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
            first, size = end, 0
