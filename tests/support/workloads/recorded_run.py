"""Runs a queue on a simulated disk beside the model, and notes after each call what a crash from here on may leave.

A *moment* says for one length of the storage's log: which messages and which progress had been acknowledged, and which
of it the flush policy calls durable. Between two moments a call is under way: it may have happened or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import Delivery, DeliveryBatch, FlushPolicy, PersistentQueue
from holdfast.queue.options.queue_options import Mode
from support.builders.clocks import NS_PER_SECOND, FakeClock
from support.models.model import GroupState, ModelGroup, ModelQueue
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
DATA_FILE_BYTES = 16 * 2**10  # the smallest: two records of a few KiB fill it


@dataclass(frozen=True)
class Moment:
    """What had been acknowledged when a call returned.

    Attributes
    ----------
    operation_count : int
        Length of the storage's log.
    call : str
        What returned.
    message_count, durable_count : int
        Messages put so far, and how many of them survive the loss of power.
    states, durable_states : dict of str to int
        For each group the number of its latest state, and of the state behind which it does not fall back.
    """

    operation_count: int
    call: str
    message_count: int = 0
    durable_count: int = 0
    states: dict[str, int] = field(default_factory=dict)
    durable_states: dict[str, int] = field(default_factory=dict)


@dataclass
class Segment:
    """One life of a simulated disk: from its making, or from a kill, to the next kill; ``end`` is its last operation.

    The handles of a killed process are closed too, behind that.
    """

    storage: SimulatedStorage
    moments: list[Moment]
    end: int | None = None

    def operation_counts(self) -> range:
        """Return how many operations there may have been at a crash in this life."""
        last = len(self.storage.log) if self.end is None else self.end
        return range(self.moments[0].operation_count, last + 1)

    def around(self, operation_count: int) -> tuple[Moment, Moment]:
        """Return the last moment at or before a crash, and the one that was under way (or the same)."""
        at = max(i for i, moment in enumerate(self.moments) if moment.operation_count <= operation_count)
        before = self.moments[at]
        under_way = before.operation_count < operation_count and at + 1 < len(self.moments)
        return before, self.moments[at + 1] if under_way else before


class RecordedRun:
    """A queue, its model, and the moments of their common life. Deliveries in hand are kept by offset.

    Parameters
    ----------
    policy : FlushPolicy
        Of the queue.
    """

    def __init__(self, policy: FlushPolicy) -> None:
        self.policy = policy
        self.clock = FakeClock()
        self.model = ModelQueue()
        self.boundaries = {0}
        self.states: dict[str, list[GroupState | None]] = {}
        self.in_hand: dict[int, Delivery] = {}
        self.segments = [Segment(SimulatedStorage(), [Moment(0, "nothing")])]
        self._durable_count = 0
        self._durable_states: dict[str, int] = {}
        self._put_commits: list[int] = []
        self._group_commits: list[int] = []
        self.group = "default"
        self.queue: PersistentQueue | None = None
        self.batch: DeliveryBatch | None = None

    @property
    def storage(self) -> SimulatedStorage:
        """The disk as it is now."""
        return self.segments[-1].storage

    @property
    def _model_group(self) -> ModelGroup:
        return self.model.groups[self.group]

    # -- Calls -------------------------------------------------------------------------------------------------------

    def open(self, group: str = "default") -> None:
        """Open the queue; what it shows is durable from here on."""
        self.group = group
        is_new = not self.storage.tree()
        self.queue = open_queue(self.storage, self.policy, group=group, clock=self.clock)
        if is_new and group != "default":
            self._create(group, 0)
        self.model.reopen()
        self.in_hand.clear()
        self._put_commits, self._group_commits = [], []
        self._durable_count = self.model.end
        if group in self.model.groups:
            self._note_progress(group, durable=True)
        self._return(f"open({group})")

    def put(self, *sizes: int) -> None:
        """Put one message of each size: one alone, several as a batch."""
        queue = self._open_queue()
        payloads = [message(self.model.end + number, size) for number, size in enumerate(sizes)]
        before, files_before = self.model.end, self._last_data_file()
        offsets = self.model.put(payloads)
        self.boundaries.add(self.model.end)
        got = range(first := queue.put(payloads[0]), first + 1) if len(sizes) == 1 else queue.put_many(payloads)
        assert got == offsets, f"offsets {got}, not {offsets}"
        if self._last_data_file() != files_before:
            self._durable_count = before  # the file before is sealed
        self._put_commits.append(self.model.end)
        self._durable_count = max(self._durable_count, self._surely_synced(self._put_commits))
        self._return(f"put{sizes}")

    def get(self, count: int = 1) -> None:
        """Take and acknowledge: ``get`` for one message, ``get_many`` for more."""
        queue = self._open_queue()
        self._begin_group()
        payloads = [queue.get(block=False)] if count == 1 else queue.get_many(count, timeout=0)
        offsets = self._offsets_of(payloads)
        self._model_group.check_order(offsets, self.model.end, self.clock.time_ns())
        self._model_group.hand_out(offsets)
        self._model_group.finish(offsets)
        self._return_finished(f"get({count})")

    def receive(self, count: int = 1) -> None:
        """Lease messages and keep them in hand."""
        queue = self._open_queue()
        self._begin_group()
        self.batch = deliveries = queue.receive_many(count, timeout=0)
        offsets = [delivery.offset for delivery in deliveries]
        assert [delivery.payload for delivery in deliveries] == [self.model.payloads[offset] for offset in offsets]
        self._model_group.check_order(offsets, self.model.end, self.clock.time_ns())
        self._model_group.check_alone(offsets)
        assert [delivery.delivery_count for delivery in deliveries] == self._model_group.deliver(offsets)
        self.in_hand.update({delivery.offset: delivery for delivery in deliveries})
        self._note_progress(self.group)
        self._return(f"receive({count})")

    def ack(self, *offsets: int) -> None:
        """Acknowledge messages in hand, one by one."""
        for offset in offsets or tuple(self.in_hand):
            self.in_hand.pop(offset).ack()
            self._model_group.finish([offset])
            self._return_finished(f"ack({offset})")

    def ack_together(self, *offsets: int) -> None:
        """Acknowledge messages in hand in one step: all of them, or none."""
        assert self.batch is not None
        self.batch.ack([self.in_hand.pop(offset) for offset in offsets])
        self._model_group.finish(offsets)
        self._return_finished(f"ack_together{offsets}")

    def nack(self, *offsets: int, delay: float = 0) -> None:
        """Give messages in hand back that have failed, one by one."""
        until_ns = self.clock.time_ns() + round(delay * NS_PER_SECOND) if delay else 0
        for offset in offsets or tuple(self.in_hand):
            self.in_hand.pop(offset).nack(delay=delay)
            self._model_group.give_back([offset], until_ns)
            self._note_progress(self.group)
            self._return(f"nack({offset}, {delay})")

    def release(self, *offsets: int) -> None:
        """Give messages in hand back that were not tried, one by one."""
        for offset in offsets or tuple(self.in_hand):
            self.in_hand.pop(offset).release()
            self._model_group.release([offset])
            self._note_progress(self.group)
            self._return(f"release({offset})")

    def reject(self, *offsets: int) -> None:
        """Make messages in hand dead letters, one by one; as durable as an acknowledgement."""
        for offset in offsets or tuple(self.in_hand):
            self.in_hand.pop(offset).reject("no use")
            self._model_group.bury([offset])
            self._return_finished(f"reject({offset})")

    def retry(self, *offsets: int) -> None:
        """Have dead letters come again, in one step."""
        assert self._open_queue().dead.retry(offsets) == len(offsets)
        self._model_group.retry(offsets, self.clock.time_ns())
        self._return_finished(f"retry{offsets}")

    def flush(self) -> None:
        """Sync everything."""
        self._open_queue().flush()
        self._make_all_durable()
        self._return("flush()")

    def create(self, name: str) -> None:
        """Make a group that starts at the oldest message; its making is durable under every policy."""
        self._create(name, self._open_queue().groups.create(name))
        self._return(f"groups.create({name})")

    def delete(self, name: str) -> None:
        """Delete a group, durably under every policy."""
        self._open_queue().groups.delete(name)
        del self.model.groups[name]
        self._note_progress(name, durable=True)
        self._return(f"groups.delete({name})")

    def close(self) -> None:
        """Close the queue in order: all of it is durable then."""
        self._open_queue().close()
        self.queue = None
        if self.in_hand:  # nobody has failed
            self._model_group.release(self.in_hand)
        self._make_all_durable()
        self._return("close()")

    def kill(self) -> None:
        """Let the process die: nothing is lost, nothing more is written. The next life of the disk starts here."""
        killed = self._open_queue()
        last = self.segments[-1].moments[-1]
        storage = self.storage.crash_keeping_all()
        self.segments[-1].end = len(self.storage.log)
        killed.close()  # on the disk of its own life, which nobody looks at any more
        base = Moment(0, "kill", last.message_count, last.durable_count, last.states, last.durable_states)
        self.segments.append(Segment(storage, [base]))
        self.queue = None

    # -- Keeping the books -------------------------------------------------------------------------------------------

    def _open_queue(self) -> PersistentQueue:
        assert self.queue is not None, "open it first"
        return self.queue

    def _last_data_file(self) -> str:
        return max(self.storage.list(ROOT / "data"), default="")

    def _surely_synced(self, commits: list[int]) -> int:
        """Return the last commit that the policy promises to have synced: fewer than ``commits`` of it wait for one."""
        due = self.policy.commits
        return commits[-due] if due is not None and len(commits) >= due else 0

    def _begin_group(self) -> None:
        """The default group begins to exist at its first use."""
        if self.group not in self.model.groups:
            self._create(self.group, self._open_queue().stats().first_offset)

    def _create(self, name: str, start: int) -> None:
        self.model.create(name, start)
        self._note_progress(name, durable=True)

    def _offsets_of(self, payloads: Sequence[bytes]) -> list[int]:
        """Return the offsets of messages, of which no two are alike but empty ones."""
        ready = self._model_group.ready(self.model.end, self.clock.time_ns())
        offsets = []
        for payload in payloads:
            found = [offset for offset in ready if self.model.payloads[offset] == payload]
            assert found, f"nobody waits for {payload!r}"
            ready.remove(found[0])
            offsets.append(found[0])
        return offsets

    def _note_progress(self, name: str, *, durable: bool = False) -> None:
        group = self.model.groups.get(name)
        states = self.states.setdefault(name, [None])
        states.append(None if group is None else group.state())
        if durable:
            self._durable_states[name] = len(states) - 1

    def _return_finished(self, call: str) -> None:
        self._note_progress(self.group)
        self._group_commits.append(len(self.states[self.group]) - 1)
        synced = self._surely_synced(self._group_commits)
        self._durable_states[self.group] = max(self._durable_states[self.group], synced)
        self._return(call)

    def _make_all_durable(self) -> None:
        self._durable_count = self.model.end
        if self.group in self.model.groups:
            self._note_progress(self.group, durable=True)

    def _return(self, call: str) -> None:
        latest = {name: len(states) - 1 for name, states in self.states.items()}
        durable = dict(self._durable_states)
        moment = Moment(len(self.storage.log), call, self.model.end, self._durable_count, latest, durable)
        self.segments[-1].moments.append(moment)


def open_queue(
    storage: SimulatedStorage,
    policy: FlushPolicy,
    *,
    mode: Mode = "exclusive",
    group: str = "default",
    clock: FakeClock | None = None,
) -> PersistentQueue:
    """Open the queue of a run on a disk, with data files as small as they can be."""
    return PersistentQueue(
        ROOT,
        mode=mode,
        group=group,
        flush=policy,
        data_file_bytes=DATA_FILE_BYTES,
        storage=storage,
        clock=clock or FakeClock(),
    )


def message(offset: int, size: int) -> bytes:
    """Return a payload of a size that no other offset has; an empty one is empty."""
    return (b"message %d of %d bytes; " % (offset, size) * (size // 16 + 1))[:size]
