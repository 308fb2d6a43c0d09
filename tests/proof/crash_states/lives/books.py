"""The books of a life: two queues on a simulated disk, one process after the other, and what each call has done.

Beside each queue stands the model of its group; after each call the history says what a crash from then on may leave.
Queue "a" is the one that things are done to; "b" is there for transactions over two. What is done to them is in the
modules ``life_*.py``, each of which adds its verbs to those of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from holdfast import Delivery, FlushPolicy, PersistentQueue, Transaction
from proof.crash_states.asked import PLAIN, Asked, AskingGroup
from proof.crash_states.history import History, Moment, Part, Side, State
from proof.crash_states.opening import CLOCK, log_of, open_queue, open_slow, slow_policy, take_apart
from support.builders.clocks import START_NS
from support.owners.machine_link import Machine, Machines
from support.storages.simulated_storage import SimulatedStorage

A, B = "a", "b"
LOG, COMMITS, PROGRESS, PREPARED = (A, Part.LOG), (A, Part.COMMITS), (A, Part.PROGRESS), (A, Part.PREPARED)
SLOW_PROGRESS, JOINT = (A, Part.SLOW), (A, Part.JOINT)
Way = Literal["alone", "owner", "client"]
Place = tuple[int, int]
"""The number of a disk, and how many operations it has seen."""

ROLLS_BYTES = 7000
"""Two of them and a little more do not fit into one data file."""

SMALL_BYTES = 600
"""Crosses a border between sectors."""

FULL_BYTES = 1900
"""Two of them are copied, and fill a segment of the prepared log."""

LARGE_BYTES = 16 * 2**10 // 4
"""A transaction that puts more is decided by a synced frame, or adopted."""


@dataclass(frozen=True)
class Segment:
    """One life of a disk, from its beginning or from a kill, and what was true as its calls returned."""

    storage: SimulatedStorage
    moments: list[Moment]

    def around(self, operation_count: int) -> tuple[Moment, Moment]:
        """Return the last moment at or before a crash, and the one that was under way (or the same)."""
        at = max(i for i, moment in enumerate(self.moments) if moment.operation_count <= operation_count)
        before = self.moments[at]
        under_way = before.operation_count < operation_count and at + 1 < len(self.moments)
        return before, self.moments[at + 1] if under_way else before


@dataclass
class InHand:
    """The one transaction that is under way; all that it puts asks for the same.

    ``received`` is what it has taken and does not acknowledge, ``given`` what was received before, of its ``acks``.
    """

    handle: Transaction
    puts: list[bytes] = field(default_factory=list)
    acks: list[int] = field(default_factory=list)
    asked: Asked = PLAIN
    is_prepared: bool = False
    received: list[int] = field(default_factory=list)
    given: dict[int, Delivery] = field(default_factory=dict)

    @property
    def taken(self) -> list[int]:
        """What it gives back itself if it does not commit."""
        return sorted({*self.acks, *self.received} - self.given.keys())


@dataclass(frozen=True)
class Held:
    """What is in doubt: what it puts into a queue, and what it has in hand.

    ``is_part`` of a joint commit, which decides it; ``beside``: the application of one over several queues.
    """

    puts: list[bytes] = field(default_factory=list)
    acks: list[int] = field(default_factory=list)
    asked: Asked = PLAIN
    is_part: bool = False
    queue: str = A
    beside: str = ""


class Books:
    """Two queues under one flush policy, and a second group of the first one under its own.

    Attributes
    ----------
    way : "alone", "owner" or "client"
        How the handles reach the queues: without others, as the owner of a shared one, or through that.
    machines : Machines
        The owners of shared queues.
    """

    def __init__(self, policy: FlushPolicy) -> None:
        self.policy = policy
        self.way: Way = "alone"
        self._is_group_open = True  # an owner opens a group, and syncs its progress, when it is first asked to
        self.machines = Machines(Machine)
        self.history = History()
        self.groups: dict[str, AskingGroup | None] = {}
        self.queues: dict[str, PersistentQueue] = {}
        self.slow: PersistentQueue | None = None
        self.slow_group: AskingGroup | None = None
        self.slow_in_hand: dict[int, Delivery] = {}
        self.in_hand: dict[int, Delivery] = {}
        self.tx: InHand | None = None
        self.held: dict[str, Held] = {}
        self.version: int | None = None
        self.finished_ids: set[str] = set()
        self.now_ns = START_NS
        CLOCK.set_time_ns(self.now_ns)
        self._commits: dict[Side, list[int]] = {}
        self.segments = [Segment(SimulatedStorage(), [])]
        self._return("nothing")

    @property
    def storage(self) -> SimulatedStorage:
        """The disk as it is now."""
        return self.segments[-1].storage

    @property
    def queue(self) -> PersistentQueue:
        """The one that things are done to."""
        return self.queues[A]

    @property
    def data(self) -> Path:
        """Where its data files are."""
        return self.queue.path / "data"

    def mark(self) -> Place:
        """Return where this life is; its disk is replayed from here on."""
        self.storage.replay_from_here()
        return len(self.segments) - 1, len(self.storage.log)

    def past_of(self, other: Books) -> None:
        """Have the same past as another life, whose queues were closed, and go on from there."""
        assert not other.queues, "close them first"
        self.history = other.history.copy()
        self.groups, self.slow_group = deepcopy(other.groups), deepcopy(other.slow_group)
        self.way = other.way
        self.held, self.version, self.now_ns = dict(other.held), other.version, other.now_ns
        self.finished_ids = set(other.finished_ids)
        CLOCK.set_time_ns(self.now_ns)
        self.segments = [Segment(other.storage.crash_keeping_all(), [])]
        self._return("the past")

    def end(self) -> None:
        """Close everything, on a disk that nobody looks at any more."""
        if self.slow is not None:
            self.slow.close()
        for queue in self.queues.values():
            queue.close()
        self._take_apart()

    def _take_apart(self) -> None:
        if self.slow is not None:
            take_apart(self.slow)
            self.slow = None
        while self.queues:
            queue = self.queues.popitem()[1]
            if queue.mode == "exclusive":
                take_apart(queue)

    # -- Opening and closing -----------------------------------------------------------------------------------------

    def open(self, name: str = A) -> None:
        """Open a queue; what it shows is durable from here on."""
        if name not in self.history.payloads:
            self.history.add_queue(name)
            self.groups[name] = None
        self.machines.are_own = self.way == "owner"
        self.queues[name] = open_queue(
            self.storage, name, self.policy, "exclusive" if self.way == "alone" else "shared"
        )
        group = self.groups[name]
        if group is not None:
            group.reopen()
        if name == A:
            self._is_group_open = self.way == "alone"
        self._all_durable(name)
        self._return(f"open({name})")
        if name == A and self.slow_group is not None:
            self._open_slow()

    def _open_slow(self) -> None:
        assert self.slow_group is not None
        self.slow = open_slow(self.queue, self.policy)
        self.slow_group.reopen()
        self._all_durable(A, Part.SLOW)
        self._return("open_slow")

    def close(self) -> None:
        """Close everything in order: what was taken comes back, a prepared transaction stays."""
        if self.slow is not None:
            self._close_slow()
        for name, queue in self.queues.items():
            queue.close()
            self._handed_back(name)
            self._all_durable(name)
            self._return(f"close({name})")
        self._take_apart()
        self.tx = None

    def _close_slow(self) -> None:
        assert self.slow is not None
        assert self.slow_group is not None
        self.slow.close()
        self.slow_group.release(list(self.slow_in_hand))
        self.slow_in_hand.clear()
        self._happened({SLOW_PROGRESS: self.slow_group.state()}, durable=True)
        self._return("close_slow")
        take_apart(self.slow)
        self.slow = None

    def reopen(self) -> None:
        """Close everything and open it again."""
        self.close()
        for name in self.groups:
            self.open(name)

    def _handed_back(self, name: str) -> None:
        """Closing says that nobody has failed with what was in hand, or in an open transaction."""
        group = self.groups[name]
        if name != A or group is None:
            return
        tx = None if self.tx is None or self.tx.is_prepared else self.tx
        in_transaction, given = ([], []) if tx is None else (tx.taken, list(tx.given))
        for offsets in (in_transaction, [*self.in_hand, *given]):
            if offsets:
                group.release(offsets)
                self._happened({PROGRESS: group.state()})
        self.in_hand.clear()

    def kill(self) -> None:
        """Let the process die: nothing that was written is lost. The next one continues."""
        storage = self.storage.crash_keeping_all()
        self.end()
        self.in_hand, self.slow_in_hand, self.tx = {}, {}, None
        self.segments.append(Segment(storage, [replace(self.segments[-1].moments[-1], operation_count=0, call="kill")]))
        for name in self.groups:
            self.open(name)

    def flush(self) -> None:
        """Sync everything."""
        self.queue.flush()
        self._all_durable(A, Part.LOG, Part.PROGRESS)
        self._return("flush")

    def let_pass(self, seconds: int) -> None:
        """Let time pass by the wall clock: leases go by the other one."""
        self.now_ns += seconds * 10**9
        CLOCK.set_time_ns(self.now_ns)
        self._return("time")

    # -- Keeping the books -------------------------------------------------------------------------------------------

    @property
    def held_offsets(self) -> frozenset[int]:
        """What prepared transactions have in hand."""
        return frozenset(offset for each in self.held.values() for offset in each.acks)

    def _reads_anew(self) -> None:
        """Note that who was retried may stand where it was put again: what was held is decided."""
        group = self.groups[A]
        if group is not None:
            group.may_read_anew()

    def _group(self) -> AskingGroup:
        """Return the group, which begins durably at its first use."""
        group = self.groups[A]
        if group is None:
            group = self.groups[A] = self._begun(self.queue.stats().first_offset)
            self._happened({PROGRESS: group.state()}, durable=True)
        return group

    def _begun(self, start: int) -> AskingGroup:
        """Return a group that begins now: what is not there any more is none of its business."""
        there = {offset for offset, _ in log_of(self.queue)}
        end = len(self.history.payloads[A])
        return AskingGroup(start, finished={offset for offset in range(start, end) if offset not in there})

    def _happened(
        self,
        states: Mapping[Side, State],
        finished: dict[str, frozenset[int]] | None = None,
        *,
        durable: bool = False,
    ) -> None:
        if PROGRESS in states and not self._is_group_open:
            self._is_group_open = True
            self.history.is_durable(PROGRESS)  # what it showed as it was opened
        self.history.happened(states, finished, durable=durable)

    def _all_durable(self, name: str, *parts: Part) -> None:
        """Note that parts of a queue are durable, or all that its handle has opened."""
        opened = (part for part in ALL_OF_A_HANDLE if self._is_group_open or part is not Part.PROGRESS)
        self.history.is_durable(*((name, part) for part in parts or opened))

    def _committed(self, side: Side) -> None:
        """Note what the policy promises to have synced: fewer commits than it counts wait for a sync."""
        commits = self._commits.setdefault(side, [])
        commits.append(self.history.number(side))
        due = (slow_policy(self.policy) if side[1] is Part.SLOW else self.policy).commits
        if due is not None and len(commits) >= due:
            self.history.is_durable(side, number=commits[-due])

    def _return(self, call: str) -> None:
        self.segments[-1].moments.append(self.history.moment(len(self.storage.log), call, self.now_ns))


ALL_OF_A_HANDLE = tuple(part for part in Part if part is not Part.SLOW)
"""What a handle that owns both sides makes durable; the second group has its own."""
