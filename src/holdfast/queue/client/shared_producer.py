"""Putting through the owner of a shared queue, in this process or another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.errors import CommitUnknownError, Full, HoldfastError, PoisonedError, ShutDown
from holdfast.persistence.format.commit_record import CommitRecord, Participant, count_of, thread_of
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.batch_file_reader import BatchSummary
from holdfast.queue.client.link import Answer
from holdfast.queue.client.membership import Membership
from holdfast.queue.client.staging import Staging, discard
from holdfast.queue.client.upkeep import Upkeep
from holdfast.queue.owner.direct import put, put_many
from holdfast.queue.producer.nonces import give_up, next_nonce
from holdfast.queue.protocol.messages import Commit, Offsets, OtherPart, Put, Receipt, Verb
from holdfast.queue.threads.lifecycle import Lifecycle


class SharedProducer:
    """The write side of a handle in the mode "shared". Threads may share it.

    Parameters
    ----------
    membership : Membership
        The way to the owner.
    upkeep : Upkeep
        Tells the owner that answers have arrived.
    staging : Staging
        Holds what is too large for a frame; has transactions prepared.
    is_synced : bool
        Whether this handle asks for syncs that the queue's flush policy does not.
    """

    def __init__(self, membership: Membership, upkeep: Upkeep, staging: Staging, *, is_synced: bool) -> None:
        self._membership = membership
        self._upkeep = upkeep
        self._staging = staging
        self._is_synced = is_synced
        self._lifecycle = Lifecycle()

    def put(self, payload: bytes, headers: bytes, timeout: float | None) -> int:
        """Have one message appended; return its offset."""
        return self.put_once(payload, headers, "", timeout)

    def put_once(self, payload: bytes, headers: bytes, dedup_id: str, timeout: float | None) -> int:
        """As :meth:`put`; for a message with a remembered id return that one's offset."""
        if self._lifecycle.refusal is not None:  # as check() does, without the call
            raise self._lifecycle.refusal()
        offset = self._membership.here(lambda queue: put(queue, payload, headers, dedup_id, timeout, self._is_synced))
        if offset is not None:
            return offset
        return self._put((payload,), {0: headers} if headers else {}, dedup_id, timeout).start

    def put_many(
        self, payloads: Sequence[bytes], timeout: float | None, headers: Mapping[int, bytes] | None = None
    ) -> range:
        """Have a batch appended as one commit; return its offsets."""
        self._lifecycle.check()
        known = headers or {}
        offsets = self._membership.here(lambda queue: put_many(queue, payloads, known, timeout, self._is_synced))
        return self._put(payloads, dict(known), "", timeout) if offsets is None else offsets

    def _put(self, payloads: Sequence[bytes], headers: dict[int, bytes], dedup_id: str, timeout: float | None) -> range:
        nonce = next_nonce()
        if self._staging.is_wanted(payloads, headers):
            put = Put(nonce, self._is_synced, dedup_id, {}, timeout, is_staged=True)
            return self._stage(put, nonce.hex(), payloads, headers, timeout)
        put = Put(nonce, self._is_synced, dedup_id, headers, timeout)
        return self._ask(put, self._membership.ask, put, payloads, timeout)

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
        """Have a transaction committed; return the offsets of its puts. Raises as ``Transaction.commit``."""
        if self._staging.is_wanted(payloads, headers):
            request = _staged(nonce, transaction_id, group, receipts, timeout, participants)
            return self._stage(request, transaction_id, payloads, headers, timeout)
        parts = _parts(participants)
        commit = Commit(nonce, transaction_id, dict(headers), timeout, group, list(receipts), False, parts)
        return self._ask(commit, self._membership.ask, commit, payloads, timeout)

    def stage(self, nonce: bytes) -> BatchFileWriter:
        """Begin a batch file for a transaction. Raises DiskFullError or StorageError."""
        return self._staging.stage(nonce)

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
        request = _staged(nonce, transaction_id, group, receipts, timeout, participants)
        return self._ask(request, self._staging.ask, writer, request, transaction_id, timeout)

    # -- Preparing ---------------------------------------------------------------------------------------------------

    def wait_for_space(self, count: int, size: int, timeout: float | None) -> None:
        """Return once a bounded queue has space for a batch. Raises as :meth:`Staging.wait_for_space`."""
        self._lifecycle.check()
        self._staging.wait_for_space(count, size, timeout)

    def fits_frame(self, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> bool:
        """Whether puts can be prepared without a file of this process."""
        return self._staging.fits_frame(payloads, headers)

    def prepare(
        self,
        commit_record: CommitRecord,
        payloads: Sequence[bytes],
        headers: Mapping[int, bytes],
        group: str,
        receipts: Sequence[Receipt],
    ) -> None:
        """Have a transaction prepared whose puts fit, or that has none. As :meth:`Staging.prepare`."""
        self._lifecycle.check_alive()
        self._staging.prepare(commit_record, payloads, headers, group, receipts)

    def prepare_staged(
        self, writer: BatchFileWriter, commit_record: CommitRecord, group: str, receipts: Sequence[Receipt]
    ) -> BatchSummary:
        """Have a transaction prepared with its puts in a batch file. As :meth:`Staging.prepare_staged`."""
        self._lifecycle.check_alive()
        return self._staging.prepare_staged(writer, commit_record, group, receipts)

    def begin(self, nonce: bytes) -> None:
        """Begin a commit over several queues that this queue's log decides."""
        self._lifecycle.check()
        self._staging.begin(nonce)

    def end(self, nonce: bytes, *, is_followed: bool) -> None:
        """End it; ``is_followed``: all parts follow, durably."""
        self._staging.end(nonce, is_followed=is_followed)

    def follow(self, transaction_id: str, nonce: bytes, *, is_committed: bool) -> range:
        """Have a prepared part follow the log of another queue; return the offsets of its puts."""
        return self._staging.follow(transaction_id, nonce, is_committed=is_committed)

    # -- Asking ------------------------------------------------------------------------------------------------------

    def _stage(
        self,
        request: Put | Commit,
        transaction_id: str,
        payloads: Sequence[bytes],
        headers: Mapping[int, bytes],
        timeout: float | None,
    ) -> range:
        self._lifecycle.check()
        writer = self._staging.staged(request.nonce, payloads, headers)
        try:
            return self._ask(request, self._staging.ask, writer, request, transaction_id, timeout)
        except (CommitUnknownError, PoisonedError):
            writer.close()  # an owner may be about to make it part of the log; else the next opening removes it
            raise
        except (Full, ShutDown, HoldfastError):  # nothing was done
            discard(writer)
            raise
        except BaseException:  # interrupted
            writer.close()
            raise

    def _ask(self, request: Put | Commit, ask: Callable[..., Answer], *asked: object) -> range:
        if self._lifecycle.refusal is not None:  # as check() does, without the call
            raise self._lifecycle.refusal()
        try:
            reply, _, is_kept = ask(*asked)
        except CommitUnknownError:
            self._give_up(request)
            raise
        except (Full, ShutDown, HoldfastError):  # it was refused, or never sent
            raise
        except BaseException:  # interrupted
            self._give_up(request)
            raise
        assert type(reply) is Offsets, "an owner answers a put by offsets or an error"
        if is_kept:
            self._upkeep.answered(thread_of(request.nonce), count_of(request.nonce))
        return range(reply.first, reply.first + reply.count)

    def _give_up(self, request: Put | Commit) -> None:
        """Have the request answered only if it is tried again: it may have been done."""
        give_up()
        self._upkeep.given_up(thread_of(request.nonce), count_of(request.nonce))

    def flush(self) -> None:
        """Sync everything put and acknowledged so far, by all handles."""
        self._membership.ask(Verb("", {"verb": "flush"}), (), None)

    def shut_down(self) -> None:
        """Refuse further puts with queue.ShutDown."""
        self._lifecycle.drain()

    def close(self) -> None:
        """Refuse everything."""
        self._lifecycle.close()

    def forget(self) -> None:
        """In a forked child: refuse everything with ForkedError."""
        self._lifecycle.forget()


def _staged(
    nonce: bytes,
    transaction_id: str,
    group: str,
    receipts: Sequence[Receipt],
    timeout: float | None,
    participants: Sequence[Participant],
) -> Put | Commit:
    """Return the commit of a transaction whose puts are staged. If it does no more, it is a put that is synced."""
    if receipts or participants:
        return Commit(nonce, transaction_id, {}, timeout, group, list(receipts), True, _parts(participants))
    return Put(nonce, synced=True, dedup_id="", headers={}, timeout=timeout, is_staged=True)


def _parts(participants: Sequence[Participant]) -> list[OtherPart]:
    return [(each.path, each.queue_id, each.group) for each in participants]
