"""Operations of transactions, reservations and joint commits, and the openings and closings of a queue."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count

from holdfast import PersistentQueue, StorageError, transaction
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from proof.faults.operation import Call, Operation, Promise, make_ready, nothing, settle, two_files, unread, used
from proof.faults.working import own, shared
from proof.faults.world import LARGE, MAIN, OTHER, World
from support.builders.joint import file_part, stuck
from support.owners.open_queues import OpenQueues

BOTH = (MAIN, OTHER)


def in_transaction(
    end: str, *payloads: bytes, acks: int = 0, prepared: bool = False, streams: bool = False
) -> Callable[[World], Call]:
    """Return how to make the end of a transaction ready: "commit", "abort" or "prepare"."""

    def ready(world: World) -> Call:
        world.open_all()
        tx = world.transaction(*payloads, acks=acks)
        if streams:
            tx.put_stream([LARGE, LARGE])
        if prepared:
            tx.prepare("one")
        settle(world)
        return getattr(tx, end)  # type: ignore[no-any-return]

    return ready


def given(end: str, *payloads: bytes) -> Callable[[World], Call]:
    """Return how to make the end of a transaction ready that finishes what was received before, and one of its own."""

    def ready(world: World) -> Call:
        world.open_all()
        (delivery,) = world.take(1)
        tx = world.queue.begin()
        with delivery:
            tx.ack([delivery, tx.receive(timeout=0)])
        tx.put_many(payloads)
        settle(world)
        return getattr(tx, end)  # type: ignore[no-any-return]

    return ready


def in_doubt(*payloads: bytes) -> Callable[[World], None]:
    """Return how to make a queue with a prepared transaction."""

    def build(world: World) -> None:
        used(world)
        world.transaction(*payloads, acks=1).prepare("one")

    return build


def decide(call: Callable[[PersistentQueue], object]) -> Callable[[World], Call]:
    """Return how to make a decision ready that is taken in a later life."""

    def ready(world: World) -> Call:
        make_ready(world)
        return lambda: call(world.queue)

    return ready


def over_two(world: World) -> Call:
    """A transaction takes from one queue and puts into the other."""
    world.open_all()
    tx = transaction(world.queue, world.other)
    tx.ack(world.queue, tx.receive(world.queue, timeout=0))
    tx.put(world.other, b"moved")
    tx.put(world.queue, b"noted")
    settle(world)
    return tx.commit


def joint_parts(world: World) -> None:
    """Two parts of a joint commit, and one that nobody names."""
    used(world)
    for name, payload in (("a", b"part a"), ("b", b"part b" + LARGE), ("c", b"part c")):
        tx = world.queue.begin()
        tx.put(payload)
        tx.prepare(name, part_of=("app", 1))


def parts_of_both(world: World) -> None:
    """A part of one commit in each of two queues, one that no commit names, and one of an application that has died."""
    used(world)
    commits = OpenQueues(world.storage, world.clock, world.queues.values())
    commits.create()
    for path in BOTH:
        payload = path.name.encode() + (LARGE if path == OTHER else b"")
        file_part(world.storage, path, "app", commits.part_of("app", 1), [payload])
    file_part(world.storage, MAIN, "app-unnamed", commits.part_of("app", 1))


def parts_left(world: World) -> None:
    """The same, beside what an application has decided that has died then: no queue has followed."""
    parts_of_both(world)
    commits = OpenQueues(world.storage, world.clock, world.queues.values())
    parts = [file_part(world.storage, path, "left", commits.part_of("left", 1)) for path in BOTH]
    with stuck([path.name for path in BOTH]), suppress(StorageError):
        commits.commit("left", 1, parts, is_remembered=False)


def beside(verb: Callable[[QueuesJointCommits], object]) -> Callable[[World], Call]:
    """Return how to make a call ready that the document beside two open queues decides.

    If it is made once more, the queues were opened again, as its error says.
    """

    def ready(world: World) -> Call:
        make_ready(world)
        attempts = count()

        def call() -> None:
            if next(attempts):
                world.close()
                world.open_all()
            verb(OpenQueues(world.storage, world.clock, world.queues.values()))

        return call

    return ready


def commit_both(commits: QueuesJointCommits) -> None:
    """Commit a part in each queue as one."""
    commits.commit("app", 1, [f"{path.name}/app" for path in BOTH], id_prefix="app")


def reserved(verb: str) -> Callable[[World], Call]:
    """Return how to make the end of a reservation ready."""

    def ready(world: World) -> Call:
        world.open_all()
        reservation = world.queue.reservations.take(max_messages=3)
        settle(world)
        return lambda: getattr(world.queue.reservations, verb)(reservation)

    return ready


def opening(world: World) -> Call:
    """Open the queue: that is the call."""
    return world.open_all


def opening_configured(world: World) -> Call:
    """Open the queue with settings of an operator, to which the owner changes it."""
    return lambda: world.open(configured={"maxsize": 300, "lease_seconds": 60})


def killed(build: Callable[[World], None], torn: bytes = b"") -> Callable[[World], None]:
    """Return how to make the disk of a process that was killed, perhaps in the middle of a write."""

    def build_and_kill(world: World) -> None:
        build(world)
        world.take(1)
        world.queue.put(b"last" + bytes(300))
        left = world.storage.crash_keeping_all()
        if torn:
            name = max(left.list(MAIN / "data"))
            file = left.open(MAIN / "data" / name)
            content = file.read_at(file.size(), 0).rstrip(b"\0")
            file.write_at((torn,), len(content) + 400)
            file.write_at((b"\x02\x90\x01\0\0",), -(-len(content) // 4) * 4 + 300)
        world.close()
        world.storage = left

    return build_and_kill


def leaving(world: World) -> Call:
    """Close a queue with messages in hand."""
    world.open_all()
    world.take(2)
    settle(world)
    return world.queue.close


TRANSACTIONS = (
    Operation("commit, puts", used, in_transaction("commit", b"new", b"too")),
    Operation("commit, acks", used, in_transaction("commit", acks=2)),
    Operation("commit, both", used, in_transaction("commit", b"new", b"too", acks=2), Promise.ALWAYS),
    Operation("commit, large", used, in_transaction("commit", b"new" + LARGE, b"too", acks=1), Promise.ALWAYS),
    Operation("commit, a stream", used, in_transaction("commit", b"new", streams=True)),
    Operation("commit, given", used, given("commit", b"new"), Promise.ALWAYS),
    Operation("commit, given, own", used, own(given("commit", b"new")), Promise.ALWAYS, may_count=True),
    Operation("commit, given, shared", used, shared(given("commit", b"new")), Promise.ALWAYS, may_count=True),
    Operation("commit, given, acks, own", used, own(given("commit")), may_count=True),
    Operation("prepare, given, own", used, own(given("prepare", b"new")), Promise.ALWAYS, may_count=True),
    Operation("abort, given", used, given("abort", b"new"), Promise.NEVER),
    Operation("abort, given, own", used, own(given("abort", b"new")), Promise.NEVER),
    Operation("abort, given, shared", used, shared(given("abort", b"new")), Promise.NEVER),
    Operation("prepare", used, in_transaction("prepare", b"new", b"too", acks=2), Promise.ALWAYS),
    Operation("prepare, large", used, in_transaction("prepare", b"new" + LARGE, acks=1), Promise.ALWAYS),
    Operation("abort", used, in_transaction("abort", b"new" + LARGE, acks=2), Promise.NEVER),
    Operation("commit, prepared", used, in_transaction("commit", b"new", acks=1, prepared=True), Promise.ALWAYS),
    Operation(
        "abort, prepared", used, in_transaction("abort", b"new", acks=1, prepared=True), Promise.ALWAYS, again=True
    ),
    Operation("commit_prepared", in_doubt(b"new"), decide(lambda queue: queue.commit_prepared("one")), Promise.ALWAYS),
    Operation(
        "commit_prepared, large",
        in_doubt(b"new" + LARGE),
        decide(lambda queue: queue.commit_prepared("one")),
        Promise.ALWAYS,
    ),
    Operation(
        "abort_prepared",
        in_doubt(b"new"),
        decide(lambda queue: queue.abort_prepared("one")),
        Promise.ALWAYS,
        again=True,
    ),
    Operation("commit, two queues", used, over_two, Promise.ALWAYS, BOTH),
    Operation(
        "joint commit",
        joint_parts,
        decide(lambda queue: queue.joint_commits.commit("app", 1, ["a", "b"])),
        Promise.ALWAYS,
        again=True,
    ),
    Operation(
        "joint abort",
        joint_parts,
        decide(lambda queue: queue.joint_commits.abort("app", 1)),
        Promise.ALWAYS,
        again=True,
    ),
    Operation(
        "commit, beside two queues",
        parts_of_both,
        beside(commit_both),
        Promise.ALWAYS,
        BOTH,
        again=True,
        is_whole=True,
    ),
    Operation(
        "commit, what another left first",
        parts_left,
        beside(commit_both),
        Promise.ALWAYS,
        BOTH,
        again=True,
        is_whole=True,
    ),
    Operation("reservation, take", used, decide(lambda queue: queue.reservations.take(max_messages=3)), Promise.ALWAYS),
    Operation("reservation, commit", used, reserved("commit"), Promise.ALWAYS),
    Operation("reservation, abort", used, reserved("abort"), Promise.ALWAYS),
)

OPENINGS = (
    Operation("open, nothing there", nothing, opening, Promise.ALWAYS, opens=True),
    Operation("open, closed in order", used, opening, Promise.ALWAYS, opens=True),
    Operation("open, configured", used, opening_configured, Promise.ALWAYS, opens=True, again=True),
    Operation("open, killed", killed(used), opening, Promise.ALWAYS, opens=True),
    Operation("open, killed, two files", killed(two_files), opening, Promise.ALWAYS, opens=True),
    Operation("open, a torn tail", killed(unread, torn=b"torn" * 50), opening, Promise.ALWAYS, opens=True),
    Operation("open, in doubt", in_doubt(b"new"), opening, Promise.ALWAYS, opens=True),
    Operation("close", used, leaving, Promise.ALWAYS, closes=True),
)
