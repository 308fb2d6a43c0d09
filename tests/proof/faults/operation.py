"""What an operation is: how its disk comes to be, what is made ready, the one call under test, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from holdfast import CommitUnknownError, FlushPolicy, HoldfastError, PersistentQueue, PoisonedError
from proof.faults.views import LEFT_OUT, Key, name_of
from proof.faults.world import FILTERED, GROUPS, LARGE, MAIN, World
from support.owners.second_groups import open_beside
from support.storages.refusals import refusing

LEFT_OUT_BYTES = 100
"""Payloads of this size, and larger ones, do not match the filter of a group that has one."""

Call = Callable[[], object]


class Promise(Enum):
    """What holds after a loss of power once the call has returned: docs/durability.md."""

    BY_POLICY = "as the flush policy says"
    ALWAYS = "kept, under every policy"
    NEVER = "not synced for its own sake"


@dataclass(frozen=True)
class Operation:
    """One call of the queue.

    Attributes
    ----------
    name : str
        What it is called in the report.
    build : callable
        Makes the disk, once; the world is closed behind it.
    ready : callable
        Opens and prepares what the call needs; returns the call.
    promise : Promise
        What survives the loss of power.
    paths : tuple of Path
        Its queues.
    again : bool
        Whether a call that raised may have happened, wholly or in part, and a second one does the rest, or refuses.
    is_whole : bool
        Whether it is there as a whole or not at all even then, as soon as all queues were opened again.
    leaves : tuple of Key
        What it may have made, or may be there again after a loss of power, once it has raised, and harms nobody.
    syncs_behind : bool
        Whether it syncs something behind what it has said: the next call may say that this has failed.
    may_count : bool
        Whether a call that raised may have had messages in hand: their delivery counts if the process is killed.
    opens, closes : bool
        Whether it is the opening or the closing itself.
    """

    name: str
    build: Callable[[World], None]
    ready: Callable[[World], Call]
    promise: Promise = Promise.BY_POLICY
    paths: tuple[Path, ...] = (MAIN,)
    again: bool = False
    is_whole: bool = False
    leaves: tuple[Key, ...] = ()
    syncs_behind: bool = False
    may_count: bool = False
    opens: bool = False
    closes: bool = False

    @property
    def may_be_in_part(self) -> bool:
        """Whether some of it may be there without the rest, once it has raised or was cut off."""
        return self.again and not self.is_whole

    def is_durable(self, policy: FlushPolicy) -> bool:
        """Whether a loss of power keeps what it did, once it has returned."""
        by_policy = self.promise is Promise.BY_POLICY and policy.syncs_every_commit
        return by_policy or self.promise is Promise.ALWAYS

    def __str__(self) -> str:
        return self.name


# -- Disks -------------------------------------------------------------------------------------------------------------


def nothing(world: World) -> None:
    """Leave the disk empty."""


def unread(world: World) -> None:
    """A queue that nobody has read from."""
    for path in world.paths:
        world.open(path).put_many([b"m%d" % number for number in range(6)])


def used(world: World) -> None:
    """Queues from which a message was taken, with seven left."""
    for path in world.paths:
        queue = world.queues.get(path) or world.open(path)
        queue.put(b"zero")
        queue.get(block=False)
        queue.put_many([b"m%d" % number for number in range(7)])


def with_dead(world: World) -> None:
    """A queue with two dead letters."""
    used(world)
    for delivery in world.take(2):
        delivery.reject("no use")


def nearly_full(world: World) -> None:
    """A queue whose data file has no room for another large message."""
    used(world)
    for number in range(2):
        world.queue.put(b"large %d" % number + LARGE)


def two_files(world: World) -> None:
    """A queue with two data files, the first of which has one message left."""
    nearly_full(world)
    world.queue.put(b"large 2" + LARGE)
    world.queue.get_many(8, timeout=0)


def sparse(world: World) -> None:
    """A queue with three data files in which a dead letter each lives; a second group needs one of them, too."""
    used(world)
    queue = world.queue
    queue.get_many(7, timeout=0)
    queue.groups.create("late")
    for number in range(3):
        queue.put_many([b"%d of %d" % (each, number) + bytes(2200) for each in range(12)])  # a file of its own
        for delivery in world.take(12):
            if delivery.payload.startswith(b"7 "):
                delivery.reject("no use")
            else:
                delivery.ack()
    queue.put(b"last")
    with open_beside(queue, "late") as late:
        late.get_many(8 + 7, timeout=0)
        late.receive(timeout=0)
        late.get_many(100, timeout=0)


def filtered(world: World) -> None:
    """A queue whose group leaves out every second message: those that are large."""
    (path,) = world.paths
    world.open(path, group="default").groups.create(GROUPS[path], filter=f"size < {LEFT_OUT_BYTES}")
    world.close()
    for number in range(4):
        queue = world.queues.get(path) or world.open(path)
        queue.put_many([left_out(number), b"m%d" % number])


def left_out(number: int) -> bytes:
    """Return a message that the filter leaves out."""
    return f"{LEFT_OUT} {number}".ljust(LEFT_OUT_BYTES).encode()


LEFT_OUT_KEYS = tuple((str(FILTERED), "message", name_of(left_out(number))) for number in range(4))
"""These messages may have ended though a call has raised."""


def failed_and_gone(world: World) -> None:
    """Two data files, one message of the first one left; a second group has finished it, and its sync has failed.

    Its process died behind that, and nothing has opened the group since.
    """
    two_files(world)
    world.queue.groups.create("late")
    late = open_beside(world.queue, "late", flush=world.policy)
    failed_take(world, late)
    left = world.storage.crash_keeping_all()
    with suppress(HoldfastError):
        late.close()
    world.close()
    world.storage = left


def failed_take(world: World, late: PersistentQueue) -> None:
    """Take and finish all there is; the sync of that fails."""
    with refusing(world.storage, "sync", ".position"), suppress(CommitUnknownError, PoisonedError):
        late.get_many(100, timeout=0)
        late.flush()


def make_ready(world: World) -> None:
    """Open everything; what was done before is on the disk, and under ``every(commits=2)`` one commit waits."""
    world.open_all()
    settle(world)


def settle(world: World) -> None:
    """Sync what was done to make ready; leave a put waiting where the policy lets it wait."""
    for queue in world.queues.values():
        queue.flush()
        if world.policy.commits == 2:
            queue.put(b"waits")
