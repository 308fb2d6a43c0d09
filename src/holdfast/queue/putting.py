"""What a queue offers for putting messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime

from holdfast.clock import Clock
from holdfast.persistence.format.message_headers import encode_headers
from holdfast.queue.options.arguments import as_bytes, too_large, wait_for
from holdfast.queue.options.put_options import Put, Seconds, as_batch, encode_put
from holdfast.queue.producer.write_side import WriteSide
from holdfast.queue.remote.submit_side import SubmitSide


class Putting(ABC):
    """The verbs of :class:`PersistentQueue` that put."""

    _clock: Clock
    _record_bytes_max: int
    _write_side: WriteSide | SubmitSide | None

    @abstractmethod
    def _check_open(self) -> None:
        """Raise where the queue is not open."""

    @abstractmethod
    def _require_write_side(self) -> WriteSide | SubmitSide:
        """Return what puts; raises where the queue is not open, or its mode does not put."""

    def put(
        self,
        payload: bytes,
        block: bool = True,
        timeout: float | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None,
        not_before: datetime | float | None = None,
        priority: int = 0,
        ttl: Seconds | None = None,
        dedup_id: str | None = None,
        order_key: str | None = None,
    ) -> int:
        """Append one message.

        Parameters
        ----------
        payload : bytes-like, at most ``record_bytes_max`` bytes
            Opaque; may be empty.
        block, timeout : bool, and float or None, seconds
            Whether to wait for room where the queue is bounded, and how long; None waits for ever.
        headers : mapping of str to str, at most 65,535 bytes encoded
            Stands beside the payload.
        delay, not_before : float or timedelta, seconds; datetime with a time zone, or float, seconds since the epoch
            How long nobody is given the message, or until when: one of them.
        priority : int, 0 to 9
            Larger ones are given out first, in order among themselves; not together with ``order_key``.
        ttl : float or timedelta, seconds
            From then on nobody is given the message; what becomes of it the queue's ``expired`` says.
        dedup_id : str, 1 to 255 bytes
            A second put of the same id within ``dedup_window`` writes nothing and returns the first one's offset.
        order_key : str, 1 to 255 bytes
            Messages of one key are given out in order, one at a time: the next when this one is done, or a dead letter.

        Returns
        -------
        int
            The message's offset.

        Raises
        ------
        queue.Full, TypeError, UsageError, RecordTooLargeError, DiskFullError, PoisonedError
            Nothing was written. Full: no room within ``timeout``. TypeError: ``QueueService`` takes objects.
        CommitUnknownError
            The sync failed: nobody knows; reopen the queue and look.

        Notes
        -----
        Durability: what the flush policy says, once this returns. Cost: one write, at most one sync. Called from a
        signal handler or a ``__del__`` it may wait for ever, for the put that it interrupts: docs/work-queue.md.
        """
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        if len(payload) > self._record_bytes_max:
            raise too_large(payload, self._record_bytes_max)
        side = self._write_side or self._require_write_side()
        seconds = None if block and timeout is None else wait_for(block, timeout)
        is_plain = delay is None and not_before is None and ttl is None and dedup_id is None and order_key is None
        if is_plain and not priority:
            return side.put(payload, b"" if headers is None else encode_headers(headers), seconds)
        now = self._clock.time_ns()
        stored = encode_put(now, headers, delay, not_before, priority, ttl, dedup_id, order_key)
        return side.put_once(payload, stored, dedup_id, seconds) if dedup_id else side.put(payload, stored, seconds)

    def put_encoded(self, payload: bytes, headers: bytes, timeout: float | None) -> int:
        """Append one message whose headers are encoded already, and that asks for nothing; as :meth:`put`.

        For layers above that put the same headers again and again: ``CommonHeaders.encoded``.
        """
        if len(payload) > self._record_bytes_max:
            raise too_large(payload, self._record_bytes_max)
        return (self._write_side or self._require_write_side()).put(payload, headers, timeout)

    def put_many(self, payloads: Iterable[bytes | Put], *, timeout: float | None = None) -> range:
        """Append one batch atomically: after any crash all of it is there, or none.

        Parameters
        ----------
        payloads : iterable of bytes-like or Put
            Each at most ``record_bytes_max`` bytes, less than 4 GiB in all. An empty batch writes nothing.
        timeout : float or None, seconds
            How long to wait for room; None waits for ever.

        Returns
        -------
        range
            Offsets of the batch, in the order given.

        Raises
        ------
        queue.Full, TypeError, RecordTooLargeError, DiskFullError, PoisonedError, CommitUnknownError
            As :meth:`put`, for the whole batch.

        Notes
        -----
        Durability: what the flush policy says, for the whole batch. Cost: one write, at most one sync; O(bytes).

        References
        ----------
        docs/format.md, "Batches".
        """
        side = self._write_side or self._require_write_side()
        batch, headers = as_batch(payloads, self._clock)
        if not batch:
            self._check_open()
            return range(side.next_offset, side.next_offset)
        largest = max(batch, key=len)
        if len(largest) > self._record_bytes_max:
            raise too_large(largest, self._record_bytes_max)
        return side.put_many(batch, wait_for(True, timeout), headers)

    def put_nowait(self, payload: bytes) -> int:
        """Append one message without waiting for room: ``put(payload, block=False)``."""
        return self.put(payload, block=False)
