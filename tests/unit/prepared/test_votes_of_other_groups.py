"""A prepared transaction is decided by a handle of any group, whether the group that holds its messages is open or not.

An exclusive handle visits the group; a shared one has it done by the owner, which may have the group open.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    DiskFullError,
    PersistentQueue,
    QueueLockedError,
    StorageError,
    TransactionNotFoundError,
    TransactionStateError,
    verify,
)
from holdfast.persistence.filesystem import locks
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.prepared import vote_settling
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from support.builders.handles import handle_of
from support.builders.transactions import KINDS, ORDERS, after, cut_power, open_queue, prepare, prepared_ids, waiting
from support.owners.machine_link import machine_links
from support.processes.children import Signal, child
from support.processes.threads import Threads, is_waiting, wait_until
from support.storages.simulated_storage import SimulatedStorage

VERDICTS = {"commit": True, "abort": False}
OPENED = ("exclusive", "shared", "shared, with both groups open")
HOLDING = ("acks", "both")
"""The kinds that hold messages of a group."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the queue is."""
    return tmp_path / "orders"


def leave_in_doubt(queue: PersistentQueue, kind: str) -> None:
    """Put three messages, prepare a transaction of the default group, and make another group."""
    queue.put_many([b"one", b"two", b"three"])
    prepare(queue, kind, "t")
    queue.groups.create("other")


def left_in_doubt(path: Path, kind: str) -> None:
    """Leave a closed queue with one transaction in doubt."""
    with PersistentQueue(path, mode="exclusive") as queue:
        leave_in_doubt(queue, kind)


def decide(queue: PersistentQueue, verdict: str) -> object:
    """Decide the transaction; return what the verb returns."""
    return queue.commit_prepared("t") if verdict == "commit" else queue.abort_prepared("t")


def opposite(verdict: str) -> str:
    """Return the other verdict."""
    return "abort" if verdict == "commit" else "commit"


def offsets(kind: str, verdict: str) -> range | None:
    """Return what deciding returns in a queue that had three messages."""
    return None if verdict == "abort" else range(3, 3 if kind == "acks" else 4)


@contextmanager
def deciders(storage: SimulatedStorage, how: str) -> Iterator[list[PersistentQueue]]:
    """Open a handle of the other group, and in one way a second one, which has the default group open."""
    mode, _, both = how.partition(", ")
    with ExitStack() as opened:
        if mode == "shared":
            opened.enter_context(machine_links())
        queues = [opened.enter_context(open_queue(storage, mode=mode, group="other"))]
        if both:
            queues.append(opened.enter_context(open_queue(storage, mode=mode, group="default")))
            assert waiting(queues[-1]) != []
        yield queues


def shown(storage: SimulatedStorage, group: str = "default") -> list[bytes]:
    """Return what a later life sees waiting in a group."""
    with open_queue(storage, mode="exclusive", group=group) as queue:
        assert queue.prepared() == []
        return waiting(queue)


# -- Who decides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("how", OPENED)
def test_a_handle_of_another_group_decides(storage: SimulatedStorage, how: str, verdict: str, kind: str) -> None:
    """Again with the same verdict: the same answer from any handle; with the other one: TransactionStateError."""
    with open_queue(storage, mode="exclusive") as queue:
        leave_in_doubt(queue, kind)
    expected = offsets(kind, verdict)
    with deciders(storage, how) as queues:
        assert prepared_ids(queues[0]) == ["t"]
        assert decide(queues[0], verdict) == expected
        for queue in queues:
            assert queue.prepared() == []
            assert decide(queue, verdict) in (expected, None if expected is None else range(0))
            with pytest.raises(TransactionStateError, match="committed" if VERDICTS[verdict] else "aborted"):
                decide(queue, opposite(verdict))
        assert waiting(queues[0]) == [b"one", b"two", b"three"] + [b"new"] * len(expected or ())
    assert shown(storage) == after(kind, committed=VERDICTS[verdict])
    assert verify(ORDERS, storage=storage).ok


@pytest.mark.parametrize("kind", HOLDING)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("how", OPENED)
def test_what_was_answered_survives_a_power_loss(storage: SimulatedStorage, how: str, verdict: str, kind: str) -> None:
    """In the log, and in the group that held its messages."""
    with open_queue(storage, mode="exclusive") as queue:
        leave_in_doubt(queue, kind)
    with deciders(storage, how) as queues:
        decide(queues[0], verdict)
        storage = cut_power(storage)
    assert shown(storage) == after(kind, committed=VERDICTS[verdict])


@pytest.mark.parametrize("kind", HOLDING)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("owns", ["its process", "another process"])
def test_a_client_has_it_decided_for_a_group_that_only_another_process_uses(
    path: Path, owns: str, verdict: str, kind: str
) -> None:
    """That one sees at once what was given back, or put; through a real socket."""
    left_in_doubt(path, kind)
    opened, done = Signal(), Signal()
    expected = after(kind, committed=VERDICTS[verdict])

    def use() -> None:
        with PersistentQueue(path, mode="shared", can_own=owns == "another process") as queue:
            opened.send(str(queue.is_owner))
            found = [queue.get(timeout=20) for _ in expected]
            done.send(repr(sorted(found)))

    with ExitStack() as stack:
        if owns == "its process":
            stack.enter_context(PersistentQueue(path, mode="shared", group="other"))
        stack.enter_context(child(use))
        assert opened.wait() == str(owns == "another process")
        queue = stack.enter_context(PersistentQueue(path, mode="shared", group="other", can_own=False))
        assert decide(queue, verdict) == offsets(kind, verdict)
        assert done.wait() == repr(sorted(expected))
    opened.close()
    done.close()


# -- At once -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOLDING)
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_of_many_who_decide_at_once_one_verdict_counts(path: Path, mode: str, kind: str) -> None:
    """Handles of two groups, or one of another group, each in several threads; and no thread waits for ever."""
    left_in_doubt(path, kind)
    threads, counted = Threads(), []
    with ExitStack() as stack:
        groups = ("other", "default") if mode == "shared" else ("other",)
        queues = [stack.enter_context(PersistentQueue(path, mode=mode, group=group)) for group in groups]

        def race(queue: PersistentQueue, verdict: str) -> None:
            try:
                decide(queue, verdict)
                counted.append(verdict)
            except TransactionStateError:
                pass

        for queue in queues * 2:
            for verdict in VERDICTS:
                threads.start(lambda queue=queue, verdict=verdict: race(queue, verdict))  # type: ignore[misc]
        threads.join()
        assert len(set(counted)) == 1
    with PersistentQueue(path, mode="exclusive") as queue:
        assert waiting(queue) == after(kind, committed=VERDICTS[counted[0]])


def test_handles_of_two_groups_decide_crosswise_at_once(path: Path) -> None:
    """Each in threads of its own, for transactions whose messages the other group holds."""
    threads = Threads()
    groups = ("a", "b")
    with ExitStack() as stack:
        with PersistentQueue(path, mode="exclusive") as queue:
            for group in groups:
                queue.groups.create(group)
            queue.put_many([b"%d" % number for number in range(8)])
        a, b = (stack.enter_context(PersistentQueue(path, mode="shared", group=group)) for group in groups)
        for number in range(8):
            prepare((a, b)[number % 2], "both" if number < 4 else "acks", f"t{number}")
        for number in range(8):
            queue = (b, a)[number % 2]
            threads.start(lambda queue=queue, number=number: queue.commit_prepared(f"t{number}"))  # type: ignore[misc]
        threads.join(30)
        assert a.prepared() == b.prepared() == []
        assert waiting(a) == waiting(b) == [b"%d" % number for number in range(4, 8)] + [b"new"] * 4


# -- What fails, or dies, behind the decision --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOLDING)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("does_it", [True, False], ids=["behind it", "before it"])
def test_an_owner_killed_while_it_settles_leaves_it_to_its_successor(
    path: Path, does_it: bool, verdict: str, kind: str
) -> None:
    """The client that has asked takes the queue over, finds what was done, and does the rest."""
    opened, resolve = Signal(), ReadSide.resolve

    def die(self: ReadSide, *arguments: Any, **options: Any) -> bool:
        if does_it:
            resolve(self, *arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    def own() -> None:
        with PersistentQueue(path, mode="shared") as queue:
            waiting(queue)
            ReadSide.resolve = die  # type: ignore[method-assign]
            opened.send()
            signal.pause()

    left_in_doubt(path, kind)
    with child(own) as owner:
        opened.wait()
        with PersistentQueue(path, mode="shared", group="other") as queue:
            assert decide(queue, verdict) == offsets(kind, verdict)
            assert owner.wait() == -signal.SIGKILL
            assert queue.is_owner
            assert queue.prepared() == []
            with PersistentQueue(path, mode="shared") as default:
                assert waiting(default) == after(kind, committed=VERDICTS[verdict])
    opened.close()
    with PersistentQueue(path, mode="exclusive") as queue:
        assert waiting(queue) == after(kind, committed=VERDICTS[verdict])


@contextmanager
def disk_refuses(storage: SimulatedStorage, error: int) -> Iterator[list[str]]:
    """Have the disk take nothing for the default group; yield the verbs that it has refused."""
    refused: list[str] = []

    def refuse(verb: str, path: Path) -> None:
        if verb in ("write_at", "reserve") and path.parent == ORDERS / "groups" / "default" and path.name[0].isdigit():
            refused.append(verb)
            raise OSError(error, os.strerror(error), str(path))

    storage.before_verb = refuse
    try:
        yield refused
    finally:
        storage.before_verb = None
    assert refused, "it was never asked"


@pytest.mark.parametrize("later", ["decided again", "decided the other way", "looked at", "opened again"])
@pytest.mark.parametrize("how", OPENED[:2])
def test_a_commit_counts_though_the_disk_takes_nothing_for_the_group(
    storage: SimulatedStorage, how: str, later: str
) -> None:
    """Its messages stay held; who decides again, also the other way, looks, or opens the queue does the rest."""
    with open_queue(storage, mode="exclusive") as queue:
        leave_in_doubt(queue, "both")
    with deciders(storage, how) as (queue,):
        with disk_refuses(storage, EIO):
            assert queue.commit_prepared("t") == range(3, 4)
            with pytest.raises(StorageError):
                queue.abort_prepared("t")
        with open_queue(storage, mode="read_only", group="default") as look:
            assert waiting(look) == [b"two", b"three", b"new"]
        if later == "decided again":
            assert queue.commit_prepared("t") == range(3, 4)
        elif later == "decided the other way":
            with pytest.raises(TransactionStateError, match="committed"):
                queue.abort_prepared("t")
        elif later == "looked at":
            assert queue.prepared() == []
    if later != "opened again":
        with open_queue(storage, mode="read_only", group="default") as look:
            assert prepared_ids(look) == []
    assert shown(storage) == after("both", committed=True)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_visit_that_fails_behind_the_name_of_its_file_has_decided_nothing(
    storage: SimulatedStorage, verdict: str
) -> None:
    """The file says what the one before it said, and either verdict is still possible."""
    with open_queue(storage, mode="exclusive") as queue:
        leave_in_doubt(queue, "acks")
    with open_queue(storage, mode="exclusive", group="other") as queue:
        before = storage.before_verb
        renamed: list[Path] = []

        def fail(verb: str, path: Path) -> None:
            if verb == "rename" and path.name == "next.position":
                renamed.append(path)
            if verb == "sync_directory" and renamed and path == renamed[0].parent:
                raise OSError(EIO, os.strerror(EIO), str(path))

        storage.before_verb = fail
        with pytest.raises(StorageError):
            decide(queue, verdict)
        storage.before_verb = before
        assert renamed
        assert prepared_ids(queue) == ["t"]
        decide(queue, opposite(verdict))
        assert prepared_ids(queue) == []
    left = storage.crash_dropping_unsynced()
    with open_queue(left, mode="read_only", group="default") as look:
        assert prepared_ids(look) == []


@pytest.mark.parametrize("how", OPENED[:2])
@pytest.mark.parametrize(("error", "kind"), [(ENOSPC, DiskFullError), (EIO, StorageError)])
def test_what_only_acknowledges_stays_in_doubt_if_the_disk_refuses(
    storage: SimulatedStorage, how: str, error: int, kind: type[Exception]
) -> None:
    """Nothing has decided it: with space again it can be committed or aborted."""
    with open_queue(storage, mode="exclusive") as queue:
        leave_in_doubt(queue, "acks")
    with deciders(storage, how) as (queue,):
        with disk_refuses(storage, error):
            for _ in range(2):
                with pytest.raises(kind):
                    queue.abort_prepared("t")
        assert prepared_ids(queue) == ["t"]
        queue.abort_prepared("t")
        assert queue.prepared() == []
    assert shown(storage) == after("acks", committed=False)


# -- Groups that are just being opened ---------------------------------------------------------------------------------


@contextmanager
def opening(storage: SimulatedStorage) -> Iterator[None]:
    """Hold the lock of the default group, as a thread does that opens it."""
    lock = locks.try_acquire(storage, ORDERS / "groups" / "default" / "read.lock")
    assert lock is not None
    try:
        yield
    finally:
        lock.release()


@pytest.mark.parametrize("kind", HOLDING)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_group_that_another_thread_opens_is_waited_for(storage: SimulatedStorage, verdict: str, kind: str) -> None:
    """Its vote is settled once it is open, or has failed to open."""
    threads, decided = Threads(), []
    with open_queue(storage, mode="exclusive") as queue:
        leave_in_doubt(queue, kind)
    with deciders(storage, "exclusive") as (queue,):
        with opening(storage):
            thread = threads.start(lambda: decided.append(decide(queue, verdict)))
            wait_until(lambda: is_waiting(thread))
            assert decided == []
        threads.join()
        assert decided == [offsets(kind, verdict)]
        assert queue.prepared() == []
    assert shown(storage) == after(kind, committed=VERDICTS[verdict])


@pytest.mark.parametrize("kind", HOLDING)
def test_a_group_whose_opening_does_not_end_keeps_its_messages(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What only acknowledges stays in doubt; what is in the log counts, and its group follows later."""
    monkeypatch.setattr(vote_settling, "_OPENING_SECONDS", 0.02)
    with open_queue(storage, mode="exclusive") as queue:
        leave_in_doubt(queue, kind)
    with deciders(storage, "exclusive") as (queue,):
        with opening(storage):
            if kind == "acks":
                with pytest.raises(QueueLockedError, match="just being opened"):
                    queue.commit_prepared("t")
                assert prepared_ids(queue) == ["t"]
            else:
                assert queue.commit_prepared("t") == range(3, 4)
        assert queue.commit_prepared("t") == offsets(kind, "commit")
        assert queue.prepared() == []
    assert shown(storage) == after(kind, committed=True)


# -- Votes whose puts were never prepared ------------------------------------------------------------------------------


def between_vote_and_puts() -> SimulatedStorage:
    """Return what a kill leaves in the middle of ``prepare``: a vote whose puts are nowhere."""
    storage = SimulatedStorage()
    left: list[SimulatedStorage] = []
    with open_queue(storage, mode="exclusive") as queue:
        queue.groups.create("other")
        queue.put_many([b"one", b"two", b"three"])

        def cut(verb: str, path: Path) -> None:
            if not left and verb == "write_at" and path.parent == ORDERS / "prepared" and path.suffix == ".log":
                left.append(storage.crash_keeping_all())

        storage.before_verb = cut
        prepare(queue, "both", "t")
        storage.before_verb = None
    with open_queue(left[0], mode="read_only") as look:
        assert prepared_ids(look) == ["t"]
    return left[0]


class Everything(set[bytes]):
    """Each transaction is being decided."""

    def __contains__(self, _: object) -> bool:
        return True


@pytest.mark.parametrize("group", ["default", "other"])
def test_while_the_log_has_yet_to_say_the_vote_is_not_settled(monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    """A thread of the same process is at it just now, through a handle of whichever group."""
    storage = between_vote_and_puts()
    with monkeypatch.context() as unseen:
        unseen.setattr(PreparedResolver, "resolve", lambda _: True)
        queue = open_queue(storage, mode="exclusive", group=group)
    with queue:
        coordinator = handle_of(queue).coordinator
        monkeypatch.setattr(coordinator, "_deciding", Everything())
        assert prepared_ids(queue) == ["t"]
        for verdict in VERDICTS:
            with pytest.raises(TransactionStateError, match="just now"):
                decide(queue, verdict)
        monkeypatch.setattr(coordinator, "_deciding", set())
        assert queue.prepared() == []
    assert shown(storage) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("how", [*OPENED, "by its own group"])
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("is_seen", [True, False], ids=["at opening", "when it is decided"])
def test_a_vote_whose_puts_were_never_prepared_is_let_go(
    monkeypatch: pytest.MonkeyPatch, is_seen: bool, how: str, verdict: str
) -> None:
    """Its process died in ``prepare``: no caller was told of it, and committing half of it would lose a message."""
    crashed = between_vote_and_puts()
    with monkeypatch.context() as unseen, ExitStack() as stack:
        if not is_seen:
            unseen.setattr(PreparedResolver, "resolve", lambda _: True)
        if how == "by its own group":
            queue = stack.enter_context(open_queue(crashed, mode="exclusive"))
        else:
            (queue, *_) = stack.enter_context(deciders(crashed, how))
        assert prepared_ids(queue) == ([] if is_seen else ["t"])
        with pytest.raises(TransactionNotFoundError):
            decide(queue, verdict)
        assert queue.prepared() == []
    assert shown(crashed) == shown(crashed, "other") == [b"one", b"two", b"three"]
