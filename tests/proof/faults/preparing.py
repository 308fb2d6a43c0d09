"""Operations on the prepared log: what waits there is decided beside another, moves, or begins the next segment."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import PersistentQueue
from proof.faults.operation import Call, Operation, Promise, settle, used
from proof.faults.world import World
from support.builders.handles import move_entries, without_space

NEARLY_FULL = bytes(1900)
"""Two of them fill a segment."""


def in_log(call: Callable[[PersistentQueue], object], *, has_space: bool = True) -> Callable[[World], Call]:
    """Return how to make a call ready on a queue in whose prepared log "one" waits, and another behind it."""

    def ready(world: World) -> Call:
        world.open_all()
        world.transaction(b"new", acks=1).prepare("one")
        world.transaction(b"stays").prepare("other")
        if not has_space:
            without_space(world.queue)
        settle(world)
        return lambda: call(world.queue)

    return ready


def next_segment(world: World) -> Call:
    """Prepare what the segment has no room for."""
    world.open_all()
    world.transaction(NEARLY_FULL).prepare("other")
    tx = world.transaction(NEARLY_FULL + b"new", acks=1)
    settle(world)
    return lambda: tx.prepare("one")


IN_THE_LOG = (
    Operation("commit_prepared, in the log", used, in_log(lambda queue: queue.commit_prepared("one")), Promise.ALWAYS),
    Operation(
        "commit_prepared, from the reserve",
        used,
        in_log(lambda queue: queue.commit_prepared("one"), has_space=False),
        Promise.ALWAYS,
    ),
    Operation(
        "abort_prepared, in the log",
        used,
        in_log(lambda queue: queue.abort_prepared("one")),
        Promise.ALWAYS,
        again=True,
    ),
    Operation("move", used, in_log(move_entries), Promise.ALWAYS, again=True),
    Operation("prepare, next segment", used, next_segment, Promise.ALWAYS),
)
