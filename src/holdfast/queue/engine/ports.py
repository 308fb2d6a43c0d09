"""What a handle of the mode "shared" puts and takes through: clients of the owner, which is open elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from holdfast.errors import ShutDown
from holdfast.persistence.format.commit_record import CommitRecord, Participant
from holdfast.persistence.log.log_reader import Record
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.batch_file_reader import BatchSummary
from holdfast.queue.dispatch.delivery import Delivery, Holder
from holdfast.queue.options.failure import GIVEN_BACK, Failure
from holdfast.queue.threads.deadlines import Deadlines

Receipt = tuple[int, int]
"""Delivery number and offset."""


class Producer(Protocol):
    """The write side of a shared queue, as ``WriteSide`` has it."""

    def put(self, payload: bytes, headers: bytes, timeout: float | None) -> int: ...

    def put_once(self, payload: bytes, headers: bytes, dedup_id: str, timeout: float | None) -> int: ...

    def put_many(
        self, payloads: Sequence[bytes], timeout: float | None, headers: Mapping[int, bytes] | None = None
    ) -> range: ...

    def commit(
        self,
        nonce: bytes,
        transaction_id: str,
        payloads: Sequence[bytes],
        headers: Mapping[int, bytes],
        group: str,
        receipts: Sequence[Receipt],
        timeout: float | None,
        participants: Sequence[Participant] = (),
    ) -> range:
        """Have a transaction committed, and so what other queues have prepared; return the offsets of its puts."""

    def stage(self, nonce: bytes) -> BatchFileWriter:
        """Begin a batch file for a transaction."""

    def commit_staged(
        self,
        writer: BatchFileWriter,
        nonce: bytes,
        transaction_id: str,
        group: str,
        receipts: Sequence[Receipt],
        timeout: float | None,
        participants: Sequence[Participant] = (),
    ) -> range:
        """As :meth:`commit`, with the puts in a batch file; it is gone once this returns."""

    def wait_for_space(self, count: int, size: int, timeout: float | None) -> None: ...

    def fits_frame(self, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> bool:
        """Whether puts can be prepared without a batch file of this process."""

    def prepare(
        self,
        commit_record: CommitRecord,
        payloads: Sequence[bytes],
        headers: Mapping[int, bytes],
        group: str,
        receipts: Sequence[Receipt],
    ) -> None:
        """Have a transaction prepared whose puts fit, or that has none."""

    def prepare_staged(
        self, writer: BatchFileWriter, commit_record: CommitRecord, group: str, receipts: Sequence[Receipt]
    ) -> BatchSummary:
        """Have one prepared with its puts in a batch file; return the summary of that in ``prepared/``."""

    def begin(self, nonce: bytes) -> None:
        """Begin a commit over several queues that this queue's log decides."""

    def end(self, nonce: bytes, *, is_followed: bool) -> None:
        """End it; ``is_followed``: all parts follow, durably."""

    def follow(self, transaction_id: str, nonce: bytes, *, is_committed: bool) -> range:
        """Have a prepared part follow the log of another queue; return the offsets of its puts."""

    def flush(self) -> None: ...

    def shut_down(self) -> None: ...

    def close(self) -> None: ...

    def forget(self) -> None: ...


class Consumer(Protocol):
    """The read side of a shared queue, as ``ReadSide`` has it."""

    group: str
    deadlines: Deadlines
    taken_count: int

    def get(self, timeout: float | None) -> bytes: ...

    def get_many(self, count_max: int, timeout: float | None) -> list[bytes]: ...

    def receive(
        self, count_max: int, timeout: float | None, holder: Holder | None = None, lease_seconds: float | None = None
    ) -> list[Delivery]: ...

    def ack_and_receive(
        self, deliveries: Sequence[Delivery], count_max: int, timeout: float | None, lease_seconds: float | None = None
    ) -> list[Delivery]: ...

    def nack(
        self,
        deliveries: Sequence[Delivery],
        delay: float | None = None,
        failure: Failure = GIVEN_BACK,
        holder: Holder | None = None,
    ) -> None: ...

    def ack(self, deliveries: Sequence[Delivery]) -> None: ...

    def reject(self, deliveries: Sequence[Delivery], reason: str) -> None: ...

    def park(self, deliveries: Sequence[Delivery], failure: Failure, holder: Holder | None = None) -> None: ...

    def release(self, deliveries: Sequence[Delivery], holder: Holder | None = None) -> None: ...

    def extend(self, deliveries: Sequence[Delivery], seconds: float | None) -> None: ...

    def redacted(self, failure: Failure) -> Failure: ...

    def is_last(self, delivery_count: int) -> bool: ...

    def check(self, deliveries: Sequence[Delivery], holder: Holder) -> list[Record]: ...

    def hold(self, deliveries: Sequence[Delivery], holder: Holder) -> None: ...

    def hand_back(self, deliveries: Sequence[Delivery], holder: Holder) -> None: ...

    def let_go(self, deliveries: Sequence[Delivery], holder: Holder) -> None: ...

    def held_by(self, holder: Holder) -> list[Delivery]: ...

    def note_lost(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """Take note of a delivery that the owner has taken away, if an error says so."""

    def end_committed(self, deliveries: Sequence[Delivery]) -> None:
        """Note that a transaction has finished messages."""

    def wait_for_more(self, left: float | None, is_over: Callable[[], bool] = lambda: False) -> None: ...

    def purge(self, note: Callable[[int], object]) -> int: ...

    def wake(self) -> None: ...

    def flush(self) -> None: ...

    def ending(self) -> ShutDown: ...

    def shut_down(self, timeout: float | None, *, immediate: bool) -> None: ...

    def close(self) -> None: ...

    def forget(self) -> None: ...
