"""Joint commits that are cut off, on disks that fail, and with files that are damaged."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CommitUnknownError,
    CorruptionError,
    PersistentQueue,
    PoisonedError,
    StorageError,
    TransactionStateError,
    verify,
)
from holdfast.persistence.outcomes import joint_file
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.builders.joint import APP, JOINT, clear_header, commit, damage, part
from support.builders.transactions import ORDERS, cut_power, kill, open_queue, prepared_ids, waiting
from support.owners.machine_link import machine_links
from support.processes.children import Child
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage


@pytest.mark.parametrize("ends", [kill, cut_power])
def test_a_restart_between_prepare_and_commit_changes_nothing(
    storage: SimulatedStorage, ends: Callable[..., SimulatedStorage]
) -> None:
    """Parts wait for their commit, and are committed by the next process."""
    queue = open_queue(storage)
    part(queue, "a")
    part(queue, "b")
    storage = ends(storage, queue)
    with open_queue(storage) as queue:
        assert prepared_ids(queue) == ["a", "b"]
        assert waiting(queue) == []
        commit(queue, 1, "b", "a")
        assert waiting(queue) == [b"b", b"a"]


def test_closing_waits_for_a_joint_commit(storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it the next owner finishes what was decided: two processes would publish the parts."""
    queue = open_queue(storage, mode="exclusive")
    part(queue, "a")
    part(queue, "b")
    calls, closer, settle = handle_of(queue).calls, threading.Thread(target=queue.close), PreparedResolver.settle

    def close_meanwhile(*arguments: Any) -> bool:
        if closer.ident is None:
            closer.start()
        while not calls.is_over:
            time.sleep(0.001)
        return settle(*arguments)

    monkeypatch.setattr(PreparedResolver, "settle", close_meanwhile)
    commit(queue, 1, "b", "a")
    closer.join(10)
    with open_queue(storage) as again:
        assert waiting(again) == [b"b", b"a"]


def interrupted(storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch) -> PersistentQueue:
    """Return a queue whose commit of version 1 was decided, and nothing of it published; "loser" is not named."""
    queue = open_queue(storage, mode="exclusive")
    queue.groups.create("other")
    for name in ("first", "second", "loser"):
        part(queue, name)
    with monkeypatch.context() as patch:

        def failing(*_: object) -> bool:
            raise StorageError("the disk has gone")

        patch.setattr(PreparedResolver, "settle", failing)
        with pytest.raises(StorageError, match="the disk has gone"):
            commit(queue, 1, "second", "first")
    assert queue.joint_commits.latest(APP) == 1, "decided"
    assert waiting(queue) == []
    return queue


@pytest.mark.parametrize("ends", [kill, cut_power])
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("group", ["default", "other"])
def test_what_was_decided_is_published_by_the_next_opening(
    storage: SimulatedStorage,
    monkeypatch: pytest.MonkeyPatch,
    ends: Callable[..., SimulatedStorage],
    mode: str,
    group: str,
) -> None:
    """All of it, in its order, once; what was not named is gone. The next opening does so, for any group."""
    storage = ends(storage, interrupted(storage, monkeypatch))
    with machine_links(), open_queue(storage, mode=mode, group=group) as queue:
        assert prepared_ids(queue) == []
        assert waiting(queue) == [b"second", b"first"]
    with open_queue(storage) as queue:
        assert waiting(queue) == [b"second", b"first"]
        commit(queue, 1, "second", "first")
        assert waiting(queue) == [b"second", b"first"]


def test_a_process_that_is_killed_behind_the_decision_has_committed(tmp_path: Path) -> None:
    """SIGKILL between two parts; the next process finishes what the first one has begun."""
    path = tmp_path / "orders"

    def commit_and_die() -> None:
        settle = PreparedResolver.settle

        def dying(self: PreparedResolver, transaction_id: str, nonce: bytes) -> bool:
            if transaction_id == "second":
                os.kill(os.getpid(), signal.SIGKILL)
            return settle(self, transaction_id, nonce)

        PreparedResolver.settle = dying  # type: ignore[method-assign]
        with PersistentQueue(path, mode="exclusive") as queue:
            for name in ("first", "second", "third", "loser"):
                part(queue, name)
            commit(queue, 1, "first", "second", "third")

    assert Child(commit_and_die).wait() == -signal.SIGKILL
    with PersistentQueue(path, mode="read_only") as look:
        assert (waiting(look), look.joint_commits.latest(APP)) == ([b"first"], 1)
    with PersistentQueue(path, mode="exclusive") as queue:
        assert waiting(queue) == [b"first", b"second", b"third"]
        assert queue.prepared() == []
        commit(queue, 1, "first", "second", "third")
        assert queue.qsize() == 3
    assert verify(path).ok


def test_what_was_decided_comes_in_its_order_whoever_looks_in_between(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verb on one part publishes none of them by itself; listing what is prepared publishes all of them."""
    with interrupted(storage, monkeypatch) as queue:
        assert "joint commit 1 of stream is decided, and 2 of its parts wait" in str(verify(ORDERS, storage=storage))
        with pytest.raises(TransactionStateError):
            queue.commit_prepared("first")
        assert waiting(queue) == []
        assert queue.prepared() == []
        assert waiting(queue) == [b"second", b"first"]
    assert verify(ORDERS, storage=storage).notes == ()


def test_the_next_version_publishes_first_what_is_left_of_the_one_before(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory keeps one commit of an application, so it must not be lost under the next."""
    with interrupted(storage, monkeypatch) as queue:
        part(queue, "c", 2)
        commit(queue, 2, "c")
        assert waiting(queue) == [b"second", b"first", b"c"]


@pytest.mark.parametrize("is_header", [True, False], ids=["header", "payload"])
def test_a_part_that_is_damaged_behind_the_decision_is_said_and_not_passed_over(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_header: bool
) -> None:
    """Every commit of the application says so until somebody gives it up; others are not held up."""
    with interrupted(storage, monkeypatch) as queue:
        part(queue, "other", application="other")
    path = JOINT.with_name("first.batch")
    if is_header:
        clear_header(storage, path)
    else:
        damage(storage, path, b"first")
    with caplog.at_level(logging.ERROR, "holdfast"):
        queue = open_queue(storage)
    assert "is not finished" in caplog.text
    assert waiting(queue) == [b"second"]
    for version in (1, 2):
        with pytest.raises(CorruptionError, match="which is decided"):
            commit(queue, version)
    commit(queue, 1, "other", application="other")
    queue.abort_prepared("first", force=True)
    commit(queue, 2)
    assert waiting(queue) == [b"second", b"other"]
    assert queue.prepared() == []
    queue.close()


def test_an_unknown_decision_stops_joint_commits_until_the_queue_is_reopened(storage: SimulatedStorage) -> None:
    """The directory was not synced: whole or nothing, once it is opened again. Puts go on."""
    queue = open_queue(storage)
    part(queue, "a")
    part(queue, "b")
    syncs = FaultPlan(1, errno.EIO, verbs=frozenset({"sync_directory"}))
    storage.faults = syncs
    with pytest.raises(CommitUnknownError, match="committing jointly"):
        commit(queue, 1, "a", "b")
    storage.faults = None
    assert syncs.fired_count == 1
    calls: list[Callable[[], object]] = [partial(commit, queue, 1, "a", "b"), partial(part, queue, "c")]
    for call in [*calls, partial(queue.joint_commits.latest, APP)]:
        with pytest.raises(PoisonedError, match="Reopen"):
            call()
    queue.put(b"between")
    for left in (storage.crash_keeping_all(), storage.crash_dropping_unsynced()):
        with open_queue(left) as again:
            is_committed = again.joint_commits.latest(APP) == 1
            assert waiting(again) == [b"between"] + ([b"a", b"b"] if is_committed else [])
            assert prepared_ids(again) == ([] if is_committed else ["a", "b"])
            commit(again, 1, "a", "b")
            assert waiting(again) == [b"between", b"a", b"b"]
    queue.close()


def test_a_decision_that_was_refused_is_none(storage: SimulatedStorage) -> None:
    """A full disk: nothing was committed, and it can be tried again on the same handle."""
    with open_queue(storage) as queue:
        part(queue, "a")
        storage.faults = FaultPlan(1, errno.ENOSPC, verbs=frozenset({"write_at"}))
        with pytest.raises(StorageError):
            commit(queue, 1, "a")
        storage.faults = None
        assert queue.joint_commits.latest(APP) is None
        assert prepared_ids(queue) == ["a"]
        commit(queue, 1, "a")
        assert waiting(queue) == [b"a"]


def test_with_a_damaged_memory_the_queue_works_and_joint_commits_do_not(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """Every verb names the file; who cannot restore it decides what waits by force."""
    with open_queue(storage) as queue:
        part(queue, "a")
        commit(queue, 1, "a")
        part(queue, "b", 2)
        part(queue, "c", 2)
    damage(storage, JOINT)
    (damaged,) = verify(ORDERS, storage=storage).damage
    assert damaged.path == JOINT
    assert "the outcomes of joint commits are unknown" in damaged.reason
    with caplog.at_level(logging.ERROR, "holdfast"):
        queue = open_queue(storage)
    assert str(JOINT) in caplog.text
    queue.put(b"put")
    assert [queue.get(timeout=0) for _ in range(2)] == [b"a", b"put"]
    joint = queue.joint_commits
    calls: list[Callable[[], object]] = [partial(joint.latest, APP), partial(commit, queue, 2, "b")]
    for call in [*calls, partial(joint.abort, APP, 2), partial(joint.collect, 0), partial(part, queue, "d", 3)]:
        with pytest.raises(CorruptionError, match=rf"{JOINT}.* restore it"):
            call()
    assert prepared_ids(queue) == ["b", "c"]
    queue.commit_prepared("b", force=True)
    queue.abort_prepared("c", force=True)
    assert waiting(queue) == [b"b"]
    queue.close()


def test_only_so_many_applications_are_remembered(storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest that is finished goes first, over restarts too; one that is not remembered takes no place."""
    monkeypatch.setattr(joint_file, "JOINT_APPLICATIONS_MAX", 3)
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        for number in range(4):
            clock.advance(1)
            name = f"app-{number}"
            part(queue, name, application=name)
            commit(queue, 1, name, application=name)
            queue.joint_commits.commit(f"once-{number}", 1, [], is_remembered=False)
    with open_queue(storage) as queue:
        assert [queue.joint_commits.latest(f"app-{number}") for number in range(4)] == [None, None, 1, 1]
        assert queue.qsize() == 4


def test_a_commit_that_is_not_remembered_takes_no_place_with_an_owner_of_its_own(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each write of a batch job has one. Who asks its owner again is told so, though others have committed."""
    monkeypatch.setattr(joint_file, "JOINT_APPLICATIONS_MAX", 3)
    with open_queue(storage) as queue:
        part(queue, "nightly", application="nightly")
        commit(queue, 1, "nightly", application="nightly")
    for number in range(4):
        with open_queue(storage) as queue:
            part(queue, f"once-{number}", application=f"once-{number}")
            queue.joint_commits.commit(f"once-{number}", 1, [f"once-{number}"], is_remembered=False)
    with open_queue(storage) as queue:
        assert queue.joint_commits.latest("nightly") == 1
        assert queue.joint_commits.latest("once-3") == 1, "until the next commit"
        queue.joint_commits.commit("other", 1, [])
        queue.joint_commits.commit("once-3", 1, ["once-3"], is_remembered=False)
        assert queue.qsize() == 5
    with open_queue(storage) as queue:
        known = [queue.joint_commits.latest(name) for name in ("nightly", "other", *(f"once-{n}" for n in range(4)))]
        assert known == [1, 1, None, None, None, None]
