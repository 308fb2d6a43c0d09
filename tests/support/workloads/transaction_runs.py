"""Runs transactions over one queue or two on a simulated disk, and notes what a crash from each call on may leave.

A *work* is what has to happen wholly or not at all: a transaction, or a plain batch of puts. Its *fate* is what became
of it. A *moment* says, for one length of the storage's log, which fates each work may have after a kill, and after a
loss of power. Between two moments a call is under way, and both are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from pathlib import Path

from holdfast import FlushPolicy, PersistentQueue, QueuesTransaction, Transaction, transaction
from holdfast.queue.options.queue_options import Mode
from support.builders.clocks import FakeClock
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.recorded_run import message

DATA_FILE_BYTES = 16 * 2**10  # the smallest: a batch of more than 4 KiB is adopted, and spilled into a file before
LARGE = 3000  # two of them in one transaction make it large

Counts = Mapping[str, int]
Sizes = Mapping[str, Sequence[int]]


class Fate(Flag):
    """What became of a work: nothing, durable and undecided, or all of it."""

    ABSENT = auto()
    IN_DOUBT = auto()
    COMMITTED = auto()


@dataclass(frozen=True)
class Work:
    """What happens together.

    Attributes
    ----------
    name : str
        For the trace of a failure.
    puts, acks : dict of str to tuple of bytes
        Payloads put into, and messages finished in, each queue.
    id : str
        What it is prepared under; of a transaction over two queues, what its parts are.
    """

    name: str
    puts: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    acks: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    id: str = ""

    @property
    def queues(self) -> set[str]:
        """The queues that take part."""
        return {*self.puts, *self.acks}


@dataclass(frozen=True)
class Moment:
    """What each work had come to when a call returned: after a kill, and after a loss of power."""

    operation_count: int
    call: str
    killed: Mapping[str, Fate]
    powerless: Mapping[str, Fate]
    log_order: Mapping[str, tuple[str, ...]]


@dataclass
class Segment:
    """One life of a simulated disk: from its making, or from a kill, to the next kill."""

    storage: SimulatedStorage
    moments: list[Moment]

    def around(self, operation_count: int) -> tuple[Moment, Moment]:
        """Return the last moment at or before a crash, and the one that was under way (or the same)."""
        at = max(i for i, moment in enumerate(self.moments) if moment.operation_count <= operation_count)
        before = self.moments[at]
        under_way = before.operation_count < operation_count and at + 1 < len(self.moments)
        return before, self.moments[at + 1] if under_way else before


class TransactionRun:
    """Queues by name, the works done on them, and the moments of their common life.

    ``is_shared``: handles of the mode "exclusive" are of the mode "shared" instead; the caller has their owners made.
    """

    def __init__(
        self, policy: FlushPolicy, storage: SimulatedStorage | None = None, *, is_shared: bool = False
    ) -> None:
        self.policy = policy
        self._is_shared = is_shared
        self.clock = FakeClock()
        self.works: dict[str, Work] = {}
        self.offsets: dict[str, dict[bytes, int]] = {}
        self.modes: dict[str, Mode] = {}
        self.groups: dict[str, str] = {}
        self.queues: dict[str, PersistentQueue] = {}
        self.under_way: str | None = None
        self._transactions: dict[str, Transaction | QueuesTransaction] = {}
        self._fates: dict[str, Fate] = {}
        self._powerless: dict[str, Fate] = {}
        self._log_order: dict[str, list[str]] = {}
        self._weak: dict[tuple[str, str], list[str]] = {}
        self._message_count = 0
        self.segments = [Segment(storage or SimulatedStorage(), [Moment(0, "nothing", {}, {}, {})])]

    @property
    def storage(self) -> SimulatedStorage:
        """The disk as it is now."""
        return self.segments[-1].storage

    # -- Opening and closing -----------------------------------------------------------------------------------------

    def open(self, **modes: Mode) -> None:
        """Open queues, each in its mode; without any, the queue "a" for everything."""
        wanted: dict[str, Mode] = modes or {"a": "exclusive"}
        for name, wished in wanted.items():
            mode: Mode = "shared" if self._is_shared and wished == "exclusive" else wished
            self.modes[name] = mode
            self.offsets.setdefault(name, {})
            self._log_order.setdefault(name, [])
            group = self.groups.get(name, "default")
            self.queues[name] = open_queue(self.storage, name, self.policy, mode=mode, group=group, clock=self.clock)
            self._is_durable(name)
            self.return_(f"open({name}, {mode})")

    def close(self, *names: str) -> None:
        """Close queues in order, all of them without any name: what they hold is durable then."""
        for name in names or tuple(self.queues):
            self.queues.pop(name).close()
            self._is_durable(name)
            self._forget(name)
            self.return_(f"close({name})")

    def _forget(self, name: str) -> None:
        """Let go of the transactions that a queue which was closed took part in."""
        for key in [key for key in self._transactions if name in self.works[key].queues]:
            del self._transactions[key]

    def kill(self) -> None:
        """Let the process die and begin the next life of the disk."""
        storage = self.storage.crash_keeping_all()
        for queue in self.queues.values():
            queue.close()
        self.queues, self._transactions = {}, {}
        self.segments.append(Segment(storage, [replace(self.segments[-1].moments[-1], operation_count=0, call="kill")]))

    # -- Works -------------------------------------------------------------------------------------------------------

    def put(self, name: str, *sizes: int) -> None:
        """Put a plain batch."""
        work = self._add(Work(f"put {len(self.works)}", {name: self._payloads(name, sizes)}))
        offsets = self.queues[name].put_many(work.puts[name])
        self._committed(work, {name: offsets}, is_strong=False)

    def begin(
        self,
        key: str,
        *,
        puts: Sizes | None = None,
        acks: Counts | None = None,
        streams: Sizes | None = None,
        queues: Sequence[str] = (),
    ) -> None:
        """Begin a transaction and do all that it does; ``streams`` are sizes of messages that come in pieces."""
        puts, acks, streams = puts or {}, acks or {}, streams or {}
        names = list(dict.fromkeys([*queues, *puts, *streams, *acks]))
        tx = transaction(*(self.queues[each] for each in names)) if len(names) > 1 else self.queues[names[0]].begin()
        self._transactions[key] = tx
        self._add(Work(key, id=tx.id))
        put: dict[str, tuple[bytes, ...]] = {}
        for name in dict.fromkeys([*puts, *streams]):
            plain = self._payloads(name, puts.get(name, ()))
            streamed = self._payloads(name, streams.get(name, ()))
            put[name] = plain + streamed
            self._put(tx, name, plain, streamed)
        acked = {name: tuple(self._ack(tx, name) for _ in range(count)) for name, count in acks.items()}
        self.works[key] = Work(key, put, acked, id=tx.id)
        self.return_(f"begin({key})")

    def _put(
        self, tx: Transaction | QueuesTransaction, name: str, plain: Sequence[bytes], streamed: Sequence[bytes]
    ) -> None:
        for payload in plain:
            if isinstance(tx, QueuesTransaction):
                tx.put(self.queues[name], payload)
            else:
                tx.put(payload)
        for payload in streamed:
            chunks = [payload[at : at + 700] for at in range(0, len(payload), 700)]
            if isinstance(tx, QueuesTransaction):
                tx.put_stream(self.queues[name], chunks)
            else:
                tx.put_stream(chunks)

    def _ack(self, tx: Transaction | QueuesTransaction, name: str) -> bytes:
        queue = self.queues[name]
        if isinstance(tx, QueuesTransaction):
            delivery = tx.receive(queue, timeout=0)
            tx.ack(queue, delivery)
        else:
            delivery = tx.receive(timeout=0)
            tx.ack(delivery)
        return delivery.payload

    def commit(self, key: str) -> None:
        """Commit a transaction, prepared or not."""
        self.under_way = key
        work, tx = self.works[key], self._transactions[key]
        if isinstance(tx, QueuesTransaction):
            returned = {name: tx.commit()[self.queues[name]] for name in work.queues}
        else:
            (name,) = work.queues
            returned = {name: tx.commit()}
        del self._transactions[key]
        is_mixed = bool(work.puts and work.acks)
        self._committed(work, returned, is_strong=is_mixed or len(work.queues) > 1 or self._is_strong(work))

    def _is_strong(self, work: Work) -> bool:
        """Whether a transaction of one queue that only puts, or only acknowledges, is decided by a synced frame."""
        (name,) = work.queues
        is_prepared = self._fates[work.name] is Fate.IN_DOUBT
        return is_prepared or sum(map(len, work.puts.get(name, ()))) > DATA_FILE_BYTES // 4

    def prepare(self, key: str, id: str | None = None) -> None:
        """Prepare a transaction."""
        tx = self._transactions[key]
        assert isinstance(tx, Transaction)
        self.works[key] = replace(self.works[key], id=id or tx.id)
        self.under_way = key
        tx.prepare(id)
        self._is(key, Fate.IN_DOUBT, f"prepare({key})")

    def abort(self, key: str) -> None:
        """Abort a transaction, prepared or not."""
        self._transactions[key].abort()
        del self._transactions[key]
        self._is(key, Fate.ABSENT, f"abort({key})")

    def commit_prepared(self, key: str) -> None:
        """Commit a prepared transaction by its id."""
        work = self.works[key]
        (name,) = work.queues
        self.under_way = key
        self._committed(work, {name: self.queues[name].commit_prepared(work.id)}, is_strong=True)

    def abort_prepared(self, key: str) -> None:
        """Abort a prepared transaction by its id."""
        work = self.works[key]
        (name,) = work.queues
        self.queues[name].abort_prepared(work.id)
        self._is(key, Fate.ABSENT, f"abort_prepared({key})")

    def flush(self, name: str) -> None:
        """Sync everything of a queue."""
        self.queues[name].flush()
        self._is_durable(name)
        self.return_(f"flush({name})")

    # -- Keeping the books -------------------------------------------------------------------------------------------

    def _payloads(self, name: str, sizes: Sequence[int]) -> tuple[bytes, ...]:
        first = self._message_count
        self._message_count += len(sizes)
        return tuple(f"{name} ".encode() + message(first + number, size) for number, size in enumerate(sizes))

    def _add(self, work: Work) -> Work:
        self.works[work.name] = work
        self._fates[work.name] = self._powerless[work.name] = Fate.ABSENT
        self.under_way = work.name
        return work

    def _is_durable(self, name: str) -> None:
        for work in self.works.values():
            if work.queues == {name}:
                self._powerless[work.name] = self._fates[work.name]

    def _is(self, key: str, fate: Fate, call: str) -> None:
        self._fates[key] = self._powerless[key] = fate
        self.return_(call)

    def _committed(self, work: Work, offsets: Mapping[str, range], *, is_strong: bool) -> None:
        for name, payloads in work.puts.items():
            assert len(offsets[name]) in {0, len(payloads)}, "0: the participant could not follow yet"
            self.offsets[name].update(zip(payloads, offsets[name], strict=False))
            self._log_order[name].append(work.name)
        self._fates[work.name] = Fate.COMMITTED
        self._powerless[work.name] = Fate.COMMITTED
        if not is_strong:
            self._powerless[work.name] |= Fate.ABSENT
            due = self.policy.commits
            for name in work.queues:  # one side of one queue
                waiting = self._weak.setdefault((name, "puts" if work.puts else "acks"), [])
                waiting.append(work.name)
                for synced in waiting[: -due + 1 or None] if due is not None else ():
                    self._powerless[synced] = Fate.COMMITTED
        self.return_(f"commit({work.name})")

    def return_(self, call: str) -> None:
        """Note what holds now that a call has returned."""
        order = {name: tuple(works) for name, works in self._log_order.items()}
        count = len(self.storage.log)
        self.segments[-1].moments.append(Moment(count, call, dict(self._fates), dict(self._powerless), order))
        self.under_way = None

    def crash_points(self) -> Iterator[tuple[SimulatedStorage, Moment, Moment, str]]:
        """Yield the disk after each single operation, with the moments around it and a name for the trace."""
        for life, segment in enumerate(self.segments):
            begin = segment.moments[0].operation_count
            for count, storage in enumerate(segment.storage.replay()):
                if count >= begin:
                    before, under_way = segment.around(count)
                    last = segment.storage.log[count - 1] if count else None
                    where = f"after {before.call}, life {life}, operation {count} ({last!r:.120})"
                    yield storage, before, under_way, where

    def crash_points_of_interest(self) -> Iterator[int]:
        """Yield the numbers of those crash points at which a transaction has begun to be decided or prepared."""
        number = 0
        for segment in self.segments:
            begin = segment.moments[0].operation_count
            for count in range(begin, len(segment.storage.log) + 1):
                before, under_way = segment.around(count)
                if before.killed != under_way.killed:
                    yield number
                number += 1


def open_queue(
    storage: SimulatedStorage,
    name: str,
    policy: FlushPolicy,
    *,
    mode: Mode = "exclusive",
    group: str = "default",
    clock: FakeClock | None = None,
) -> PersistentQueue:
    """Open a queue of a run on a disk, with data files as small as they can be."""
    return PersistentQueue(
        Path("/") / name,
        mode=mode,
        group=group,
        flush=policy,
        data_file_bytes=DATA_FILE_BYTES,
        storage=storage,
        clock=clock or FakeClock(),
    )
