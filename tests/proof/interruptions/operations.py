"""The calls that are interrupted, and for each of them what may have become of which messages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast import ClosedError, Delivery, DeliveryBatch, FlushPolicy, PersistentQueue, Transaction
from holdfast.queue.options.queue_options import Mode
from support.builders.handles import without_space
from support.builders.jobs import Jobs
from support.owners.machine_link import Machines, machine_links
from support.workloads.recorded_run import message

COUNT = 8
NEW = message(50, 100)
MORE = (NEW, message(51, 200), message(52, 50))
LARGE = message(50, 12_000)  # does not fit into the file any more
NEARLY_FULL = message(53, 1900)  # two of them fill a segment of the prepared log
HELD = 2


@dataclass
class World:
    """A queue in which two messages are finished, two are in hand and four wait, with a transaction that is open.

    Attributes
    ----------
    jobs, policy
        The disk, and the flush policy.
    queue : PersistentQueue
        The handle that is interrupted. If it is shared, it owns the queue itself.
    held : DeliveryBatch
        What it has in hand.
    tx : Transaction
        The one that is open.
    owners : Machines or None
        The owner of a shared queue.
    others : list of PersistentQueue
        Handles of other processes.
    theirs : list of Delivery
        What these have in hand.
    settle_first : callable
        Is called after the interruption, before it is judged.
    left : tuple of bytes
        What that has put and could not finish.
    """

    jobs: Jobs
    policy: FlushPolicy
    queue: PersistentQueue
    held: DeliveryBatch
    tx: Transaction
    owners: Machines | None = None
    others: list[PersistentQueue] = field(default_factory=list)
    theirs: list[Delivery] = field(default_factory=list)
    settle_first: Callable[[], object] = lambda: None
    left: tuple[bytes, ...] = ()

    def reopened(self, jobs: Jobs) -> PersistentQueue:
        """Open what is on a disk, with the settings that it has."""
        return jobs.open()

    def close(self) -> None:
        """Close all handles; again continues after an interruption, or does nothing."""
        for each in self.others:
            with suppress(ClosedError):  # of an owner that has failed: no process of its own has ended with that
                each.close()
        self.queue.close()


OPTIONS: dict[str, Any] = {"max_deliveries": 3, "maxsize": 20, "dedup_window": 60, "dedup_max": 64, "backoff": []}


def payload(number: int) -> bytes:
    """Return one of the eight payloads that every world begins with."""
    return message(number, 100)


def made(operation: Operation, policy: FlushPolicy) -> World:
    """Return a world to interrupt an operation in."""
    jobs = Jobs()
    with machine_links() as owners:
        owners.are_own = True
        queue = jobs.open(mode=operation.mode, flush=policy, **OPTIONS)
        queue.put_many([payload(number) for number in range(COUNT)])
        queue.get_many(2)
        held = queue.receive_many(HELD)
        world = World(jobs, policy, queue, held, queue.begin(timeout=100), owners)
        operation.prepare(world)
    return world


def nothing(world: World) -> object:
    """Prepare nothing."""


@dataclass(frozen=True)
class Operation:
    """A call, what comes before it, and which messages it finishes and puts, all or none of them together.

    Attributes
    ----------
    goes, comes : tuple of bytes
        Payloads that are finished, and payloads that are put.
    buries : tuple of bytes
        Payloads that may be dead letters.
    closes : bool
        Whether the handle is of no use behind it.
    mode : str
        That of the handle: a shared one owns the queue itself.
    again : callable or None
        Is called by another thread after the interruption. If it raises nothing, the operation has happened.
    """

    name: str
    call: Callable[[World], object]
    goes: tuple[bytes, ...] = ()
    comes: tuple[bytes, ...] = ()
    buries: tuple[bytes, ...] = ()
    prepare: Callable[[World], object] = nothing
    closes: bool = False
    mode: Mode = "exclusive"
    again: Callable[[World], object] | None = None


def _first(world: World) -> Delivery:
    return world.held[0]


def _use(world: World) -> None:
    with _first(world):
        pass


def _use_and_fail(world: World) -> None:
    with suppress(RuntimeError), _first(world):
        raise RuntimeError


def _use_batch(world: World) -> None:
    with world.held:
        pass


def _receive_and_use(world: World) -> None:
    with world.queue.receive(timeout=0):
        pass


def _consume(world: World) -> None:
    for _ in world.queue.consume(prefetch=2, timeout=0):
        pass


def _consume_and_work(world: World) -> None:
    """Interrupt the body of a loop, which begins and ends in other code."""
    for each in world.queue.consume(prefetch=2, timeout=0):
        assert each.headers == {}


def _open(world: World) -> None:
    """Open it, and keep it: the interruption of what a dropped queue does is no interruption of its opening."""
    world.queue = world.reopened(world.jobs)


def _fill(world: World) -> None:
    for each in MORE:
        world.tx.put(each)
    world.tx.ack([world.tx.receive(timeout=0), _first(world)])


def _lift_bound(world: World) -> None:
    """Have it take the way of a queue that is never full: the one that most queues take."""
    world.queue.configure(reset=["maxsize"])


def _fill_large(world: World) -> None:
    world.tx.put_many([message(60, 3000), message(61, 3000)])
    world.tx.ack(world.tx.receive(timeout=0))


def _fill_file(world: World) -> None:
    world.tx.put_stream([message(60, 3000)])
    world.tx.ack(world.tx.receive(timeout=0))


def _fill_and_prepare(world: World) -> None:
    _fill(world)
    world.tx.prepare("t")


def _fill_and_prepare_without_space(world: World) -> None:
    _fill_and_prepare(world)
    without_space(world.queue)


def _fill_segment(world: World) -> None:
    """Leave no room in the segment; what filled it has gone."""
    tx = world.queue.begin()
    tx.put(NEARLY_FULL)
    tx.prepare("filler")
    tx.abort()
    _fill(world)
    world.tx.put(NEARLY_FULL)


def _in_a_block(world: World) -> None:
    world.tx = world.queue.transaction()
    with world.tx as tx:
        tx.put(NEW)
        tx.ack(tx.receive(timeout=0))


def _fail_in_a_block(world: World) -> None:
    with suppress(RuntimeError), world.queue.transaction() as tx:
        tx.put(NEW)
        tx.ack(tx.receive(timeout=0))
        raise RuntimeError


def _begin_and_put(world: World) -> None:
    tx = world.queue.begin()
    tx.put(NEW)
    tx.receive(timeout=0)


NEXT = (payload(4),)
HAND = (payload(2),)
BOTH = (payload(2), payload(3))
GOES = (payload(4), payload(2))
READY = tuple(payload(number) for number in range(2 + HELD, COUNT))

OPERATIONS = (
    Operation("put", lambda world: world.queue.put(NEW), comes=(NEW,)),
    Operation("put with headers", lambda world: world.queue.put(NEW, headers={"tenant": "acme"}), comes=(NEW,)),
    Operation("put with a priority", lambda world: world.queue.put(NEW, priority=3), comes=(NEW,)),
    Operation("put with an id", lambda world: world.queue.put(NEW, dedup_id="x"), comes=(NEW,)),
    Operation("put without a bound", lambda world: world.queue.put(NEW), comes=(NEW,), prepare=_lift_bound),
    Operation(
        "put with an id and without a bound",
        lambda world: world.queue.put(NEW, dedup_id="x"),
        comes=(NEW,),
        prepare=_lift_bound,
    ),
    Operation("put_many without a bound", lambda world: world.queue.put_many(MORE), comes=MORE, prepare=_lift_bound),
    Operation("put that rolls", lambda world: world.queue.put(LARGE), comes=(LARGE,)),
    Operation("put_many", lambda world: world.queue.put_many(MORE), comes=MORE),
    Operation("put_many that rolls", lambda world: world.queue.put_many((LARGE, NEW)), comes=(LARGE, NEW)),
    Operation("get", lambda world: world.queue.get(timeout=0), goes=NEXT),
    Operation("get_many", lambda world: world.queue.get_many(2, timeout=0), goes=(payload(4), payload(5))),
    Operation("receive", lambda world: world.queue.receive(timeout=0)),
    Operation("receive_many", lambda world: world.queue.receive_many(3, timeout=0)),
    Operation("receive in a block", _receive_and_use, goes=NEXT),
    Operation("loop", _consume, goes=(payload(7),), prepare=lambda world: world.queue.receive_many(3)),
    Operation(
        "loop that works", _consume_and_work, goes=(payload(7),), prepare=lambda world: world.queue.receive_many(3)
    ),
    Operation("ack", lambda world: _first(world).ack(), goes=HAND),
    Operation("ack of a batch", lambda world: world.held.ack(), goes=BOTH),
    Operation("block of a delivery", _use, goes=HAND),
    Operation("block that fails", _use_and_fail),
    Operation("block of a batch", _use_batch, goes=BOTH),
    Operation("nack", lambda world: _first(world).nack(0)),
    Operation("nack of a batch", lambda world: world.held.nack(delay=5)),
    Operation("release", lambda world: _first(world).release()),
    Operation("extend", lambda world: _first(world).extend(50)),
    Operation("extend of a batch", lambda world: world.held.extend(50)),
    Operation("purge", lambda world: world.queue.purge(), goes=READY),
    Operation(
        "purge of deferred ones",
        lambda world: world.queue.purge(),
        goes=(*HAND, *READY),
        prepare=lambda world: _first(world).release(),
    ),
    Operation("reject", lambda world: _first(world).reject("no use"), buries=HAND),
    Operation("transaction", _in_a_block, goes=NEXT, comes=(NEW,)),
    Operation("transaction that fails", _fail_in_a_block),
    Operation("begin, put, receive", _begin_and_put),
    Operation("ack in a transaction", lambda world: world.tx.ack(_first(world))),
    Operation("commit", lambda world: world.tx.commit(), prepare=_fill, goes=GOES, comes=MORE),
    Operation(
        "commit of a large one",
        lambda world: world.tx.commit(),
        goes=NEXT,
        comes=(message(60, 3000), message(61, 3000)),
        prepare=_fill_large,
    ),
    Operation("prepare", lambda world: world.tx.prepare("t"), prepare=_fill, goes=GOES, comes=MORE),
    Operation(
        "prepare in a file",
        lambda world: world.tx.prepare("t"),
        prepare=_fill_file,
        goes=NEXT,
        comes=(message(60, 3000),),
    ),
    Operation(
        "commit of a prepared one", lambda world: world.tx.commit(), prepare=_fill_and_prepare, goes=GOES, comes=MORE
    ),
    Operation(
        "prepare in the next segment",
        lambda world: world.tx.prepare("t"),
        prepare=_fill_segment,
        goes=GOES,
        comes=(*MORE, NEARLY_FULL),
    ),
    Operation(
        "commit of a prepared one that moves",
        lambda world: world.tx.commit(),
        prepare=_fill_and_prepare_without_space,
        goes=GOES,
        comes=MORE,
    ),
    Operation("abort", lambda world: world.tx.abort(), prepare=_fill),
    Operation(
        "abort of a prepared one", lambda world: world.tx.abort(), prepare=_fill_and_prepare, goes=GOES, comes=MORE
    ),
    Operation("configure", lambda world: world.queue.configure(record_bytes_max=20_000, lease_seconds=40)),
    Operation("close", lambda world: world.queue.close(), closes=True),
    Operation("open", _open, prepare=lambda world: world.queue.close(), closes=True),
)
