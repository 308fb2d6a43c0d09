"""One queue's part of a transaction in the mode "shared": its owner commits, prepares and follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.errors import LeaseExpiredError
from holdfast.persistence.format.commit_record import CommitRecord, Participant, PartOf
from holdfast.persistence.log.pending_commit_records import DurabilityCheck
from holdfast.queue.dispatch.delivery import Delivery, Holder
from holdfast.queue.engine.ports import Consumer, Producer
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.producer.nonces import next_nonce
from holdfast.queue.transactions.branch import Branch


class SharedBranch(Branch):
    """As :class:`Branch`, of a handle that asks its owner; parameters as there.

    What it asks may be asked again of a successor, except :meth:`decide`: only the owner with which it was begun
    decides.
    """

    def __init__(self, handle: QueueHandle, holder: Holder, nonce: bytes, record_bytes_max: int) -> None:
        super().__init__(handle, holder, nonce, record_bytes_max)
        self._has_followed = False

    def commit(self, transaction_id: str, timeout: float | None) -> range:
        """Have the owner commit it: as a request of this moment, because the thread may have made others since."""
        return self._commit_as(next_nonce(), transaction_id, timeout, ())

    def decide(self, commit_record: CommitRecord) -> range:
        """Have the owner commit it, and so what other queues have prepared."""
        return self._commit_as(commit_record.nonce, commit_record.id, 0, commit_record.participants)

    def _commit_as(
        self, nonce: bytes, transaction_id: str, timeout: float | None, participants: Sequence[Participant]
    ) -> range:
        acked = list(self.acked.values())
        producer, consumer = self._ports()
        receipts = [(each.number, each.offset) for each in acked]
        rest = (consumer.group, receipts, timeout, participants)
        with self._hearing(consumer, acked):
            if self._writer is None:
                offsets = producer.commit(nonce, transaction_id, self._payloads, self._headers, *rest)
            else:
                offsets = producer.commit_staged(self._spill(), nonce, transaction_id, *rest)
                self._writer = None
        consumer.end_committed(acked)
        self.acked = {}
        return offsets

    def prepare(self, transaction_id: str, coordinator: Participant | None, part_of: PartOf | None = None) -> None:
        """Have the owner make everything durable and undecided; parts that others decide wait in files, staged here."""
        acked = list(self.acked.values())
        producer, consumer = self._ports()
        receipts = [(each.number, each.offset) for each in acked]
        commit_record = self._waiting_record(transaction_id, coordinator, part_of)
        is_part = coordinator is not None or part_of is not None
        fits = self._writer is None and producer.fits_frame(self._payloads, self._headers)
        with self._hearing(consumer, acked):
            if self._stages and (is_part or not fits):
                self._staged = producer.prepare_staged(self._spill(), commit_record, consumer.group, receipts)
                self._writer = None
            else:
                producer.prepare(commit_record, self._payloads, self._headers, consumer.group, receipts)
                self._payloads, self._headers, self._size_bytes = [], {}, 0
        self.has_voted = bool(acked)
        self._prepared_id = transaction_id
        consumer.end_committed(acked)

    @contextmanager
    def _hearing(self, consumer: Consumer, acked: Sequence[Delivery]) -> Iterator[None]:
        """Refuse if this handle knows that a message was taken away; take note of it if the owner says so."""
        consumer.check(acked, self._holder)
        try:
            yield
        except LeaseExpiredError as error:
            consumer.note_lost(acked, error)
            raise

    def commit_prepared(self) -> range:
        """Have the part follow a commit of another queue, durably; return the offsets of its puts."""
        return self._follow_other(is_committed=True)

    def abort_prepared(self) -> None:
        """Have the part discarded, durably."""
        if self._staged is not None or self.has_voted:
            self._follow_other(is_committed=False)

    def _follow_other(self, *, is_committed: bool) -> range:
        producer, _ = self._ports()
        return producer.follow(self._prepared_id, self._nonce, is_committed=is_committed)

    # -- Committing with other queues --------------------------------------------------------------------------------

    def begin_deciding(self) -> None:
        self._has_followed = False
        self._ports()[0].begin(self._nonce)

    def end_deciding(self) -> None:
        self._ports()[0].end(self._nonce, is_followed=self._has_followed)

    def durability_check(self) -> DurabilityCheck | None:
        return None

    def note_followed(self, checks: Sequence[DurabilityCheck]) -> None:
        for check in checks:
            check()
        self._has_followed = True

    def _ports(self) -> tuple[Producer, Consumer]:
        producer, consumer = self.handle.producer, self.handle.consumer
        assert producer is not None
        assert consumer is not None, 'a handle in the mode "shared" has both'
        return producer, consumer


def branch_of(handle: QueueHandle, holder: Holder, nonce: bytes, record_bytes_max: int) -> Branch:
    """Return a queue's part of a transaction, as its mode has it."""
    kind = Branch if handle.producer is None else SharedBranch
    return kind(handle, holder, nonce, record_bytes_max)
