"""Operations that put, take and settle, and those that see to a queue as a whole."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Delivery, PersistentQueue
from holdfast.queue.options.put_options import Put
from proof.faults.operation import (
    LEFT_OUT_KEYS,
    Call,
    Operation,
    Promise,
    failed_and_gone,
    filtered,
    make_ready,
    nearly_full,
    settle,
    sparse,
    two_files,
    unread,
    used,
    with_dead,
)
from proof.faults.world import FILTERED, LARGE, MAIN, World
from support.builders.handles import handle_of, pass_over

WAIT_SECONDS = 50.0
HOUR_SECONDS = 3600
DEFAULT_GROUP = (str(MAIN), "group", "default")


def on_queue(call: Callable[[PersistentQueue], object]) -> Callable[[World], Call]:
    """Return how to make a call on an open queue ready."""

    def ready(world: World) -> Call:
        make_ready(world)
        return lambda: call(world.queue)

    return ready


def on_held(count: int, call: Callable[[World], object]) -> Callable[[World], Call]:
    """Return how to make a call ready that works on received messages."""

    def ready(world: World) -> Call:
        world.open_all()
        world.take(count)
        settle(world)
        return lambda: call(world)

    return ready


def past_the_first(count: int, call: Callable[[World], object]) -> Callable[[World], Call]:
    """Return how to make a call ready that finishes the first data file, which reading has passed already."""

    def ready(world: World) -> Call:
        world.open_all()
        if count:
            world.take(count)
        world.queue.peek(3)
        settle(world)
        return lambda: call(world)

    return ready


def first(call: Callable[[Delivery], object]) -> Callable[[World], Call]:
    """Return how to make a call on one delivery ready."""
    return on_held(1, lambda world: call(world.held[0]))


def batch_ack(world: World) -> None:
    """Acknowledge what was received in one step."""
    assert world.batch is not None
    world.batch.ack(world.held)


def lease_over(world: World) -> Call:
    """A message whose lease runs out is handed out again."""
    world.open_all()
    world.take(1)
    settle(world)
    world.clock.advance(31)
    return lambda: world.queue.receive(timeout=0)


def delivers_once(world: World) -> None:
    """A queue that hands each message out once."""
    world.open(max_deliveries=1)
    used(world)


def last_delivery(world: World) -> Call:
    """A message at its last delivery is given back."""
    world.open_all()
    world.take(1)
    settle(world)
    return world.held[0].nack


def next_generation(world: World) -> Call:
    """A position file without another slot."""
    world.open_all()
    side = handle_of(world.queue).read_side
    assert side is not None
    world.take(1)[0].release()
    progress_store: Any = side.progress_store
    positions = progress_store._positions
    while positions._slots - positions._slot > 2:
        world.take(1)[0].release()  # two entries
    while positions._slots > positions._slot:
        world.take(1)
    settle(world)
    return world.held[0].ack


def put_again(world: World) -> None:
    """A queue that remembers a deduplication id."""
    used(world)
    world.queue.put(b"once", dedup_id="once")


def paused(world: World) -> None:
    """A queue that hands nothing out."""
    used(world)
    world.queue.pause(reason="rest")


def with_group(world: World) -> None:
    """A queue that a second group reads; its data file is its alone."""
    two_files(world)
    world.queue.groups.create("late")


def configured(world: World) -> None:
    """A queue whose settings were changed before."""
    used(world)
    world.queue.configure(maxsize=200, lease_seconds=40)


def configure_both(queue: PersistentQueue) -> None:
    """Change settings of the queue and of its group, which are in two documents."""
    queue.configure(reset=["lease_seconds"], maxsize=300, dedup_window=60)


def behind(world: World) -> None:
    """A queue with two data files, whose group skips what is in the first one, but for a dead letter."""
    world.open(max_lag_bytes=1)
    nearly_full(world)
    world.take(1)[0].reject("no use")
    world.queue.put(b"large 2" + LARGE)


def behind_asleep(world: World) -> None:
    """A queue with two data files that are finished; a group that is not open skips what is in the first one."""
    nearly_full(world)
    world.queue.groups.create("late", max_lag_bytes=1)
    world.queue.put(b"large 2" + LARGE)
    world.queue.get_many(100, timeout=0)


def compacted(world: World) -> None:
    """A queue whose files a pass merges."""
    sparse(world)
    world.queue.configure(compact_ratio=1)


def old(world: World) -> None:
    """A queue whose data file is left once it is an hour old."""
    world.open(data_file_max_age=HOUR_SECONDS)
    used(world)


def an_hour_later(world: World) -> Call:
    """A pass an hour later."""
    make_ready(world)
    world.clock.advance(HOUR_SECONDS)
    return lambda: pass_over(world.queue)


def mortal(world: World) -> None:
    """A queue with messages whose time to live will be over."""
    used(world)
    world.queue.put_many([Put(b"mortal %d" % number, ttl=60) for number in range(3)])


def export(world: World) -> Call:
    """Write dead letters into a file of the real file system."""
    make_ready(world)
    place = Path(tempfile.gettempdir()) / "holdfast-fault-loop.jsonl"
    return lambda: world.queue.dead.export(place)


def shared(ready: Callable[[World], Call]) -> Callable[[World], Call]:
    """Return how to make a call ready through a handle that shares the queue."""

    def in_mode(world: World) -> Call:
        world.mode = "shared"
        return ready(world)

    return in_mode


def own(ready: Callable[[World], Call]) -> Callable[[World], Call]:
    """Return how to make a call ready through the handle that owns the shared queue."""

    def in_mode(world: World) -> Call:
        world.mode, world.is_own = "shared", True
        return ready(world)

    return in_mode


def on_filtered(call: Callable[[PersistentQueue], object]) -> Callable[[World], Call]:
    """Return how to make a call ready on a queue whose group has a filter."""

    def ready(world: World) -> Call:
        make_ready(world)
        return lambda: call(world.queues[FILTERED])

    return ready


PUTS = (
    Operation("put", used, on_queue(lambda queue: queue.put(b"new"))),
    Operation("put, into an empty queue", unread, on_queue(lambda queue: queue.put(b"new"))),
    Operation("put_many", used, on_queue(lambda queue: queue.put_many([b"new %d" % number for number in range(3)]))),
    Operation("put, delayed", used, on_queue(lambda queue: queue.put(b"later", delay=WAIT_SECONDS))),
    Operation("put, with a priority", used, on_queue(lambda queue: queue.put(b"urgent", priority=5))),
    Operation("put_many, with options", used, on_queue(lambda queue: queue.put_many([Put(b"urgent", priority=5)]))),
    Operation("put, deduplicated", used, on_queue(lambda queue: queue.put(b"once", dedup_id="once"))),
    Operation("put, a duplicate", put_again, on_queue(lambda queue: queue.put(b"twice", dedup_id="once"))),
    Operation("put, rolls", nearly_full, on_queue(lambda queue: queue.put(b"new" + LARGE))),
    Operation("put_many, a file of its own", used, on_queue(lambda queue: queue.put_many([b"new" + LARGE * 4, b"2"]))),
    Operation("put, shared", used, shared(on_queue(lambda queue: queue.put(b"new")))),
    Operation("put_many, shared", used, shared(on_queue(lambda queue: queue.put_many([b"new" + LARGE, b"2"])))),
)

TAKES = (
    Operation("get, the first", unread, on_queue(lambda queue: queue.get(block=False)), leaves=(DEFAULT_GROUP,)),
    Operation("get", used, on_held(1, lambda world: world.queue.get(block=False))),
    Operation("get_many", used, on_queue(lambda queue: queue.get_many(3, timeout=0))),
    Operation("get, shared", used, shared(on_queue(lambda queue: queue.get(block=False))), may_count=True),
    Operation("get_many, shared", used, shared(on_queue(lambda queue: queue.get_many(3, timeout=0))), may_count=True),
    Operation(
        "get, a file goes",
        two_files,
        past_the_first(0, lambda world: world.queue.get(block=False)),
        syncs_behind=True,
    ),
    Operation(
        "get, a file goes behind a failed sync",
        failed_and_gone,
        past_the_first(0, lambda world: world.queue.get(block=False)),
        syncs_behind=True,
    ),
    Operation(
        "get_many, filtered", filtered, on_filtered(lambda queue: queue.get_many(3, timeout=0)), paths=(FILTERED,)
    ),
    Operation(
        "receive_many, filtered",
        filtered,
        on_filtered(lambda queue: queue.receive_many(3, timeout=0)),
        Promise.NEVER,
        paths=(FILTERED,),
        leaves=LEFT_OUT_KEYS,
    ),
    Operation("receive", used, on_queue(lambda queue: queue.receive(timeout=0)), Promise.NEVER),
    Operation("receive_many", used, on_queue(lambda queue: queue.receive_many(3, timeout=0)), Promise.NEVER),
    Operation("ack", used, first(lambda delivery: delivery.ack())),
    Operation("ack, shared", used, shared(first(lambda delivery: delivery.ack()))),
    Operation("ack, a batch", used, on_held(3, batch_ack)),
    Operation("ack, a file goes", two_files, past_the_first(1, batch_ack), syncs_behind=True),
    Operation("ack, next generation", used, next_generation),
    Operation("nack", used, first(lambda delivery: delivery.nack(0)), Promise.NEVER),
    Operation("nack, later", used, first(lambda delivery: delivery.nack(WAIT_SECONDS)), Promise.NEVER),
    Operation("nack, the last", delivers_once, last_delivery),
    Operation("release", used, first(lambda delivery: delivery.release()), Promise.NEVER),
    Operation("reject", used, first(lambda delivery: delivery.reject("no use"))),
    Operation("extend", used, first(lambda delivery: delivery.extend(100)), Promise.NEVER),
    Operation("lease runs out", used, lease_over, Promise.NEVER),
    Operation("dead.retry", with_dead, on_queue(lambda queue: queue.dead.retry([1, 2]))),
    Operation("dead.discard", with_dead, on_queue(lambda queue: queue.dead.discard([1, 2]))),
    Operation("purge", used, on_queue(lambda queue: queue.purge())),
    Operation("dead.export", with_dead, export, Promise.NEVER),
)

WHOLE = (
    Operation("flush", used, on_held(2, lambda world: world.queue.flush()), Promise.ALWAYS),
    Operation("pause", used, on_queue(lambda queue: queue.pause(reason="rest")), Promise.ALWAYS, again=True),
    Operation("resume", paused, on_queue(lambda queue: queue.resume()), Promise.ALWAYS, again=True),
    Operation(
        "groups.create",
        used,
        on_queue(lambda queue: queue.groups.create("late")),
        Promise.ALWAYS,
        again=True,
    ),
    Operation(
        "groups.create, with a filter",
        used,
        on_queue(lambda queue: queue.groups.create("late", filter="size < 3")),
        Promise.ALWAYS,
        again=True,
    ),
    Operation(
        "groups.create, latest",
        used,
        on_queue(lambda queue: queue.groups.create("late", "latest")),
        Promise.ALWAYS,
        again=True,
    ),
    Operation(
        "configure, the queue",
        used,
        on_queue(lambda queue: queue.configure(maxsize=300)),
        Promise.ALWAYS,
    ),
    Operation(
        "configure, the group",
        configured,
        on_queue(lambda queue: queue.configure(lease_seconds=60)),
        Promise.ALWAYS,
    ),
    Operation(
        "configure, the group, which begins",
        unread,
        on_queue(lambda queue: queue.configure(lease_seconds=60)),
        Promise.ALWAYS,
        leaves=(DEFAULT_GROUP,),
    ),
    Operation(
        "configure, again", used, on_queue(lambda queue: queue.configure(maxsize=300)), Promise.ALWAYS, again=True
    ),
    Operation("configure, both", configured, on_queue(configure_both), Promise.ALWAYS, again=True),
    Operation("pass, skips", behind, on_queue(pass_over), Promise.NEVER, again=True),
    Operation("pass, skips for a group that sleeps", behind_asleep, on_queue(pass_over), Promise.NEVER, again=True),
    Operation("pass, leaves an old file", old, an_hour_later, Promise.NEVER, again=True),
    Operation("pass, expired", mortal, an_hour_later, Promise.NEVER, again=True),
    Operation("pass, merges", compacted, on_queue(pass_over), Promise.NEVER, again=True),
    Operation("compact", sparse, on_queue(lambda queue: queue.compact()), Promise.NEVER, again=True),
    Operation("compact, shared", sparse, shared(on_queue(lambda queue: queue.compact())), Promise.NEVER, again=True),
    Operation(
        "groups.delete",
        with_group,
        on_queue(lambda queue: queue.groups.delete("late")),
        Promise.ALWAYS,
        again=True,
    ),
    Operation("groups.seek, back", used, on_queue(lambda queue: queue.groups.seek("default", 0)), Promise.ALWAYS),
    Operation(
        "groups.seek, with dead letters",
        with_dead,
        on_held(1, lambda world: world.queue.groups.seek("default", 0)),
        Promise.ALWAYS,
    ),
    Operation(
        "groups.seek, a file goes",
        two_files,
        on_queue(lambda queue: queue.groups.seek("default", "latest")),
        Promise.ALWAYS,
        syncs_behind=True,
    ),
    Operation(
        "groups.seek, another group", with_group, on_queue(lambda queue: queue.groups.seek("late", -1)), Promise.ALWAYS
    ),
    Operation(
        "groups.seek, shared", used, shared(on_queue(lambda queue: queue.groups.seek("default", 0))), Promise.ALWAYS
    ),
    Operation(
        "groups.seek, the group begins",
        unread,
        on_queue(lambda queue: queue.groups.seek("default", 2)),
        Promise.ALWAYS,
        leaves=(DEFAULT_GROUP,),
    ),
)
