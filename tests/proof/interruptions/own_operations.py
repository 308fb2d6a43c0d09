"""Calls of a handle that owns its shared queue: with others beside it, behind a succession, and tried again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from holdfast import Delivery, Empty, HoldfastError, PoisonedError, StaleReceiptError
from holdfast.queue.client.shared_engine import SharedEngine
from proof.interruptions.operations import BOTH, HAND, OPERATIONS, READY, Operation, World
from support.processes.threads import Threads, is_waiting, wait_until

IN_THE_LOG = {"prepare in the next segment", "commit of a prepared one that moves"}
"""Its owner does these as one of the mode "exclusive" does."""

NOT_OWN = {"open", "close", "configure", *IN_THE_LOG}
"""What is asked of the owner by a request, and the life of a handle, whose finder is a stand-in here."""

WAIT_SECONDS = 10.0
WOKEN = b"wakes who waits"


def _first(world: World) -> Delivery:
    return world.held[0]


def _own(operation: Operation) -> Operation:
    return replace(operation, name=f"owner: {operation.name}", mode="shared")


def _again(name: str, verb: Callable[[World], object], goes: tuple[bytes, ...] = ()) -> Operation:
    return Operation(f"owner: {name}, again by another thread", verb, goes, mode="shared", again=verb)


def _succeed(world: World) -> None:
    """Have the owner close, and this handle own the queue again: what it has in hand is from the owner before."""
    engine = world.queue._engine
    assert isinstance(engine, SharedEngine)
    link = engine.membership._link
    assert link is not None
    engine.membership._abdicate(link, has_failed=False)
    world.queue.qsize()


def _join(world: World) -> None:
    """Have a client of another process receive one message."""
    assert world.owners is not None
    world.owners.are_own = False
    other = world.jobs.open(mode="shared")
    world.others.append(other)
    world.theirs.append(other.receive(timeout=0))


def _settle_theirs(world: World) -> None:
    """Settle in one step what this handle has in hand, and what it has not: nothing happens."""
    with suppress(StaleReceiptError):
        world.held.ack([_first(world), *world.theirs])


def _wait_beside(world: World) -> None:
    """Have another thread wait for a message, once all are in hand; what it gets it gives back."""
    world.queue.receive_many(10)
    threads = Threads()

    def take() -> None:
        with suppress(Empty, HoldfastError):
            world.queue.receive(timeout=WAIT_SECONDS).release()

    thread = threads.start(take)
    wait_until(lambda: is_waiting(thread))
    world.settle_first = lambda: _wake(world, threads)


def _wake(world: World, threads: Threads) -> None:
    """Wake the other thread, wherever it is, and finish what has woken it, unless its group is poisoned."""
    is_put = False
    with suppress(HoldfastError):
        world.queue.put(WOKEN)
        is_put = True
    threads.join(WAIT_SECONDS / 2)
    try:
        while (delivery := world.queue.receive(timeout=0)).payload != WOKEN:
            pass
        delivery.ack()
    except PoisonedError:
        world.left = (WOKEN,) if is_put else ()
    except (HoldfastError, Empty):
        pass


AGAIN = (
    _again("ack", lambda world: _first(world).ack(), HAND),
    _again("ack of a batch", lambda world: world.held.ack(list(world.held)), BOTH),
    _again("nack", lambda world: _first(world).nack(0)),
    _again("release", lambda world: _first(world).release()),
    _again("extend", lambda world: _first(world).extend(50)),
)
BESIDE_A_CLIENT = tuple(
    replace(each, name=f"{each.name}, beside a client", prepare=_join)
    for each in (
        Operation("owner: receive", lambda world: world.queue.receive(timeout=0), mode="shared"),
        Operation("owner: get", lambda world: world.queue.get(timeout=0), READY[1:2], mode="shared"),
        Operation("owner: ack of what is in other hands", _settle_theirs, mode="shared"),
        Operation("owner: purge", lambda world: world.queue.purge(), READY[1:], mode="shared"),
    )
)
SUCCEEDED = tuple(
    replace(_own(each), name=f"owner: {each.name}, of the owner before", prepare=_succeed)
    for each in OPERATIONS
    if each.name in {"receive", "get", "ack", "ack of a batch", "nack", "release", "extend", "block of a delivery"}
)
BESIDE_A_THREAD = tuple(
    replace(_own(each), name=f"owner: {each.name}, beside a thread that waits", prepare=_wait_beside)
    for each in OPERATIONS
    if each.name in {"put", "ack", "nack", "release", "block that fails"}
)
OWN_OPERATIONS = (
    *(_own(each) for each in OPERATIONS if each.name not in NOT_OWN),
    *AGAIN,
    *BESIDE_A_CLIENT,
    *SUCCEEDED,
    *BESIDE_A_THREAD,
)
"""All of them; those of a shared owner have the names of the others behind "owner: "."""
