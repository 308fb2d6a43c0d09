"""``PersistentQueue``: the durable queue that applications open. Bytes in, bytes out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack
from weakref import WeakSet

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ShutDown
from holdfast.messages import Message
from holdfast.persistence.compaction.compactor import Compaction
from holdfast.persistence.filesystem.layout import check_name
from holdfast.persistence.filesystem.storage import OsStorage, Storage, storage_errors
from holdfast.persistence.format.message_headers import encode_headers
from holdfast.persistence.format.report import RecoveryReport
from holdfast.queue.consumer.consuming import Consuming
from holdfast.queue.consumer.draining import DRAIN_SECONDS, log_left
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch
from holdfast.queue.engine.log_starts import GroupStart
from holdfast.queue.engine.ports import Consumer, Producer
from holdfast.queue.forked_copy import put_off
from holdfast.queue.inspect.browse import BrowsedMessage, Browser, State
from holdfast.queue.inspect.dead_letters import DeadLetters
from holdfast.queue.inspect.groups import Groups
from holdfast.queue.inspect.log_reading import LogReading
from holdfast.queue.inspect.stats import QueueStats, gather_stats
from holdfast.queue.local_engine import LocalEngine
from holdfast.queue.options.arguments import (
    absolute_path,
    as_bytes,
    check_count,
    too_large,
    wait_for,
)
from holdfast.queue.options.filter_expression import check_filter
from holdfast.queue.options.log_start import LogStart, Start
from holdfast.queue.options.message_filter import MessageFilter
from holdfast.queue.options.put_options import Put, Seconds, as_batch, encode_put, instant_ns, lease_of
from holdfast.queue.options.queue_options import Mode, Options, check_options
from holdfast.queue.options.settings import Settings, check_names, checked
from holdfast.queue.prepared.joint_commits import JointCommits
from holdfast.queue.prepared.prepared_transactions import PreparedTransaction, find_prepared
from holdfast.queue.prepared.reservations import Reservations
from holdfast.queue.producer.write_side import WriteSide
from holdfast.queue.threads import lifecycle
from holdfast.queue.threads.lifecycle import Lifecycle
from holdfast.queue.threads.task_count import TaskCount
from holdfast.queue.transactions.branch import Branch
from holdfast.queue.transactions.shared_branch import branch_of
from holdfast.queue.transactions.transaction import TIMEOUT_SECONDS, Transaction, TransactionBase
from holdfast.queue.verbs.group_verbs import PAUSE, RESUME
from holdfast.queue.verbs.verb_log import logged, own_process

if TYPE_CHECKING:
    from holdfast.queue.client.shared_engine import SharedEngine

Result = TypeVar("Result")


_OPTIONS = (
    *("path", "mode", "can_own", "group", "redact", "lock_timeout", "any_file_system", "configured"),
    *("storage", "clock"),
)


class PersistentQueue:
    """A durable first-in, first-out queue of byte strings in one directory.

    Threads of a process share one object. Any number of processes put and take: one of them owns the queue and serves
    the others, and the next one takes over if it ends. docs/processes.md.

    Parameters
    ----------
    path : str or path-like
        The queue's directory; made if it does not exist, except in mode "read_only". Its last part is the queue's name.
    mode : "shared", "exclusive" or "read_only"
        "shared" lets any number of processes put and take; "exclusive" owns the queue, and keeps other handles out: the
        least time for each call of one process; "read_only" changes nothing.
    can_own : bool
        Whether this process may own a shared queue. False is for one that ends soon, or that is busy with Python: it is
        a client, and owns the queue for the length of a call only while no other process does.
    group : str
        The consumer group to read for. The default group starts when it is first used; others are made with
        ``groups.create``, or together with a new queue.
    redact : callable, str to str
        Takes secrets out of the text of an exception, or of the reason of a dead letter, before it is stored or logged.
        If it fails, its text is withheld. The reason of a pause is stored as it is given.
    lock_timeout : float, seconds
        How long to wait for the present owner to close; 0: not at all.
    any_file_system : bool
        Whether the queue may be on a file system that other computers share, or of an unknown kind (FUSE): see
        docs/durability.md. ``HOLDFAST_ANY_FILE_SYSTEM=true`` in the environment does the same.
    configured : Settings
        Settings that an operator has chosen: unlike ``settings``, the owner changes the queue to them.
    storage, clock
        The ports to the operating system; tests put others in their place.
    **settings : Settings
        What belongs to the queue and the group, and is stored with them: ``flush``, ``data_file_bytes``,
        ``record_bytes_max``, ``maxsize``, ``max_bytes``, ``dedup_window``, ``dedup_max``; ``max_deliveries``,
        ``backoff``, ``lease_seconds``, ``dead_letter_seconds``, ``expired``. The first program that says one sets it;
        the others leave it out, or say the same. Only ``flush`` is set by the program that makes the queue; the others
        may ask for more durability. docs/settings.md has the table.

    Raises
    ------
    QueueLockedError, LockTimeoutError
        Another handle owns the queue; names its process and host.
    QueueNotFoundError, GroupNotFoundError
        There is none, and the mode does not make one.
    ConfigError
        A path, a name or an option that cannot work, or a setting that is not the queue's; nothing was made.
    UnsupportedVersionError, CorruptionError, StorageError
        Files of a newer version, not of this queue, without their settings, or a disk that refuses.

    Notes
    -----
    Promises: docs/durability.md. Leases, retries, dead letters and what a put may ask for: docs/work-queue.md.
    Transactions: docs/transactions.md. Format: docs/format.md.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Mode = "shared",
        can_own: bool = True,
        group: str = "default",
        redact: Callable[[str], str] | None = None,
        lock_timeout: float = 0,
        any_file_system: bool = False,
        configured: Settings | None = None,
        storage: Storage | None = None,
        clock: Clock | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        check_names(settings, type(self).__name__, *_OPTIONS)
        self.path = absolute_path(path, "queue")
        self.mode = mode
        self.group = check_name(group, "group")
        self._options = options = Options(
            mode,
            group,
            checked(settings),
            checked(configured or {}),
            lock_timeout,
            redact=redact,
            any_file_system=any_file_system,
            can_own=can_own,
        )
        check_options(options)
        self.can_take = options.takes
        self._storage = storage or OsStorage()
        self._clock = clock or SystemClock()
        self._lifecycle = Lifecycle(self.path)
        self._is_shutdown = self._takes_nothing = False
        self._before_opening = frozenset({*vars(self), "_before_opening"})
        self._open()

    def _open(self) -> None:
        """Open the queue; in a forked child of the mode "shared" once more."""
        self._consuming: WeakSet[Consuming] = WeakSet()
        self._engine = engine = self._engine_class(self.mode)(self._storage, self._clock, self.path, self._options)
        try:  # at once: it holds locks
            self._handle = handle = engine.handle
            self._record_bytes_max = handle.settings.values["record_bytes_max"]
            self._read_side: ReadSide | Consumer | None = handle.consumer or handle.read_side
            self._look_side = handle.look_side
            self._open_parts()
            lifecycle.watch(self)
            engine.expect(self)
        except BaseException:  # interrupted too: no other code could release the locks
            engine.give_up()
            raise

    @staticmethod
    def _engine_class(mode: Mode) -> type[LocalEngine] | type[SharedEngine]:
        """Return the engine of a mode; a program without shared queues does not load what these need."""
        if mode != "shared":
            return LocalEngine
        from holdfast.queue.client.shared_engine import SharedEngine

        return SharedEngine

    def _open_parts(self) -> None:
        """Make the objects that use the sides and transactions."""
        handle, engine = self._handle, self._engine
        self._write_side: WriteSide | Producer | None = handle.producer or handle.write_side
        opened_depth, opened_end, reader = handle.depth(), handle.next_offset(), handle.read_side
        handle.known_since.look(opened_end, None)

        def put_count() -> int:
            gone = reader.out_of_reach_count if reader is not None else 0
            return opened_depth + engine.end() - opened_end - gone

        def taken_count(consumer: Consumer | None = handle.consumer) -> int:
            if reader is not None:  # which counts what is left as gone
                return put_count()
            return consumer.taken_count if consumer is not None else 0

        look = reader.end_expired if reader is not None else lambda: None
        self._tasks = TaskCount(put_count, look, taken_count)

        def seek(group: str, start: LogStart, own: str = self.group, tasks: TaskCount = self._tasks) -> GroupStart:
            moved = engine.seek(group, start)
            if group == own:  # then ``join`` waits for what comes again
                tasks.call_off(-moved.task_change)
            return moved.started

        self.groups = Groups(handle, check_open=self._lifecycle.check, close_group=engine.close_group, seek=seek)
        self.reservations = Reservations(handle, self._engine.reserving, check_open=self._lifecycle.check)
        self.joint_commits = JointCommits(handle, self._engine.joint_resolver, check_open=self._lifecycle.check)

    # -- Putting -----------------------------------------------------------------------------------------------------

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
            Whether to wait for space if the queue is bounded, and how long; None waits for ever.
        headers : mapping of str to str, at most 65,535 bytes encoded
            Names and values beside the payload.
        delay, not_before : float or timedelta, seconds; datetime with a time zone, or float, seconds since the epoch
            How long the message is not delivered, or until when: one of them.
        priority : int, 0 to 9
            Higher priorities are delivered first, in order among themselves; not together with ``order_key``.
        ttl : float or timedelta, seconds
            After that time the message expires; the queue's ``expired`` decides whether it is dropped or kept as a dead
            letter.
        dedup_id : str, 1 to 255 bytes
            A second put of the same id within ``dedup_window`` writes nothing and returns the first one's offset.
        order_key : str, 1 to 255 bytes
            Messages of one key are delivered in order, one at a time: the next when this one is done, or a dead letter.

        Returns
        -------
        int
            The message's offset.

        Raises
        ------
        queue.Full, TypeError, UsageError, RecordTooLargeError, DiskFullError, PoisonedError
            Nothing was written. Full: no space within ``timeout``. TypeError: ``QueueService`` takes objects.
        CommitUnknownError
            The sync failed: the message may be there or not; reopen the queue and check.

        Notes
        -----
        Durability: as the flush policy, once this returns. Cost: one write, at most one sync. Called from a
        signal handler or a ``__del__`` it may wait for ever, for the put that it interrupts: docs/work-queue.md.
        """
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        if len(payload) > self._record_bytes_max:
            self._check_size(payload)
        side = self._write_side or self._require_write_side()
        seconds = None if block and timeout is None else wait_for(block, timeout)
        is_plain = delay is None and not_before is None and ttl is None and dedup_id is None and order_key is None
        if is_plain and priority == 0:
            return side.put(payload, b"" if headers is None else encode_headers(headers), seconds)
        stored = encode_put(self._clock, headers, delay, not_before, priority, ttl, dedup_id, order_key)
        return side.put_once(payload, stored, dedup_id, seconds) if dedup_id else side.put(payload, stored, seconds)

    def put_encoded(self, payload: bytes, headers: bytes, timeout: float | None) -> int:
        """Append one message whose headers are encoded already, and that asks for nothing; as :meth:`put`.

        For layers above that put the same headers again and again: ``CommonHeaders.encoded``.
        """
        if len(payload) > self._record_bytes_max:
            self._check_size(payload)
        return (self._write_side or self._require_write_side()).put(payload, headers, timeout)

    def put_many(self, payloads: Iterable[bytes | Put], *, timeout: float | None = None) -> range:
        """Append one batch atomically: after any crash all of it is there, or none.

        Parameters
        ----------
        payloads : iterable of bytes-like or Put
            Each at most ``record_bytes_max`` bytes, less than 4 GiB in all. An empty batch writes nothing.
        timeout : float or None, seconds
            How long to wait for space; None waits for ever.

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
        Durability: as the flush policy, for the whole batch. Cost: one write, at most one sync; O(bytes).

        References
        ----------
        docs/format.md, "Batches".
        """
        side = self._write_side or self._require_write_side()
        batch, headers = as_batch(payloads, self._clock)
        if not batch:
            self._lifecycle.check()
            end = self._handle.next_offset()
            return range(end, end)
        largest = max(batch, key=len)
        if len(largest) > self._record_bytes_max:
            self._check_size(largest)
        return side.put_many(batch, wait_for(True, timeout), headers)

    def _check_size(self, payload: bytes) -> None:
        """Raise RecordTooLargeError, unless another process has changed what is too large."""
        bound = self.settings["record_bytes_max"]
        if len(payload) > bound:
            raise too_large(payload, bound)

    def put_nowait(self, payload: bytes) -> int:
        """Append one message without waiting for space: ``put(payload, block=False)``."""
        return self.put(payload, block=False)

    # -- Taking ------------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> bytes:
        """Take one message and acknowledge it in the same step; return its payload.

        A crash after this call loses a message that was taken and not yet processed: use :meth:`receive` if that
        matters.

        Raises
        ------
        queue.Empty
            Nothing came within ``timeout`` seconds, or at once with ``block=False``.
        queue.ShutDown, ClosedError
            The queue was shut down and nothing is left to wait for, or was closed.
        CommitUnknownError
            The sync failed: the message may come again or not; reopen the queue and check.
        """
        side = self._read_side or self._require_read_side()
        return side.get(wait_for(block, timeout))

    def get_many(self, max_messages: int, *, timeout: float | None = None) -> list[bytes]:
        """Take from 1 to ``max_messages`` messages as soon as there is one, with one entry and at most one sync.

        Large messages come in smaller batches: a take ends once it has read 1 MiB. Raises as :meth:`get`.
        """
        side = self._read_side or self._require_read_side()
        return side.get_many(check_count(max_messages), wait_for(True, timeout))

    def get_nowait(self) -> bytes:
        """Take one message without waiting: ``get(block=False)``."""
        return self.get(block=False)

    def receive(self, *, timeout: float | None = None, lease_seconds: Seconds | None = None) -> Delivery:
        """Take one message, to be acknowledged or given back: a context manager does either.

        Parameters
        ----------
        timeout : float or None, seconds
            How long to wait for one.
        lease_seconds : float or timedelta, seconds
            How long it is the caller's; while its ``with`` block is open it stays so. None: as the queue has it.

        Notes
        -----
        Raises as :meth:`get`. The delivery is counted before it is returned, so that a message that kills
        its consumer is counted too.
        """
        side = self._read_side or self._require_read_side()
        lease = None if lease_seconds is None else lease_of(lease_seconds)
        return side.receive(1, None if timeout is None else wait_for(True, timeout), None, lease)[0]

    def receive_many(
        self, max_messages: int, *, timeout: float | None = None, lease_seconds: Seconds | None = None
    ) -> DeliveryBatch:
        """Take from 1 to ``max_messages`` messages as soon as there is one; a redelivered message comes alone.

        Takes and raises what :meth:`receive` does.
        """
        side = self._read_side or self._require_read_side()
        lease = None if lease_seconds is None else lease_of(lease_seconds)
        return DeliveryBatch(side, side.receive(check_count(max_messages), wait_for(True, timeout), None, lease))

    def has_handed_out(self, delivery: Delivery) -> bool:
        """Whether a delivery comes from this handle, settled or not."""
        return self._read_side is not None and delivery.comes_from(self._read_side)

    def peek(self, max_messages: int = 1) -> list[Message]:
        """Return up to ``max_messages`` messages that would come next, and take nothing; empty if there are none."""
        count = check_count(max_messages)
        if self._look_side is not None:
            self._lifecycle.check()
            return self._look_side.peek(count)
        self._lifecycle.check()
        return self._handle.require_read_side().peek(count)

    def wait_for_more(self, timeout: float | None, is_over: Callable[[], bool] = lambda: False) -> None:
        """Sleep until there may be more to take, or ``is_over()`` at a :meth:`wake`; at most ``timeout`` seconds."""
        self._handle.require_taking().wait_for_more(timeout, is_over)

    def wake(self) -> None:
        """Wake all threads that wait for a message, so that they check again."""
        if self._read_side is not None:
            self._read_side.wake()

    def ending(self) -> ShutDown:
        """Return the error that takers would end with now: its ``left`` counts the messages that stay."""
        return self._handle.require_taking().ending()

    def __iter__(self) -> Iterator[bytes]:
        """Yield payloads, each already acknowledged, until :meth:`get` raises ShutDown; log the messages left then."""
        while True:
            try:
                payload = self.get()
            except ShutDown as error:
                log_left(self.path, error)
                return
            yield payload

    def consume(
        self, *, prefetch: int = 100, timeout: float | None = None, lease_seconds: Seconds | None = None
    ) -> Iterator[Delivery]:
        """Yield messages that the loop finishes by coming back for the next one; they are taken ahead, many at once.

        This is the fastest way to take of those that lose nothing. What is finished is acknowledged with the next take,
        in one request and one sync; or when the loop ends, or the queue is closed.

        Parameters
        ----------
        prefetch : int
            How many messages to take at once, as soon as there is one. If this process is killed, so many come again at
            the most: those taken and not yet acknowledged.
        timeout : float or None, seconds
            The loop ends if nothing comes for so long; None: only by :meth:`shutdown`, and then it logs what is left.
        lease_seconds : float or timedelta, seconds
            As in :meth:`receive`. What was taken stays the loop's, however long the others take, as in a block.

        Raises
        ------
        LeaseExpiredError
            In the loop: this process was stopped for longer than the lease, and a message that it has finished comes
            again. Those that could be acknowledged are.
        HoldfastError
            In the loop: as :meth:`receive` and ``Delivery.ack``.

        Notes
        -----
        A message has failed if the loop is left with it in hand, by ``break``, ``return`` or an exception; settle it by
        hand before, as any delivery. What was taken ahead goes back uncounted. An iterator that is kept behind its loop
        keeps its messages: ``contextlib.closing`` closes it.
        """
        return self.consuming(prefetch, timeout, lease_seconds).run()

    def consuming(self, prefetch: int, timeout: float | None, lease_seconds: Seconds | None) -> Consuming:
        """Return the messages of a loop as :meth:`consume` has it, for layers above that iterate in another way."""
        side = self._read_side or self._require_read_side()
        lease = None if lease_seconds is None else lease_of(lease_seconds)
        consuming = Consuming(self.path, side, check_count(prefetch), wait_for(True, timeout), lease)
        self._consuming.add(consuming)
        return consuming

    # -- As queue.Queue ----------------------------------------------------------------------------------------------

    def qsize(self) -> int:
        """Return how many messages can be taken now; ``stats().depth`` counts those in flight too.

        As far as this handle has read the log; behind that, all count. ``stats`` tells how far mode "read_only" reads.
        """
        self._lifecycle.check()
        if self._takes_nothing:
            return 0
        reader = self._look_side or self._handle.read_side
        return reader.ready_count if reader is not None else self._handle.depth()

    def depth(self) -> int:
        """Return how many messages the group has not finished, those in flight included: ``stats().depth``."""
        return self._handle.depth()

    def empty(self) -> bool:
        """Whether nothing can be taken now."""
        self._lifecycle.check()
        try:
            side = self._handle.read_side
            return not side.peek(1) if side is not None else self.qsize() == 0
        except ShutDown:
            return True

    def full(self) -> bool:
        """Whether a bounded queue is full now."""
        self._lifecycle.check()
        return self._engine.is_full()

    @property
    def maxsize(self) -> int:
        """The bound of the queue, in messages; 0 means no bound. :meth:`configure` changes it."""
        return self.settings["maxsize"]

    # -- Settings ----------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """All settings of the queue and of this handle's group, as they count now, in a copy."""
        self._lifecycle.check()
        self._handle.refresh_settings()
        self._record_bytes_max = self._handle.settings.values["record_bytes_max"]
        return self._handle.settings.values.copy()

    def configure(self, *, reset: Iterable[str] = (), **settings: Unpack[Settings]) -> None:
        """Change settings of the queue, and of this handle's group, for all who open it from now on.

        Parameters
        ----------
        reset : iterable of str
            Names of settings that get their defaults again.
        **settings
            As in the constructor. They count here at once; ``data_file_bytes`` from the next data file on, ``flush``
            and ``dedup_max`` once another handle owns the queue, or this one opens it anew.

        Raises
        ------
        ConfigError
            A value that cannot work, or not together with the others; nothing was changed.
        UsageError
            The mode does not own what the settings belong to.
        StorageError
            The disk refused, and nothing was changed; CommitUnknownError: it may have been, look at the next opening.

        Notes
        -----
        Durability: power loss. The change is logged.
        """
        self._lifecycle.check()
        check_names(settings, "configure", "reset")
        check_names(reset := list(reset), "configure")
        try:
            self._engine.configure(settings, reset, self._lifecycle.check)
        finally:  # those of the queue count, even if those of the group could not be written
            self._record_bytes_max = self._handle.settings.values["record_bytes_max"]

    def compact(self, *, dry_run: bool = False) -> Compaction:
        """Merge sealed data files that live by a quarter at most, and give the space of the rest back.

        A message lives as long as any group has not finished it. Nothing that can be read for a group changes.

        Parameters
        ----------
        dry_run : bool
            Only tell what that would do, about.

        Returns
        -------
        Compaction
            ``file_count`` files became ``merged_count``: ``freed_bytes`` for ``written_bytes``. ``kept`` has for each
            reason why others stay how many do.

        Raises
        ------
        UsageError
            The mode does not own the write side.
        StorageError, DiskFullError
            The disk refuses; each merge is whole or has not happened.

        Notes
        -----
        Durability: power loss. Cost: what lives in the files is read, and written once; puts and takes go on meanwhile.
        docs/compaction.md.
        """
        self._lifecycle.check()
        return self._engine.compact(dry_run=dry_run)

    @property
    def is_shutdown(self) -> bool:
        """Whether :meth:`shutdown` was called."""
        return self._is_shutdown

    @property
    def unfinished_tasks(self) -> int:
        """For how many messages :meth:`join` waits."""
        self._lifecycle.check_forked()
        return self._tasks.unfinished_count

    def task_done(self) -> None:
        """Report a message as done, for :meth:`join`; in memory only, it acknowledges nothing.

        Raises
        ------
        ValueError
            It was called more often than there were messages.
        """
        self._lifecycle.check_forked()
        self._tasks.task_done()

    def join(self) -> None:
        """Wait until :meth:`task_done` was called for every message: those waiting at opening, and those put since.

        It does not wait for messages that are not delivered any more: expired, lost to damage, or left when takers have
        ended after :meth:`shutdown`.
        """
        self._lifecycle.check_forked()
        self._tasks.join()

    def shutdown(self, immediate: bool = False, *, timeout: float | None = DRAIN_SECONDS) -> None:
        """Refuse puts with queue.ShutDown, and takes once nothing is left that they wait for.

        Parameters
        ----------
        immediate : bool
            Refuse takes at once, and give deliveries in hand back uncounted. Messages stay on the disk, other than in
            the standard library, and :meth:`join` does not wait for them.
        timeout : float or None, seconds
            How long from now takers wait for messages that are not ready: in hand in this process, waiting after a
            failure, delayed, or behind such a one of their order key. They do not wait for messages that become ready
            later, nor for a paused group. None: no bound. Another call sets another bound.

        Notes
        -----
        The ``left`` of the ShutDown that takers get counts the messages that stay, by reason.
        docs/work-queue.md.
        """
        self._lifecycle.check_forked()
        seconds = wait_for(True, timeout)
        self._is_shutdown = True
        if immediate:
            self._engine.end_soon()
            self._takes_nothing = True
        if self._write_side is not None:
            self._write_side.shut_down()
        if self._read_side is not None:
            try:
                if immediate:
                    self._settle_loops()
            finally:
                self._read_side.shut_down(seconds, immediate=immediate)
        if immediate and self._handle.read_side is None:  # no take comes any more that could be reported done
            self._tasks.release()
        self._tasks.look_again()

    # -- A group as a whole: docs/work-queue.md ----------------------------------------------------------------------

    def pause(self, until: datetime | float | None = None, reason: str | None = None) -> None:
        """Hand out nothing, in this process and after restarts; puts continue, and messages in hand can be settled.

        For all processes, until :meth:`resume`.

        Parameters
        ----------
        until : datetime with a time zone, or float, seconds since the epoch
            When it ends by itself; None: with :meth:`resume`.
        reason : str
            For people; ``stats().paused`` shows it.
        """
        self._lifecycle.check()
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"a reason is a str, not {type(reason).__name__}")
        until_ns = None if until is None else instant_ns(until, "until")
        self._engine.do({"verb": PAUSE, "until_ns": until_ns, "reason": reason})

    def resume(self) -> None:
        """Hand messages out again."""
        self._lifecycle.check()
        self._engine.do({"verb": RESUME})

    def purge(self) -> int:
        """Finish all messages that are ready now for this group, unseen; return how many. Other groups keep theirs.

        Messages in hand, held by a prepared transaction, or waiting for their time stay, and those behind them in their
        order key. So do dead letters, and what is put meanwhile. A paused group is purged too.

        Raises
        ------
        UsageError
            The mode does not take.
        queue.ShutDown, ClosedError
            The queue was shut down with ``immediate=True``, or closed.
        CommitUnknownError, PoisonedError
            As :meth:`get`: some of them may come again or not.

        Notes
        -----
        Durability: as the flush policy. Cost: one entry for each run of messages in a file; plain ones are not read.
        """
        return (self._read_side or self._require_read_side()).purge(self._tasks.call_off)

    def browse(
        self,
        state: State = "ready",
        *,
        limit: int = 100,
        after: int | None = None,
        filter: str | None = None,  # as in groups.create
    ) -> list[BrowsedMessage]:
        """Return messages of one state, in offset order, and change nothing.

        Parameters
        ----------
        state : "ready", "leased", "delayed" or "dead"
            A message that waits for its order key is ready. Another process sees delivered messages as leased, even if
            their owner has died since.
        limit : int
            How many at most.
        after : int
            The offset behind which to begin: that of the last message of the page before.
        filter : str or None
            An expression that the messages match: docs/filters.md. None: all.

        Raises
        ------
        UsageError
            Another state; or a mode that cannot read.
        ConfigError
            The filter cannot be one, or the extra ``filter`` is missing.
        """
        self._lifecycle.check()
        wanted = None if filter is None else MessageFilter(check_filter(filter))
        return self._browser().browse(state, check_count(limit), after, wanted)

    def read(
        self,
        start: Start = "earliest",
        stop: Start | None = None,
        *,
        filter: str | None = None,  # as in browse
        follow: bool = False,
        timeout: float | None = None,
    ) -> LogReading:
        """Return an iterator over the messages of the log, in their order, whatever any group has done with them.

        It takes nothing, changes nothing, and keeps nothing on the disk. It works in each mode.

        Parameters
        ----------
        start : "earliest", "latest", int, datetime or timedelta
            Where to begin: as in ``groups.create``.
        stop : "earliest", "latest", int, datetime or timedelta; None
            The message to end before. None: at the end that the log has now; with ``follow``, nowhere.
        filter : str or None
            An expression: only messages that match it. docs/filters.md.
        follow : bool
            Whether to wait at the end for messages that are put later, by any process.
        timeout : float or None, seconds
            With ``follow``: it ends if nothing comes for so long. None: once the queue was shut down.

        Returns
        -------
        LogReading
            An iterator of :class:`Message`. Its ``gaps`` and ``damage`` tell what was not there, or could not be read.

        Raises
        ------
        ConfigError
            A start, a stop or a filter that cannot be; or the extra ``filter`` is missing.
        ClosedError, StorageError
            In the loop: the queue was closed, or the disk refuses.

        Notes
        -----
        A data file that is reclaimed meanwhile becomes a gap, and reading continues behind it. Memory: about 256 KiB,
        or one message if it is larger.
        """
        self._lifecycle.check()
        seconds = wait_for(True, timeout)
        now = self._clock.time_ns()
        return LogReading(
            self._handle,
            LogStart.of(start, now),
            None if stop is None else LogStart.of(stop, now),
            message_filter=None if filter is None else MessageFilter(check_filter(filter)),
            follows=follow,
            timeout=seconds,
            is_shutdown=lambda: self._is_shutdown,
            check_open=self._lifecycle.check,
        )

    @property
    def dead(self) -> DeadLetters:
        """The dead letters of this group."""
        self._lifecycle.check()
        return DeadLetters(self._handle, self._browser, self._engine.do)

    def _browser(self) -> Browser:
        self._lifecycle.check()
        return Browser(self._handle)

    # -- Transactions: docs/transactions.md --------------------------------------------------------------------------

    def transaction(self, *, timeout: float = TIMEOUT_SECONDS) -> Transaction:
        """Begin a transaction whose ``with`` block commits on a clean exit, and aborts on an exception.

        Parameters
        ----------
        timeout : float, seconds
            After so long it aborts, and gives its messages back; a prepared one waits for ever.

        Examples
        --------
        >>> with queue.transaction() as tx:  # doctest: +SKIP
        ...     message = tx.receive(timeout=1)
        ...     tx.put(b"result")
        ...     tx.ack(message)
        """
        return self.begin(timeout=timeout)

    def begin(self, *, timeout: float = TIMEOUT_SECONDS) -> Transaction:
        """Begin a transaction that is ended by hand: ``commit``, ``abort``, or ``prepare`` and then one of these."""
        self._check_may_take_part()
        transaction = Transaction(self._handle, self._engine.resolver, self._record_bytes_max, timeout)
        self._engine.transactions.add(transaction)
        return transaction

    def join_transaction(self, transaction: TransactionBase, nonce: bytes) -> Branch:
        """Return this queue's part of a transaction over several: see :func:`holdfast.transaction`."""
        self._check_may_take_part()
        self._engine.transactions.add(transaction)
        return branch_of(self._handle, transaction, nonce, self._record_bytes_max)

    def prepared(self) -> list[PreparedTransaction]:
        """Return the transactions that are durable and undecided, oldest first; of one moment by id.

        Damaged ones are among them, with their damage. Outcomes of other queues are settled first. The first listing of
        a batch from before a restart reads all of it.
        """
        self._lifecycle.check()
        self._engine.joint_resolver.resume()
        return self._engine.resolver.prepared()

    def prepared_count(self) -> int:
        """Return how many transactions are durable and undecided; settles none, and verifies none."""
        self._lifecycle.check()
        with storage_errors("looking for prepared transactions", self.path):
            return len(find_prepared(self._handle))

    def commit_prepared(self, id: str, *, force: bool = False) -> range:  # the word users know
        """Commit a prepared transaction; return the offsets of its puts. A second time returns the same.

        Other handles, in any process, are asked to decide the parts that they own.

        Parameters
        ----------
        id : str
            What ``prepare`` returned.
        force : bool
            Decide here what another queue's log should: for when that queue is gone. May break all-or-nothing. Also
            commits a whole transaction beside damage that may hide its outcome: its puts may be in the log twice.

        Raises
        ------
        TransactionNotFoundError
            None of that id is in doubt, and no outcome of it is known (docs/transactions.md, "What is remembered").
        TransactionStateError
            It was aborted, or another queue decides it.
        CorruptionError
            Some of it is damaged, or bytes beside it that may hide its outcome; nothing was done. It can be aborted.
        RetryableError
            The owner of the queue does not answer; nothing was done.
        CommitUnknownError, PoisonedError
            It may have happened or not, or an earlier failure has poisoned this side: reopen the queue and check.
        """
        self._lifecycle.check()
        return self._logged("commit_prepared", id, force, lambda: self._engine.resolver.commit(id, force=force))

    def abort_prepared(self, id: str, *, force: bool = False) -> None:  # the word users know
        """Abort a prepared transaction: its puts are gone, its messages ready again. A second time does nothing.

        Raises as :meth:`commit_prepared`; a damaged one is aborted like any other.
        """
        self._lifecycle.check()
        self._logged("abort_prepared", id, force, lambda: self._engine.resolver.abort(id, force=force))

    def _logged(self, verb: str, transaction_id: str, force: bool, do: Callable[[], Result]) -> Result:
        if self._handle.producer is not None:  # the owner logs it
            return do()
        return logged(self._handle.path, verb, {"id": transaction_id, "force": force}, own_process(), do)

    def _check_may_take_part(self) -> None:
        self._lifecycle.check()
        if self._handle.options.mode == "read_only":
            raise self._handle.lacks("begin a transaction")

    # -- The queue itself --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Sync everything put and acknowledged so far, under any flush policy; refuse it if a side is poisoned."""
        self._lifecycle.check()
        if self._write_side is not None:
            self._write_side.flush()
        if self._read_side is not None:
            self._read_side.flush()

    def stats(self) -> QueueStats:
        """Return figures about the queue, in constant time."""
        self._lifecycle.check()
        return gather_stats(self._handle, self._clock, self._engine.counts())

    @property
    def is_owner(self) -> bool:
        """Whether this handle owns a side; in the mode "shared", whether this process serves the others."""
        return self._engine.is_owner

    @property
    def queue_id(self) -> bytes:
        """The 16 bytes that the queue was given when it was made."""
        return self._handle.queue_id

    @property
    def recovery(self) -> RecoveryReport:
        """The report of the opening, and the damage that reading has met since; of a shared queue, the owner's."""
        return self._engine.recovery()

    def close(self) -> None:
        """Give deliveries back uncounted, sync, leave the files clean, let the next owner in.

        Again does nothing, or continues after an interruption. Raises UsageError, and does nothing, inside of
        :meth:`configure`, as by a signal handler.
        """
        if self._engine.is_over:
            return
        self._handle.settings.check_outside("close")
        self._engine.end_soon()
        try:
            try:
                self._settle_loops()
            finally:
                self._lifecycle.close()
                self._tasks.release()
                self._engine.close()
        except Exception:  # each part is closed, even if another one raises
            self._engine.call_off()
            raise
        self._engine.call_off()

    def __enter__(self) -> PersistentQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PersistentQueue {self.path} mode={self.mode} group={self.group} {self._lifecycle}>"

    # -- Inside ------------------------------------------------------------------------------------------------------

    def forget_after_fork(self) -> None:
        """In a forked child: touch nothing that the parent owns.

        A shared handle that is open opens the queue anew at its first use. Calls of any other one raise ForkedError.
        """
        self._engine.forget_after_fork()
        if self.mode == "shared" and self._lifecycle.refusal is None and not self._is_shutdown:
            put_off(self, self._before_opening)
        else:
            self._lifecycle.forget()

    def _settle_loops(self) -> None:
        """Acknowledge what the loops of :meth:`consume` have finished, before everything in hand is given back."""
        for consuming in list(self._consuming):
            consuming.settle()

    def _require_write_side(self) -> WriteSide | Producer:
        self._lifecycle.check()
        return self._handle.require_putting()

    def _require_read_side(self) -> ReadSide | Consumer:
        self._lifecycle.check()
        return self._handle.require_taking()
