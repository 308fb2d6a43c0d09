"""One storage call of an operation fails: the error is the right one, and the disk and the handle say what it said.

After the call the disk is judged as a kill leaves it, and as a loss of power does that takes all it can. Then the
handle continues: without the fault, or with it where it stays for ever. A flush that returns is held to its word by one
more loss of power: so a sync that failed and was taken for done shows.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from holdfast import (
    ClosedError,
    CommitUnknownError,
    DiskFullError,
    Empty,
    FlushPolicy,
    HoldfastError,
    NotFoundError,
    PersistentQueue,
    PoisonedError,
    RetryableError,
    StorageError,
)
from proof.faults.expected import Expected
from proof.faults.kinds import FAULTS, FULL, STARTING, Fault
from proof.faults.operation import Call, Operation, Promise
from proof.faults.views import (
    Key,
    View,
    Viewer,
    ViolationError,
    fingerprint,
    look,
    name_of,
    soft,
    takeable,
)
from proof.faults.world import World, begin_life
from support.processes.thread_starts import StartFaults, starting
from support.storages.simulated_storage import SimulatedStorage

NEVER = 10**9  # a call that no operation gets to
LEASES_OVER_SECONDS = 10_000.0
ADVICE = (
    "reopen",
    "try again",
    "check the disk",
    "free disk space",
    "commit again",
    "open it again",
    "check whether",
    "raise the limit",
)
OWNER_FAILED: dict[str, tuple[type[HoldfastError], ...]] = {"exclusive": (), "shared": (RetryableError,)}
"""What a client says whose owner will not work any more: here no other one comes."""

GO_ON = b"go on"
STAYS = b"stays"
GO_ON_NAME = name_of(GO_ON)


@dataclass(frozen=True)
class Case:
    """One operation under one policy, in which one call fails."""

    operation: Operation
    policy_name: str
    policy: FlushPolicy
    fault: Fault
    call: int

    def __str__(self) -> str:
        return f"{self.operation}, {self.policy_name}, {self.fault} at call {self.call}"


@dataclass
class Ground:
    """What an operation starts from, and what it does where nothing fails.

    Attributes
    ----------
    disk : SimulatedStorage
        Where it starts.
    base : View
        What a loss of power leaves before it.
    before, after : View
        What a kill leaves before and after it.
    call_counts : dict of frozenset to int
        How many calls it makes, by the verbs that are counted.
    states : list of SimulatedStorage
        The disk behind each of its changes: where recovery begins.
    judged : set
        What came out of cases that were judged: the same need not be judged again.
    """

    operation: Operation
    policy: FlushPolicy
    disk: SimulatedStorage
    base: View = field(default_factory=dict)
    before: View = field(default_factory=dict)
    after: View = field(default_factory=dict)
    call_counts: dict[frozenset[str], int] = field(default_factory=dict)
    states: list[SimulatedStorage] = field(default_factory=list)
    judged: set[tuple[object, ...]] = field(default_factory=set)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The queues of the operation."""
        return self.operation.paths

    def counted(self) -> dict[Key, set[str | None]]:
        """Return what messages say as well that were in hand when the operation was cut short."""
        if not self.operation.may_count:
            return {}
        taken = [key for key, state in self.before.items() if state.endswith("#0") and key not in self.after]
        return {key: {self.before[key].removesuffix("0") + "1"} for key in taken}


def build_disk(operation: Operation, policy: FlushPolicy) -> SimulatedStorage:
    """Make the disk on which an operation starts."""
    begin_life("build")
    world = World(SimulatedStorage(), policy, operation.paths)
    operation.build(world)
    world.close()
    return world.storage


def survey(operation: Operation, policy: FlushPolicy, viewer: Viewer) -> Ground:
    """Run an operation where nothing fails: count its calls, and see what it does."""
    ground = Ground(operation, policy, build_disk(operation, policy))
    begin_life("operation")
    world = World(ground.disk.crash_keeping_all(), policy, operation.paths)
    call = operation.ready(world)
    storage, first = world.storage, len(world.storage.log)
    ground.before = viewer.view(storage, policy, ground.paths)
    ground.base = viewer.view(storage.crash_dropping_unsynced(), policy, ground.paths)
    verbs: Counter[str] = Counter()
    storage.before_verb = lambda verb, path: verbs.update((verb,))
    with starting(StartFaults(NEVER, forever=False)) as starts:
        call()
    storage.before_verb = None
    verbs.update(dict.fromkeys(STARTING, len(starts.tried)))
    for fault in FAULTS:
        ground.call_counts[fault.verbs] = sum(verbs[verb] for verb in fault.verbs)
    ground.after = viewer.view(storage, policy, ground.paths)
    check_power(ground, storage, viewer, Expected((ground.after,)), is_done=True)
    ground.states = states_of(storage, first)
    world.close()
    return ground


def states_of(storage: SimulatedStorage, first: int) -> list[SimulatedStorage]:
    """Return the disk behind each change of an operation, the one before it too."""
    last = len(storage.log)
    replay = enumerate(storage.replay())
    return [disk.crash_keeping_all() for count, disk in replay if first <= count <= last]


def cases(ground: Ground, policy_name: str) -> Iterator[Case]:
    """Yield every case of an operation: each call, each fault that can strike there."""
    for fault in FAULTS:
        for call in range(1, ground.call_counts[fault.verbs] + 1):
            yield Case(ground.operation, policy_name, ground.policy, fault, call)


# -- One case ----------------------------------------------------------------------------------------------------------


class Trial:
    """One case, run and judged.

    Parameters
    ----------
    case : Case
        What fails.
    ground : Ground
        What the operation does where nothing fails.
    viewer : Viewer
        Recovers what is left.
    """

    def __init__(self, case: Case, ground: Ground, viewer: Viewer) -> None:
        self._operation, self._fault = case.operation, case.fault
        self._case = case
        self._ground = ground
        self._viewer = viewer
        begin_life("operation")
        self._world = World(ground.disk.crash_keeping_all(), case.policy, ground.paths)
        self._error: HoldfastError | None = None

    def run(self) -> None:
        """Run it; raises ViolationError, or whatever else came out that is not ours."""
        world = self._world
        try:
            call = self._operation.ready(world)
            with self._fault.striking(world.storage, self._case.call) as struck_count:
                self._error = attempt(call, self._fault)
            if not struck_count():
                raise ViolationError("the fault did not strike: the operation is not the same each time")
            if self._is_known(fingerprint(world.storage), self._fault.verbs, self._case.call, self._fault.is_forever):
                return  # as with the fault before: ENOSPC, EDQUOT and EROFS differ in the text alone
            self._judge(world.storage, self._expected())
            if self._fault.is_forever and not self._operation.again:
                use_while_failing(world, self._fault)
                taken = None
            else:
                taken = self._go_on(call)
            world.close()
            if world.storage._locks:
                raise ViolationError("a lock is left behind")
            self._come_back(taken)
        finally:
            world.close()

    def _is_known(self, *outcome: object) -> bool:
        """Whether the same has come out before, and was judged."""
        kind = "done" if self._error is None else "refused" if self._is_refused else "failed"
        key = (kind, *outcome)
        is_known = key in self._ground.judged
        self._ground.judged.add(key)
        return is_known

    @property
    def _is_refused(self) -> bool:
        return isinstance(self._error, CommitUnknownError | PoisonedError)

    def _expected(self) -> Expected:
        """Return what a kill may leave, by what the call has said."""
        ground = self._ground
        either: dict[Key, set[str | None]] = {key: {None, ground.after.get(key)} for key in self._operation.leaves}
        either.update(ground.counted())
        if self._error is None:
            return Expected((ground.after,))
        if self._operation.may_be_in_part:
            return Expected((ground.before,)).without(ground.before, ground.after)
        unknown = self._operation.is_whole or isinstance(self._error, CommitUnknownError)
        return Expected((ground.before, ground.after) if unknown else (ground.before,), either)

    def _judge(self, storage: SimulatedStorage, expected: Expected) -> None:
        """Judge what a kill leaves, and what a loss of power does that takes all it can."""
        ground, viewer = self._ground, self._viewer
        found = viewer.view(storage, ground.policy, ground.paths)
        if self._operation.closes:
            expected.softened().check(soft(found), "killed")  # giving back is a note, which may be lost
        else:
            expected.check(found, "killed")
        is_undone = self._error is not None and not self._is_refused and not self._operation.opens
        if is_undone and viewer.torn_bytes(storage, ground.policy, ground.paths):
            raise ViolationError("killed: what was written in part was not taken back")
        check_power(ground, storage, viewer, expected, is_done=self._error is None)

    def _go_on(self, call: Call) -> dict[Path, set[str]] | None:
        """Go on with the same handle: it does its work, or says that it has to be opened again."""
        operation, world = self._operation, self._world
        if operation.closes or (operation.opens and self._error is not None):
            return None
        expected = self._expected()
        found: dict[Path, set[str]] = {}
        refusals: tuple[type[HoldfastError], ...] = (PoisonedError, CommitUnknownError, *OWNER_FAILED[world.mode])
        try:
            if operation.again and self._error is not None:
                with suppress(NotFoundError):
                    call()
                expected = Expected((self._ground.after,))
                check_power(self._ground, world.storage, self._viewer, expected, is_done=True)
            for path, queue in world.queues.items():
                found[path] = finish_all(world, queue)
        except refusals as refusal:
            is_told = self._is_refused or self._fault.is_forever or operation.syncs_behind
            if not is_told and len(world.queues) == 1:  # of two, one may have to be opened again
                raise ViolationError(f"the handle is of no use any more: {refusal}") from refusal
            return None
        for path, names in found.items():
            allowed = [takeable(view, str(path)) | {GO_ON_NAME} for view in expected.views]
            if names not in allowed:
                raise ViolationError(
                    f"{path}: it hands out {sorted(names)}, not {' or '.join(map(str, map(sorted, allowed)))}"
                )
        return found

    def _come_back(self, taken: dict[Path, set[str]] | None) -> None:
        """Open the disk again without faults, with power and without: what was said holds, and it works."""
        storage, ground = self._world.storage, self._ground
        if self._is_known(fingerprint(storage), str(taken)):
            return
        for what, disk in (("killed", storage.crash_keeping_all()), ("power lost", storage.crash_dropping_unsynced())):
            begin_life("afterwards")
            again = World(disk, ground.policy, ground.paths)
            again.clock.advance(2 * LEASES_OVER_SECONDS)
            try:
                again.open_all()
                seen = look(again)
                for path, names in (taken or {}).items():
                    place = (str(path), "message")
                    back = names & {key[2] for key, state in seen.items() if key[:2] == place and state[:4] != "dead"}
                    if back:
                        raise ViolationError(f"{what}: {sorted(back)} were finished and flushed, and are there again")
                    if (*place, name_of(STAYS)) not in seen:
                        raise ViolationError(f"{what}: {path} has lost what was put and flushed behind the fault")
                for queue in again.queues.values():
                    finish_all(again, queue, b"the last")
            finally:
                again.close()


def check_power(
    ground: Ground, storage: SimulatedStorage, viewer: Viewer, expected: Expected, *, is_done: bool
) -> None:
    """Judge a loss of power: what may be lost is what waits for a sync by the policy, and nothing else."""
    operation, policy = ground.operation, ground.policy
    found = soft(viewer.view(storage.crash_dropping_unsynced(), policy, ground.paths))
    if operation.opens and not is_done and not policy.syncs_every_commit:
        return  # nothing was promised of what the killed process had not synced
    is_durable = is_done and operation.is_durable(policy)
    if not is_durable and not (policy.syncs_every_commit and operation.promise is not Promise.NEVER):
        expected = Expected((*expected.views, ground.before), expected.either)
    expected = expected.softened()
    for key in () if is_durable else operation.leaves:
        expected.either.setdefault(key, set()).update((soft(ground.before).get(key), soft(ground.after).get(key)))
    base, before = soft(ground.base), soft(ground.before)
    for key in base.keys() | before.keys():
        if base.get(key) != before.get(key):  # waits for a sync since before the call
            expected.either.setdefault(key, set()).add(base.get(key))
    expected.check(found, f"power lost{', behind a call that had returned' if is_done else ''}")


def attempt(call: Call, fault: Fault) -> HoldfastError | None:
    """Make the call; return the error, which has to be the right one."""
    try:
        call()
    except StorageError as error:
        check_error(error, fault)
        return error
    return None


def check_error(error: StorageError, fault: Fault) -> None:
    """The class says what to do, the text says it too, in one line; and it survives pickling."""
    text = str(error)
    if not fault.is_of_storage:
        raise ViolationError(f"it fails for want of a thread: {text}") from error
    kind = CommitUnknownError if isinstance(error, CommitUnknownError) else type(error)
    if kind not in (StorageError, DiskFullError, CommitUnknownError, PoisonedError):
        raise ViolationError(f"{kind.__name__} is not about a disk that fails: {text}") from error
    if kind is DiskFullError and fault.error not in FULL:
        raise ViolationError(f"the disk is not full: {text}") from error
    if kind is StorageError and fault.error in FULL and "is decided, and" not in text:  # the queue's log says why
        raise ViolationError(f"the disk is full, and nobody says so: {text}") from error
    if "\n" in text or not any(advice in text.lower() for advice in ADVICE):
        raise ViolationError(f"not a line that says what to do: {text!r}") from error
    if str(pickle.loads(pickle.dumps(error))) != text:  # our own
        raise ViolationError(f"{kind.__name__} does not survive pickling") from error


def use_while_failing(world: World, fault: Fault) -> None:
    """Use the handles while everything fails: errors are ours, and nothing hangs."""
    with fault.striking(world.storage, 1):
        for queue in world.queues.values():
            for call in (partial(queue.put, GO_ON), partial(queue.receive, timeout=0), queue.flush, queue.close):
                try:
                    call()
                except (Empty, ClosedError):
                    pass
                except OWNER_FAILED[world.mode]:
                    pass
                except StorageError as error:
                    check_error(error, fault)


def finish_all(world: World, queue: PersistentQueue, last: bytes = GO_ON) -> set[str]:
    """Put one more, take and finish everything, put one that stays, flush; return the names of what came."""
    taken: list[bytes] = []
    world.clock.advance(LEASES_OVER_SECONDS)
    queue.prepared()  # which does what was decided meanwhile, and could not be done
    queue.put(last)
    queue.resume()
    with suppress(Empty):
        while True:
            taken += queue.get_many(1000, timeout=0)
    queue.put(STAYS)
    queue.flush()
    names = [*map(name_of, taken), *(name_of(letter.payload) for letter in queue.dead.list())]
    if len(set(names)) != len(names):
        raise ViolationError(f"something came twice: {sorted(names)}")
    return set(names)
