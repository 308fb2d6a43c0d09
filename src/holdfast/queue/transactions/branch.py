"""What one transaction does to one queue: its puts, in memory or spilled into a file, and its messages in hand.

Nothing here is visible to others before the outcome, except that taken messages are not available to others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from holdfast.errors import Empty, HoldfastError, RetryableError, StorageError, UsageError
from holdfast.persistence.format.commit_record import Acknowledged, CommitRecord, Participant, PartOf, Run
from holdfast.persistence.format.constants import ENTRY_DONE, FRAME_HEADER_BYTES, OUTCOME_ABORTED
from holdfast.persistence.format.message_headers import encode_headers
from holdfast.persistence.groups.vote import Vote
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.pending_commit_records import DurabilityCheck, Needs, OwnFile
from holdfast.persistence.outcomes.prepared_files import Waiting
from holdfast.persistence.outcomes.redo import OWN
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.batch_file_reader import BatchSummary
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.dispatch.delivery import Delivery, Holder
from holdfast.queue.dispatch.progress_store import runs_of
from holdfast.queue.engine.ports import Consumer
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.arguments import as_bytes, too_large
from holdfast.queue.options.failure import Failure
from holdfast.queue.options.put_options import Put, as_batch
from holdfast.queue.producer.nonces import next_nonce


class Branch:
    """One queue's part of a transaction.

    Parameters
    ----------
    handle : QueueHandle
        The queue.
    holder : Holder
        The transaction, as its deliveries know it.
    nonce : bytes, length 16
        Of the transaction.
    record_bytes_max : int
        Largest payload.
    session : int
        Number of the session that the transaction belongs to; 0: it is this process's own.

    Attributes
    ----------
    acked : dict of int to Delivery
        Messages that the transaction acknowledges, by offset.
    has_voted : bool
        Whether acknowledgements are prepared.
    needs : frozenset of OwnFile or None
        Files here with the commit record's consequences; None if the next opening has to note them.
    """

    def __init__(
        self, handle: QueueHandle, holder: Holder, nonce: bytes, record_bytes_max: int, *, session: int = 0
    ) -> None:
        self.handle = handle
        self._holder = holder
        self._nonce = self._staging_nonce = nonce
        self._session = session
        self._record_bytes_max = record_bytes_max
        self._spill_bytes = handle.settings.spill_bytes
        self._payloads: list[bytes] = []
        self._headers: dict[int, bytes] = {}
        self._size_bytes = 0
        self._writer: BatchFileWriter | None = None
        self._is_streaming = False
        self._received: dict[int, Delivery] = {}
        self._taken_over: dict[int, Delivery] = {}
        self.acked: dict[int, Delivery] = {}
        self.has_voted = False
        self._staged: Waiting | None = None
        self.needs: frozenset[OwnFile] | None = None

    @property
    def is_staged(self) -> bool:
        """Whether puts are prepared."""
        return self._staged is not None

    # -- Putting -----------------------------------------------------------------------------------------------------

    @property
    def put_count(self) -> int:
        """Messages put."""
        return len(self._payloads) + (self._writer.message_count if self._writer is not None else 0)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.put_count and not self.acked

    def put(self, payload: bytes | Put, headers: Mapping[str, str] | None) -> None:
        """Add one message."""
        if not self._payloads:  # once is enough, and this is the hot path
            self.handle.require_putting()
        if type(payload) is not bytes:
            if isinstance(payload, Put):
                self.put_many((payload,))
                return
            payload = as_bytes(payload)
        size = len(payload)
        if size > self._record_bytes_max:
            raise too_large(payload, self._record_bytes_max)
        if headers is not None:
            self._headers[len(self._payloads)] = encode_headers(headers)
        self._payloads.append(payload)
        self._size_bytes += size
        if self._size_bytes > self._spill_bytes:
            self._spill_after(1, size)

    def put_many(self, payloads: Iterable[bytes | Put]) -> None:
        """Add messages, all or none."""
        self.handle.require_putting()
        batch, headers = as_batch(payloads, self.handle.clock)
        largest = max(batch, key=len, default=b"")
        if len(largest) > self._record_bytes_max:
            raise too_large(largest, self._record_bytes_max)
        size = sum(map(len, batch))
        for number, stored in (headers or {}).items():
            self._headers[len(self._payloads) + number] = stored
        self._payloads += batch
        self._size_bytes += size
        if self._size_bytes > self._spill_bytes:
            self._spill_after(len(batch), size)

    def put_stream(self, chunks: Iterable[Any], headers: Mapping[str, str] | None, max_bytes: int | None) -> int:
        """Add one message in pieces; return its size."""
        stored = b"" if headers is None else encode_headers(headers)
        writer = self._spill()
        bound = self._record_bytes_max if max_bytes is None else max_bytes
        self._is_streaming = True
        try:
            return writer.add_stream(chunks, stored, self.handle.clock.time_ns(), max_bytes=bound)
        finally:
            self._is_streaming = False

    def _spill_after(self, count: int, size: int) -> None:
        """Spill; if that fails, the last ``count`` messages, of ``size`` bytes, were never put."""
        try:
            self._spill()
        except BaseException:
            if self._payloads:  # else they have come to be in the file
                del self._payloads[len(self._payloads) - count :]
                for number in [number for number in self._headers if number >= len(self._payloads)]:
                    del self._headers[number]
                self._size_bytes -= size
            raise

    def _spill(self) -> BatchFileWriter:
        """Move the puts so far into a file, so that memory stays bounded."""
        if self._is_streaming:
            raise UsageError("the iterator of put_stream cannot put into its transaction, or commit it")
        if self._writer is None:
            staging = self.handle.producer or self.handle.require_batches()
            self._writer = staging.stage(self._staging_nonce)
        if self._payloads:
            self.handle.priorities.note_for(self._headers.values())  # the file may become part of the log as it is
            self._writer.add_many(self._payloads, self._headers, self.handle.clock.time_ns())
            self._payloads, self._headers, self._size_bytes = [], {}, 0
        return self._writer

    # -- Taking ------------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None) -> Delivery:
        """Take one message into the transaction."""
        side = self.handle.require_taking()
        try:
            delivery = side.receive(1, timeout, self._holder)[0]
        except Empty:
            raise
        except BaseException:
            self._receive_held(side)
            raise
        self._received[delivery.offset] = delivery
        return delivery

    def _receive_held(self, side: ReadSide | Consumer) -> None:
        """After an interruption: give messages that were taken unnoticed back with the rest, at the end."""
        self._received.update(
            {each.offset: each for each in side.held_by(self._holder) if self.acked.get(each.offset) is not each}
        )

    def has_received(self, delivery: Delivery) -> bool:
        """Whether the transaction has taken this message from this queue."""
        return self._received.get(delivery.offset) is delivery

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Finish messages with the transaction; those that others have received are taken over."""
        side = self.handle.require_taking()
        own = [each for each in deliveries if each.holder is self._holder]
        side.check(own, self._holder)
        others = [each for each in deliveries if each.holder is not self._holder]
        try:
            if others:
                side.hold(others, self._holder)
                self._taken_over.update({each.offset: each for each in others})
            self.acked.update({each.offset: each for each in deliveries})
        except BaseException:
            self._receive_held(side)
            raise

    def expire_at(self, deadline: float, expire: Callable[[], bool]) -> None:
        """Have messages given back at ``deadline``, even if the transaction is not used any more."""
        self.handle.require_taking().deadlines.add(deadline, expire)

    def release(self, expire: Callable[[], bool], failure: Failure | None, delay: float | None) -> None:
        """Give back unfinished messages; those that were taken over go back to their receiver.

        ``failure`` is the reason, and ``delay`` the wait before redelivery; without a failure they were never received.
        """
        side = self.handle.consumer or self.handle.require_read_side()
        if self._received or self.acked:
            self._release_messages(side, failure, delay)
        side.deadlines.discard(expire)  # last: messages that an interruption left in hand go back then

    def _release_messages(self, side: ReadSide | Consumer, failure: Failure | None, delay: float | None) -> None:
        # Not by offset: behind a seek, a message that it has acknowledged may have come once more.
        known = {id(each): each for each in (*self._received.values(), *self.acked.values())}
        left = [each for each in known.values() if not each.is_settled]
        side.hand_back([each for each in left if self._taken_over.get(each.offset) is each], self._holder)
        own = [each for each in left if each.holder is self._holder]
        with suppress(HoldfastError):  # a queue that was closed meanwhile has given everything back
            try:
                if failure is None:
                    side.release(own, self._holder)
                else:
                    side.nack(own, delay, failure, self._holder)
            except (RetryableError, StorageError):  # no other code would ever give them back
                side.let_go(own, self._holder)
        self._received, self.acked = {}, {}

    def load(self, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> None:
        """Add the messages of another process, which has checked them."""
        self._payloads, self._headers = list(payloads), dict(headers)
        self._size_bytes = sum(map(len, payloads))

    def load_staged(self, content: Iterable[tuple[bytes, bytes]]) -> None:
        """Add payloads and encoded headers that another process has staged; its file stays as it is."""
        self._staging_nonce = next_nonce()
        for payload, stored in content:
            if stored:
                self._headers[len(self._payloads)] = stored
            self._payloads.append(payload)
            self._size_bytes += len(payload)
            if self._size_bytes > self._spill_bytes:
                self._spill()

    def hand_back(self) -> None:
        """Give what is not finished back to its receiver, which is in another process."""
        side = self.handle.read_side
        if side is not None:
            side.hand_back([each for each in self.acked.values() if not each.is_settled], self._holder)

    def discard(self) -> None:
        """Forget the puts."""
        self._payloads, self._headers, self._size_bytes = [], {}, 0
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(HoldfastError):  # the next opening removes it
                writer.discard()

    def forget(self) -> None:
        """Forget the puts, and leave their file: to the parent, in a forked child; to the next opening, if in doubt."""
        self._payloads, self._headers, self._size_bytes = [], {}, 0
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    # -- Committing on its own ---------------------------------------------------------------------------------------

    def wait_for_space(self, timeout: float | None) -> None:
        """Return once a bounded queue has space for the puts, counting the space that the acknowledgements free."""
        side = self.handle.producer or self.handle.write_side
        if self.put_count and side is not None:  # else the owner waits, or refuses
            size = self._size_bytes if self._writer is None else self._writer.end
            count = max(0, self.put_count - len(self.acked))
            side.wait_for_space(count, size + FRAME_HEADER_BYTES * self.put_count, timeout)

    def commit(self, transaction_id: str, timeout: float | None) -> range:
        """Commit puts and acknowledgements as one, waiting ``timeout`` seconds for space; return the puts' offsets.

        One of a session goes into the log with a commit record in any case, so that it can be asked for again.
        """
        if not self.put_count and not self._session:
            end = self.handle.next_offset()  # which may fail, so before anything is done
            if self.acked:
                self.handle.require_read_side().ack(list(self.acked.values()), self._holder)
            return range(end, end)
        if self._writer is None and not self.acked and not self._session:
            side = self.handle.require_putting()
            if len(self._payloads) > 1:
                return side.put_many(self._payloads, timeout, self._headers)
            offset = side.put(self._payloads[0], self._headers.get(0, b""), timeout)
            return range(offset, offset + 1)
        self.wait_for_space(timeout)
        return self.decide(CommitRecord(transaction_id, self._nonce, self.put_count, self.handle.clock.time_ns()))

    def decide(self, commit_record: CommitRecord) -> range:
        """Put the batch with its commit record into the log, synced; then apply its consequences in this queue."""
        handle = self.handle
        write_side = handle.require_write_side()
        acked = list(self.acked.values())
        commit_record = replace(commit_record, acknowledged=self._acknowledged(acked), session=self._session)
        if self._writer is None:
            offsets = write_side.decide(self._payloads, self._headers, commit_record)
        else:
            self._spill()
            summary = self._writer.finish(commit_record)
            self._writer.close()
            offsets = handle.require_batches().commit(summary, is_new=True)
            self._writer = None
        self._follow(acked)
        if not commit_record.participants and self.needs is not None:
            write_side.pending_commit_records.applied(commit_record.nonce, Needs(self.needs))
        return offsets

    def _follow(self, acked: Sequence[Delivery]) -> None:
        """Note the messages that the commit record finishes; if that fails, it stays pending for the next opening."""
        self.needs = frozenset({OwnFile.PREPARED})
        if not acked:
            return
        side = self.handle.require_read_side()
        trouble = f"committed, and not noted yet; the next opening of {self.handle.path} does"
        ack = partial(side.ack, acked, self._holder, is_decided=True)
        if follow_up(trouble, ack, level=logging.ERROR):
            self.needs |= {OwnFile.GROUP}
            return
        for each in acked:  # finished, so never to be given back: they stay in hand as long as this queue is open
            self._received.pop(each.offset, None)
        self.acked = {}
        self.needs = None

    def _acknowledged(self, deliveries: Sequence[Delivery]) -> tuple[Acknowledged, ...]:
        if not deliveries:
            return ()
        group = self.handle.group.require()
        return (Acknowledged(group.name, group.group_id, self._runs(deliveries)),)

    def _runs(self, deliveries: Sequence[Delivery]) -> tuple[Run, ...]:
        records = self.handle.require_read_side().check(deliveries, self._holder)
        return tuple((each.first_offset, each.count, *each.hint) for each in runs_of(ENTRY_DONE, records))

    # -- Preparing ---------------------------------------------------------------------------------------------------

    def prepare(self, transaction_id: str, coordinator: Participant | None, part_of: PartOf | None = None) -> None:
        """Make everything durable and undecided: acknowledgements as a vote first, then the puts.

        A vote whose batch is missing counts as aborted; so a crash in between is an abort.
        """
        commit_record = self._waiting_record(transaction_id, coordinator, part_of)
        if self.acked:
            self._vote(transaction_id, coordinator, commit_record.timestamp_ns, stages=self._stages)
        if self._stages:
            self._staged = self._prepare_puts(commit_record)
            self._writer = None

    def prepare_staged(self, transaction_id: str, coordinator: Participant | None, staged: BatchSummary) -> None:
        """As :meth:`prepare`, with the puts that another process has staged."""
        if self.acked:
            self._vote(transaction_id, coordinator, self.handle.clock.time_ns(), stages=True)
        self._staged = self.handle.require_batches().prepare_staged(staged)

    def _prepare_puts(self, commit_record: CommitRecord) -> Waiting:
        """Prepare the puts in the log of small transactions, or in a file of their own."""
        batches = self.handle.require_batches()
        if self._writer is None and batches.fits_log(self._payloads, self._headers, commit_record):
            self.handle.priorities.note_for(self._headers.values())  # on a full disk it becomes part of the log as is
            entry = batches.prepare_in_log(self._payloads, self._headers, commit_record)
            self._payloads, self._headers, self._size_bytes = [], {}, 0
            return entry
        return batches.prepare(self._spill(), commit_record)

    @property
    def _stages(self) -> bool:
        """Whether preparing needs a batch file: for puts, or because there is nothing else."""
        return bool(self.put_count) or not self.acked

    def _waiting_record(
        self, transaction_id: str, coordinator: Participant | None, part_of: PartOf | None
    ) -> CommitRecord:
        """Return the commit record with which the puts wait in ``prepared/``."""
        handle = self.handle
        voters = (Participant(OWN, handle.queue_id, handle.group.name),) if self.acked else ()
        return CommitRecord(
            transaction_id,
            self._nonce,
            self.put_count,
            handle.clock.time_ns(),
            participants=voters,
            coordinator=coordinator,
            part_of=part_of,
        )

    def _vote(self, transaction_id: str, coordinator: Participant | None, now: int, *, stages: bool) -> None:
        """Hold the acknowledged messages, durably, until the outcome; ``stages``: there are puts, too."""
        acked = list(self.acked.values())
        decides = coordinator or (Participant(OWN, self.handle.queue_id) if stages else None)
        vote = Vote(transaction_id, self._nonce, now, decides, self._runs(acked))
        self.handle.require_read_side().vote(vote, acked, self._holder)
        self.has_voted = True

    def commit_prepared(self) -> range:
        """Follow a commit of another queue: put the batch into the log, finish the messages of the vote."""
        handle, end = self.handle, self.handle.next_offset()
        offsets = range(end, end)
        if self._staged is not None:
            offsets = handle.require_batches().commit(self._staged)
            needs = Needs(frozenset({OwnFile.PREPARED}))
            handle.require_write_side().pending_commit_records.applied(self._nonce, needs)
            self._staged = None
        if self.has_voted:
            handle.require_read_side().resolve(self._nonce, is_committed=True, is_durable=False)
        return offsets

    def abort_prepared(self) -> None:
        """Discard the prepared batch and vote, durably."""
        if self._staged is not None:
            prepared = self.handle.require_batches().prepared
            prepared.drop(self._staged, OUTCOME_ABORTED)
            prepared.sync()
            self._staged = None
        self._let_go_of_vote()

    # -- Committing with other queues --------------------------------------------------------------------------------

    def renew(self, nonce: bytes) -> None:
        """Prepare or decide under this nonce from here on."""
        self._nonce = nonce

    def begin_deciding(self) -> None:
        """Have the outcome in doubt until :meth:`end_deciding`: its absence in the log proves nothing."""
        assert self.handle.coordinator is not None, "a handle that begins transactions has the write side"
        self.handle.coordinator.begin(self._nonce)

    def end_deciding(self) -> None:
        """Note that it was decided, and that all participants know; or that it was given up."""
        assert self.handle.coordinator is not None, "it may decide"
        self.handle.coordinator.end(self._nonce)

    def durability_check(self) -> DurabilityCheck | None:
        """Return what makes the settled vote of this branch durable; None if nothing is to be done."""
        return self.handle.require_read_side().flush if self.has_voted else None

    def note_followed(self, checks: Sequence[DurabilityCheck]) -> None:
        """Let the commit record end once the consequences in other queues are durable, which ``checks`` make them."""
        if self.needs is not None:
            needs = Needs(self.needs, tuple(checks))
            self.handle.require_write_side().pending_commit_records.applied(self._nonce, needs)

    def _let_go_of_vote(self) -> None:
        if self.has_voted:
            self.has_voted = False
            self.handle.require_read_side().resolve(self._nonce, is_committed=False, is_durable=True)


def check_deliveries(items: Delivery | Sequence[Delivery]) -> list[Delivery]:
    """Return one delivery, or several, as a list; raises TypeError for anything else."""
    deliveries = [items] if isinstance(items, Delivery) else list(items)
    for each in deliveries:
        if not isinstance(each, Delivery):
            raise TypeError(f"ack takes deliveries, not {type(each).__name__}")
    return list(dict.fromkeys(deliveries))
