"""The queue of an owner: its write side, and the read side of each consumer group that a client has asked for.

Every verb may come twice, from a client that got no answer: docs/adr/0050, "Requests". Threads may share it.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import (
    NOTHING_CAME,
    Empty,
    GroupNotFoundError,
    LeaseExpiredError,
    QueueLockedError,
    StaleReceiptError,
    UsageError,
)
from holdfast.persistence.filesystem.layout import check_name
from holdfast.persistence.filesystem.locks import read_owner
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.format.commit_record import CommitRecord, Participant
from holdfast.persistence.format.constants import DEAD_REASONS, FRAME_HEADER_BYTES
from holdfast.persistence.format.report import RecoveryReport
from holdfast.persistence.groups.group_files import DEFAULT_GROUP, find_group, require_group
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.dispatch.standing import Standing
from holdfast.queue.engine.configuring import configure
from holdfast.queue.engine.handle_settings import HandleSettings, only
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.inspect.groups import Groups
from holdfast.queue.inspect.stats import Counts
from holdfast.queue.local_engine import LocalEngine
from holdfast.queue.options.failure import Failure
from holdfast.queue.options.queue_options import Options
from holdfast.queue.options.settings import GROUP_SETTINGS, Settings, read_stored
from holdfast.queue.owner.coordinating import Coordinating
from holdfast.queue.owner.told import taken_away
from holdfast.queue.prepared.joint_resolver import JointResolver
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.producer.write_side import WriteSide
from holdfast.queue.protocol.frames import FRAME_BYTES_MAX
from holdfast.queue.protocol.messages import AnyRequest, Commit, Place, Prepare, Put, Receipt, Settle, Take, Taken
from holdfast.queue.transactions.branch import Branch
from holdfast.queue.verbs.verb_log import Asker, own_process

MESSAGE_BYTES = 80
"""The most that a frame has for a message beside payload and headers."""

TAKEN_BYTES_MAX = FRAME_BYTES_MAX - 1024
"""What a frame has for messages."""

SENT_BYTES_MAX = 2**20
"""Of the payloads in one reply."""

PAYLOAD_BYTES_MAX = 2**16
"""A larger payload is read from the log by the client."""

Living = Callable[[int], bool]
"""Tells whether the session of a number is alive."""


class OwnedQueue:
    """What an owner has open. Clients name groups; each is opened when it is first named.

    Parameters
    ----------
    storage, clock, path
        The queue; it is made if it does not exist.
    options : Options
        How handles are opened; of those only whether any file system will do. Settings come from the queue.
    living : callable
        Whether a session is alive: what it has in hand stays taken, and its answers are kept.

    Raises
    ------
    HoldfastError
        As :class:`PersistentQueue`; nothing stays open.

    Attributes
    ----------
    hand_over : callable
        Takes the number of a session, which is to be the next owner; set by the owner.
    pid_of : callable
        Takes the number of a session; returns its process, if that is known. Set by the owner.
    """

    def __init__(self, storage: Storage, clock: Clock, path: Path, options: Options, living: Living) -> None:
        self._storage = storage
        self._clock = clock
        self._path = path
        self._options = options
        self._living = living
        self.hand_over: Callable[[int], object] = lambda heir: None
        self.pid_of: Callable[[int], int | None] = lambda session: None
        self._lock = threading.Lock()
        self._groups: dict[str, LocalEngine] = {}
        self._opened: dict[str, ReadSide] = {}
        self._writes = LocalEngine(storage, clock, path, options.as_owner(), living=living)
        self.write_side: WriteSide = self._writes.handle.require_write_side()
        self._batches = self._writes.handle.require_batches()
        self.coordinating = Coordinating(self._writes.handle)
        self._administered = Groups(self._writes.handle, check_open=self.handle.calls.check)

    @property
    def handle(self) -> QueueHandle:
        """The handle with the write side."""
        return self._writes.handle

    @property
    def resolver(self) -> PreparedResolver:
        """Decides what is prepared: puts, and votes of all groups."""
        return self._writes.resolver

    @property
    def joint_resolver(self) -> JointResolver:
        """Decides joint commits."""
        return self._writes.joint_resolver

    # -- Groups ------------------------------------------------------------------------------------------------------

    def attach(
        self, group: str, settings: Mapping[str, Any], configured: Mapping[str, Any], *, is_new: bool = False
    ) -> None:
        """Compare the settings of a program with those of the queue and its group; store what it says first.

        ``is_new``: the program has just made the queue, and its group comes with it.

        Raises
        ------
        ConfigError
            It asks for other settings.
        GroupNotFoundError
            There is no such group.
        ClosedError
            The owner is closed.
        """
        check_name(group, "group")
        directory = self.handle.directory
        given = read_stored(settings, "the program"), read_stored(configured, "the configuration")
        asked = HandleSettings(self._path, Options("exclusive", group, *given))
        with self.handle.settings.changing, storage_errors("comparing settings", self._path):
            self.handle.calls.check()
            info = find_group(self._storage, directory, group)
            if info is None and group != DEFAULT_GROUP:
                if not is_new:
                    require_group(self._storage, directory, group)
                self._administered.create(group, **only(given[0], GROUP_SETTINGS))
            asked.adopt_queue(self._storage, directory, is_owner=True)
            if info is not None:
                with self.handle.groups_locked():  # a seek may have begun another life meanwhile
                    asked.adopt_group(self._storage, directory, require_group(self._storage, directory, group))
            self._follow(group, asked.values)

    def _follow(self, group: str, values: Settings) -> None:
        """Let settings count that the first program to say them has set."""
        handle = self.handle
        handle.settings.values = {**handle.settings.values, **values}
        handle.capacity.change(values["maxsize"], values["max_bytes"])
        self.write_side.change(values)
        engine = self._groups.get(group)
        if engine is not None:
            engine.handle.settings.values = {**engine.handle.settings.values, **values}
            engine.handle.require_read_side().change(engine.handle.settings.retry)

    def group(self, name: str) -> ReadSide:
        """Return the read side of a group; raises GroupNotFoundError, QueueLockedError, StorageError."""
        return self._opened.get(name) or self.engine(name).handle.require_read_side()

    def engine(self, name: str) -> LocalEngine:
        """Return what has a group open; raises as :meth:`group`."""
        return self._groups.get(name) or self._open_group(name)

    def _open_group(self, name: str) -> LocalEngine:
        check_name(name, "group")
        with self._lock:
            self.handle.calls.check()
            engine = self._groups.get(name)
            if engine is None:
                options = Options("read_side", name, redact=None, any_file_system=self._options.any_file_system)
                engine = LocalEngine(
                    self._storage, self._clock, self._path, options, beside=self._writes, living=self._living
                )
                self._groups[name] = engine
                self._opened[name] = engine.handle.require_read_side()
            return engine

    def close_group(self, name: str) -> None:
        """Close a group, so that its files may be removed; the next verb on it opens it again, or finds none.

        Raises
        ------
        QueueLockedError
            A session has messages of it in hand; nothing was done.
        """
        with self._lock:
            engine = self._groups.get(name)
            if engine is None:
                return
            if engine.handle.require_read_side().leased:
                owner = read_owner(self._storage, self.handle.directory.write_lock)
                raise QueueLockedError(
                    f"messages of group {name!r} of {self._path} are in hand: finish them, or give them back, then "
                    "delete it",
                    path=str(self.handle.directory.group(name)),
                    pid=owner.pid,
                    host=owner.host,
                )
            for known in (self._groups, self._opened, self.handle.group_readers):
                known.pop(name, None)
            engine.close()

    def handle_of(self, group: str) -> QueueHandle:
        """Return the handle of a group that is open."""
        return self._groups[group].handle

    @property
    def groups(self) -> list[ReadSide]:
        """The read sides that are open."""
        return [engine.handle.require_read_side() for engine in list(self._groups.values())]

    # -- Putting -----------------------------------------------------------------------------------------------------

    def append(
        self, session: int, put: Put, payloads: Sequence[bytes], *, may_append: bool = True
    ) -> tuple[range, bool] | None:
        """Append the batch of another process; None if the queue is full now. As ``WriteSide.append_requested``.

        ``may_append``: False if other puts wait for space before it. Then it is only looked for in the log.
        """
        if put.is_staged:
            if not may_append:
                known = self.write_side.answer_to(put.nonce)
                return None if known is None else (known, False)
            return self._batches.commit_staged(put.nonce, session, has_id=bool(put.dedup_id))
        if not payloads:
            raise UsageError("a put has one message at least")
        check_headers(put.headers, payloads)
        now = self._clock.time_ns()
        commit_record = CommitRecord(put.nonce.hex(), put.nonce, len(payloads), now, session=session)
        return self.write_side.append_requested(
            payloads, put.headers, commit_record, put.dedup_id, may_append=may_append
        )

    def wait_for_space(self, put: Put, payloads: Sequence[bytes], timeout: float | None) -> None:
        """Return once a bounded queue has space for a put; raises queue.Full after ``timeout`` seconds."""
        if put.is_staged:
            self._batches.wait_for_staged(put.nonce, 0, timeout)
        else:
            size = sum(map(len, payloads)) + FRAME_HEADER_BYTES * (len(payloads) + 1)
            self.write_side.wait_for_space(len(payloads), size, timeout)

    def commit(self, session: int, commit: Commit, payloads: Sequence[bytes], timeout: float | None) -> range:
        """Commit the transaction of another process, durably; return the offsets of its puts.

        ``timeout`` is how long to wait for space, in seconds; None: for ever.

        Raises
        ------
        StaleReceiptError, queue.Full, HoldfastError
            As ``Transaction.commit``; nothing was done.
        """
        known = self.write_side.answer_to(commit.nonce)
        if known is not None:
            return known
        if commit.participants:
            self.coordinating.check(session, commit.nonce)
        deliveries = self.find(commit.group, commit.receipts, "commit") if commit.receipts else []
        handle = self.handle_of(commit.group) if commit.receipts else self.handle
        holder = Committing()
        branch = Branch(handle, holder, commit.nonce, handle.settings.values["record_bytes_max"], session=session)
        try:
            if commit.is_staged:
                if not commit.participants:
                    self._batches.wait_for_staged(commit.nonce, len(deliveries), timeout)
                branch.load_staged(self._batches.staged(commit.nonce))
            else:
                check_headers(commit.headers, payloads)
                branch.load(payloads, commit.headers)
            if deliveries:
                branch.ack(deliveries)
            return branch.commit(commit.id, timeout) if not commit.participants else self._decide(branch, commit)
        finally:
            branch.hand_back()
            branch.discard()

    def _decide(self, branch: Branch, commit: Commit) -> range:
        """Commit this queue's branch, and so all parts that other queues have prepared. Space was there before."""
        participants = tuple(Participant(*each) for each in commit.participants)
        now = self._clock.time_ns()
        commit_record = CommitRecord(commit.id, commit.nonce, branch.put_count, now, participants=participants)
        offsets = branch.decide(commit_record)
        self.coordinating.decided(commit_record, branch.needs)
        return offsets

    # -- Taking ------------------------------------------------------------------------------------------------------

    def finish(self, take: Take) -> None:
        """Acknowledge what a take has finished, durably after ``make_durable`` of its group. Raises as :meth:`settle`.

        To be called before :meth:`take`: what is taken then is behind these, and behind the turns of their order keys.
        """
        self.settle(Settle(take.group, "ack", take.finished))

    def take(self, take: Take, timeout: float | None, *, may_take: bool = True) -> list[Delivery]:
        """Take messages under a number: those that are in hand under it, or new ones. Raises as ``receive``.

        ``may_take``: False if other takes wait for messages before it. Then none are new.
        """
        side = self.group(take.group)
        again = side.in_hand(take.number)
        if not again and not may_take:
            raise Empty(NOTHING_CAME)
        return again or side.receive(take.count_max, timeout, None, take.lease, number=take.number)

    def sent(self, group: str, deliveries: Sequence[Delivery]) -> tuple[Taken, list[bytes]]:
        """Return the reply to a take of another process, and its payloads; those that have places are empty.

        What fits into no frame even so is given back.
        """
        payloads = [each.payload for each in deliveries]
        if max(map(len, payloads)) <= PAYLOAD_BYTES_MAX:
            size = sum(map(len, payloads)) + sum([len(each.stored_headers) for each in deliveries])
            if size + MESSAGE_BYTES * len(payloads) <= min(SENT_BYTES_MAX, TAKEN_BYTES_MAX):  # nearly always
                return self.taken(group, deliveries), payloads
        return self._sent_partly(group, deliveries)

    def _sent_partly(self, group: str, deliveries: Sequence[Delivery]) -> tuple[Taken, list[bytes]]:
        payloads: list[bytes] = []
        places: dict[int, Place] = {}
        size = 0
        for number, each in enumerate(deliveries):
            size += len(each.stored_headers) + MESSAGE_BYTES
            if size > TAKEN_BYTES_MAX:
                self.group(group).release(deliveries[number:])
                break
            if len(each.payload) > PAYLOAD_BYTES_MAX or size + len(each.payload) > SENT_BYTES_MAX:
                places[number] = place_of(each)
                payloads.append(b"")
            else:
                size += len(each.payload)
                payloads.append(each.payload)
        reply = self.taken(group, deliveries[: len(payloads)])
        reply.places = places
        return reply, payloads

    def taken(self, group: str, deliveries: Sequence[Delivery]) -> Taken:
        """Return the reply to a take."""
        messages = [(each.offset, each.timestamp_ns, each.stored_headers, each.delivery_count) for each in deliveries]
        return Taken(messages, deliveries[0].lease_seconds, self.group(group).deliveries_max)

    def seconds_until_more(self, groups: Iterable[str]) -> float:
        """Return how long nothing becomes ready by itself in any of these groups; 0 if one was closed meanwhile."""
        opened = [self._opened.get(each) for each in groups]
        return min((0.0 if each is None else each.seconds_until_more() for each in opened), default=math.inf)

    def settle(self, settle: Settle) -> None:
        """Perform a verb on deliveries; that of "ack" is as durable as the policy says after :meth:`make_durable`.

        Raises
        ------
        LeaseExpiredError, StaleReceiptError
            One is not in hand any more; nothing was done.
        """
        side = self.group(settle.group)
        if settle.verb == "ack" and side.ack_in_hand(settle.receipts):
            return  # nearly always
        deliveries = self.find(settle.group, settle.receipts, settle.verb)
        if settle.verb == "ack":
            side.ack(deliveries, is_decided=True)
        elif settle.verb == "nack":
            side.nack(deliveries, settle.seconds, _failure_of(settle))
        elif settle.verb == "reject":
            side.reject(deliveries, _failure_of(settle).detail)
        elif settle.verb == "park":
            side.park(deliveries, _failure_of(settle))
        elif settle.verb == "release":
            side.release(deliveries)
        elif settle.verb == "extend":
            side.extend(deliveries, settle.seconds)
        else:
            raise UsageError(f"this version knows no verb {settle.verb!r} on a delivery")

    def find(self, group: str, receipts: Sequence[Receipt], verb: str) -> list[Delivery]:
        """Return the deliveries of receipts that are in hand; those that the verb has settled before are left out.

        Raises
        ------
        LeaseExpiredError
            One was taken away: its lease ended, or its session was lost.
        StaleReceiptError
            One was given back, and is acknowledged now; or it has ended in any way, and is extended or committed now:
            a commit that was done is known by its nonce.
        """
        side = self.group(group)
        live = side.all_in_hand(receipts)  # nearly always, and with one lock for all of them
        if live is not None:
            return live
        found = []
        for number, offset in receipts:
            delivery = side.find(number, offset)
            if isinstance(delivery, Delivery):
                found.append(delivery)
            elif delivery is Standing.TAKEN_AWAY:
                raise taken_away(offset, is_finished=side.progress.is_finished(offset))
            elif verb in ("extend", "commit") or (verb == "ack" and delivery is not Standing.FINISHED):
                raise StaleReceiptError(
                    f"the delivery of offset {offset} was acknowledged or given back before; "
                    "take the message again if it is still there",
                    offset=offset,
                )
        return found

    def part_with(self, group: str, deliveries: Sequence[Delivery]) -> None:
        """Have other objects for deliveries that the owner's own handle has: it settles them, or a transaction does."""
        if (side := self._opened.get(group)) is not None:
            side.part_with(deliveries)

    def forget_taken_away(self, request: AnyRequest, error: LeaseExpiredError) -> None:
        """Forget what a session was told: that a delivery was taken away. Its answer has arrived."""
        if isinstance(request, Settle | Commit | Prepare):
            receipts: Sequence[Receipt] = request.receipts
        elif isinstance(request, Take):
            receipts = request.finished
        else:  # remembered until the session ends
            return
        for number, offset in receipts:
            if offset == error.context.get("offset"):
                self.group(request.group).forget_taken_away(number, offset)

    def give_up(self, group: str, number: int) -> None:
        """Give back what a take has in hand that its caller has given up."""
        side = self.group(group)
        side.release(side.in_hand(number))

    # -- Sessions ----------------------------------------------------------------------------------------------------

    def keep_only(self, session: int, group: str, numbers: Sequence[int]) -> None:
        """Give back what a session does not have in hand any more, as it says at its hello."""
        with suppress(GroupNotFoundError):  # it has ended, and nothing of it is in hand
            self.group(group).keep_only(session, numbers)

    def end_session(self, session: int) -> None:
        """Give back what a dead session has in hand, and forget its answers."""
        self.coordinating.end_session(session)
        self.write_side.end_session(session)
        for side in self.groups:
            side.end_session(session)

    def recovery(self, group: str) -> RecoveryReport:
        """Return the report of the opening, of the log and a group, with the damage that reading has met since."""
        opened, engine = self.handle.report, self._groups.get(group)
        if engine is None:  # and it stays so: looking opens no group
            return opened
        of_group = engine.handle.recovery()
        damage = [each for each in of_group.damage if not any(known.covers(each) for known in opened.damage)]
        progress_damage = (*opened.progress_damage, *of_group.progress_damage)
        return replace(opened, damage=(*opened.damage, *damage), progress_damage=progress_damage)

    def counts(self, group: str) -> Counts:
        """Return what was counted since the opening, of the log and a group."""
        counts, engine = self._writes.counts(), self._groups.get(group)
        return counts if engine is None else engine.counts()._replace(dedup_forgotten=counts.dedup_forgotten)

    # -- Verbs -------------------------------------------------------------------------------------------------------

    def asker(self, session: int) -> Asker:
        """Return who asks, for the log; session 0 is this process."""
        return own_process() if not session else Asker(os.geteuid(), self.pid_of(session))

    def configure(self, group: str, settings: Settings, reset: Sequence[str]) -> None:
        """Change settings; as :meth:`PersistentQueue.configure`."""
        self.group(group)
        configure(self._groups[group].handle, settings, reset, self.handle.calls.check)

    # -- Ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close everything; what living sessions have in hand stays theirs."""
        self.handle.calls.close()
        with self._lock:  # a group that is just being opened is among them
            engines = list(self._groups.values())
        with ExitStack() as closing:  # each one, even if another raises; the last one first
            for engine in engines:
                closing.callback(engine.close)
            closing.callback(self._writes.close)  # it ends commit records, whose groups have to be open

    def forget_after_fork(self) -> None:
        """In a forked child: touch nothing that the parent owns."""
        self._lock = threading.Lock()
        for engine in (self._writes, *self._groups.values()):
            engine.forget_after_fork()


class Committing:
    """The holder of deliveries while the transaction of a client commits or is prepared."""

    def refusal(self) -> Exception:
        return StaleReceiptError("the message is being committed by its transaction")

    def leave(self, delivery: Delivery, *, is_clean: bool) -> None:
        raise AssertionError("no client enters a delivery of the owner")


def place_of(delivery: Delivery) -> Place:
    """Return where the log has a message."""
    *_, headers, payload, end, sequence = delivery.record
    return sequence, end - FRAME_HEADER_BYTES - len(headers) - len(payload), end


def check_headers(headers: Mapping[int, bytes], payloads: Sequence[bytes]) -> None:
    """Refuse headers of a message that is not there: the log would leave space for them, and not have them."""
    if headers and max(headers) >= len(payloads):
        raise UsageError(f"a batch of {len(payloads)} messages has none with the number {max(headers)}")


def _failure_of(settle: Settle) -> Failure:
    if settle.failure is None:
        raise UsageError(f"{settle.verb} needs a failure")
    failure = Failure(*settle.failure)
    if failure.reason not in DEAD_REASONS:
        raise UsageError(f"this version knows no failure {failure.reason!r}")
    return failure
