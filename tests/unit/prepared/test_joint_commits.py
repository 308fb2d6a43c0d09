"""``queue.joint_commits``: many prepared transactions committed as one, once for each application and version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ConfigError,
    CorruptionError,
    PersistentQueue,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
)
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.outcomes.joint_file import JointCommit, JointFile
from holdfast.queue.transactions.transaction_state import State
from support.builders.clocks import FakeClock
from support.builders.joint import APP, JOINT, clear_header, commit, damage, part
from support.builders.transactions import cut_power, open_queue, prepare, prepared_ids, waiting
from support.owners.machine_link import machine_links
from support.processes.threads import Threads
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def queue(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """Open an empty queue."""
    with open_queue(storage) as opened:
        yield opened


# -- What a commit does ------------------------------------------------------------------------------------------------


def test_parts_come_into_the_log_in_the_order_that_is_named_each_together(queue: PersistentQueue) -> None:
    """Whatever their order of preparing; an id that is named twice counts once, and a commit of nothing is one too."""
    for name in ("a", "b", "c"):
        part(queue, name, 1, name.encode() + b" 1", name.encode() + b" 2")
    assert waiting(queue) == []
    assert queue.joint_commits.latest(APP) is None
    commit(queue, 1, "c", "a", "b", "c")
    assert waiting(queue) == [b"c 1", b"c 2", b"a 1", b"a 2", b"b 1", b"b 2"]
    assert queue.prepared() == []
    commit(queue, 5)
    assert (queue.joint_commits.latest(APP), queue.qsize()) == (5, 6)


@pytest.mark.parametrize("is_reopened", [False, True], ids=["same handle", "reopened"])
def test_a_version_is_committed_once_and_none_before_the_latest(storage: SimulatedStorage, is_reopened: bool) -> None:
    """Whatever ids are named then."""
    queue = open_queue(storage)
    part(queue, "a", 7)
    commit(queue, 7, "a")
    if is_reopened:
        queue.close()
        queue = open_queue(storage)
    for version, ids in ((7, ["a"]), (7, ["unknown"]), (3, []), (0, ["a", "b"])):
        commit(queue, version, *ids)
    assert waiting(queue) == [b"a"]
    assert queue.joint_commits.latest(APP) == 7
    queue.close()


def test_parts_that_are_not_named_are_let_go_up_to_this_version_and_of_this_application_alone(
    queue: PersistentQueue,
) -> None:
    """What failed attempts have left goes; later versions, other applications and other transactions stay."""
    for name, version, application in (
        ("loser", 2, APP),
        ("earlier", 1, APP),
        ("winner", 2, APP),
        ("later", 3, APP),
        ("other", 2, "other"),
    ):
        part(queue, name, version, application=application)
    prepare(queue, "puts", "plain")
    commit(queue, 2, "winner")
    assert waiting(queue) == [b"winner"]
    assert prepared_ids(queue) == ["later", "other", "plain"]
    part(queue, "loser", 3)  # its name is free again
    commit(queue, 3, "loser")
    assert waiting(queue) == [b"winner", b"loser"]


def test_a_part_that_comes_too_late_is_refused(queue: PersistentQueue) -> None:
    """Its version was committed without it. The transaction stays open, and may be part of a later one."""
    commit(queue, 4)
    transaction = queue.begin()
    transaction.put(b"late")
    for version in (4, 2):
        with pytest.raises(TransactionStateError, match="is too late: stream has committed version 4"):
            transaction.prepare("late", part_of=(APP, version))
        assert transaction.state is State.OPEN
    transaction.prepare("late", part_of=(APP, 5))
    commit(queue, 5, "late")
    assert waiting(queue) == [b"late"]


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (["mine", "missing"], TransactionNotFoundError),
        (["mine", "../mine"], TransactionNotFoundError),
        (["mine", "not\0a name"], TransactionNotFoundError),
        (["mine", "plain"], TransactionStateError),
        (["mine", "others"], TransactionStateError),
        (["mine", "later"], TransactionStateError),
        (["mine", "payload"], CorruptionError),
        (["mine", "header"], CorruptionError),
    ],
    ids=["missing", "a path", "no name", "no part", "another application's", "later", "a payload", "a header"],
)
def test_one_part_that_cannot_be_committed_stops_all(
    storage: SimulatedStorage, ids: list[str], error: type[Exception]
) -> None:
    """Nothing is committed, let go of or remembered; with the part replaced it goes."""
    with open_queue(storage) as queue:
        for name in ("mine", "payload", "header"):
            part(queue, name)
        part(queue, "others", application="other")
        part(queue, "later", 2)
        prepare(queue, "puts", "plain")
    damage(storage, JOINT.with_name("payload.batch"), b"payload")
    clear_header(storage, JOINT.with_name("header.batch"))
    with open_queue(storage) as queue:
        before = set(prepared_ids(queue))
        with pytest.raises(error, match="nothing was committed"):
            commit(queue, 1, *ids)
        assert waiting(queue) == []
        assert set(prepared_ids(queue)) == before
        assert queue.joint_commits.latest(APP) is None
        commit(queue, 1, "mine")
        assert waiting(queue) == [b"mine"]


def test_a_large_part_is_adopted_and_keeps_its_place(storage: SimulatedStorage) -> None:
    """Its file becomes a data file between those of small ones."""
    with open_queue(storage) as queue:
        large = [b"%03d" % number * 400 for number in range(100)]
        part(queue, "small")
        part(queue, "large", 1, *large)
        part(queue, "last")
        files = queue.stats().file_count
        commit(queue, 1, "small", "large", "last")
        assert queue.stats().file_count > files
        expected = [b"small", *large, b"last"]
        assert waiting(queue) == expected
        left = cut_power(storage)
    with open_queue(left) as queue:
        assert waiting(queue) == expected
        assert queue.prepared() == []


# -- Who may decide a part ---------------------------------------------------------------------------------------------


def test_a_part_is_decided_by_its_commit_alone_unless_by_force(queue: PersistentQueue) -> None:
    """The error says what decides it; a later commit of what was forced finds it gone."""
    part(queue, "a")
    transaction = queue.begin()
    transaction.put(b"b")
    transaction.prepare("b", part_of=(APP, 1))
    calls: list[Callable[[], object]] = [transaction.commit, transaction.abort]
    calls += [partial(verb, "a") for verb in (queue.commit_prepared, queue.abort_prepared)]
    for call in calls:
        with pytest.raises(TransactionStateError, match="is a part of version 1 of stream: joint_commits decides it"):
            call()
    assert transaction.state is State.PREPARED
    assert prepared_ids(queue) == ["a", "b"]
    assert queue.commit_prepared("a", force=True) == range(1)
    queue.abort_prepared("b", force=True)
    assert waiting(queue) == [b"a"]
    for name in ("a", "b"):
        with pytest.raises(TransactionNotFoundError):
            commit(queue, 1, name)


def test_prepared_shows_what_a_part_belongs_to(storage: SimulatedStorage) -> None:
    """Over a restart, in every mode; of others it is None."""
    with open_queue(storage) as queue:
        part(queue, "a", 9)
        prepare(queue, "puts", "plain")
    for mode in ("exclusive", "shared", "read_only"):
        with machine_links(), open_queue(storage, mode=mode) as queue:
            assert [(each.id, each.part_of, each.coordinator) for each in queue.prepared()] == [
                ("a", PartOf(APP, 9), None),
                ("plain", None, None),
            ]


def test_a_part_only_puts(queue: PersistentQueue) -> None:
    """One that acknowledges is refused before anything is done; one that has only received gives back."""
    queue.put_many([b"one", b"two"])
    transaction = queue.begin()
    transaction.ack(transaction.receive(timeout=0))
    transaction.put(b"x")
    with pytest.raises(UsageError, match="only puts"):
        transaction.prepare("t", part_of=(APP, 1))
    assert transaction.state is State.OPEN
    transaction.commit()
    transaction = queue.begin()
    transaction.receive(timeout=0)
    transaction.prepare("empty", part_of=(APP, 1))
    commit(queue, 1, "empty")
    assert waiting(queue) == [b"two", b"x"]


@pytest.mark.parametrize(
    ("application", "version"),
    [("", 1), (".a", 1), ("a/b", 1), ("a" * 101, 1), (APP, -1), (APP, 2**63), (APP, True), (APP, "1"), (APP, 1.0)],
)
def test_names_and_versions_that_cannot_be_are_refused(queue: PersistentQueue, application: str, version: Any) -> None:
    """By every verb, and the transaction stays open."""
    transaction = queue.begin()
    transaction.put(b"x")
    joint = queue.joint_commits
    for call in (
        partial(transaction.prepare, part_of=(application, version)),
        partial(joint.commit, application, version, []),
        partial(joint.abort, application, version),
    ):
        with pytest.raises(ConfigError, match=r"cannot name|a version is"):
            call()
    assert transaction.state is State.OPEN
    if application != APP:
        with pytest.raises(ConfigError, match="cannot name"):
            joint.latest(application)


def test_the_largest_version_is_the_last_one(queue: PersistentQueue) -> None:
    """Versions may be as large as a file can say."""
    commit(queue, 0)
    assert queue.joint_commits.latest(APP) == 0
    part(queue, "a", 2**63 - 1)
    commit(queue, 2**63 - 1, "a")
    assert queue.joint_commits.latest(APP) == 2**63 - 1


# -- Letting go --------------------------------------------------------------------------------------------------------


def test_abort_lets_go_of_what_was_not_committed_and_of_nothing_else(queue: PersistentQueue) -> None:
    """Behind a commit it does nothing, so whoever does not know may call it; the version can be committed later."""
    for version in (1, 2, 3):
        part(queue, f"v{version}", version)
    commit(queue, 1, "v1")
    queue.joint_commits.abort(APP, 1)
    queue.joint_commits.abort(APP, 2)
    queue.joint_commits.abort("nobody", 2)
    assert prepared_ids(queue) == ["v3"]
    assert waiting(queue) == [b"v1"]
    assert queue.joint_commits.latest(APP) == 1
    part(queue, "v2", 2)
    commit(queue, 2, "v2")
    assert waiting(queue) == [b"v1", b"v2"]


def test_collect_lets_go_of_what_is_old_whosever_it_is(storage: SimulatedStorage) -> None:
    """By the wall clock; other prepared transactions are nobody's leftovers."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        part(queue, "old", application="a")
        part(queue, "old-too", application="b")
        prepare(queue, "puts", "plain")
        clock.advance(50)
        part(queue, "young", 2, application="a")
        clock.advance(50)
        queue.joint_commits.collect(101)
        assert prepared_ids(queue) == ["old", "old-too", "plain", "young"]
        queue.joint_commits.collect(100)
        assert prepared_ids(queue) == ["plain", "young"]
        for seconds in (-1, float("nan"), float("inf")):
            with pytest.raises(ConfigError, match="older_than_seconds"):
                queue.joint_commits.collect(seconds)
        queue.joint_commits.collect(0)
        assert prepared_ids(queue) == ["plain"]


# -- Many at once ------------------------------------------------------------------------------------------------------


def test_threads_prepare_and_several_commit_the_same_version_once(queue: PersistentQueue, threads: Threads) -> None:
    """Others look at what is prepared meanwhile."""
    for version in range(1, 4):
        ids = [f"v{version}-{number}" for number in range(8)]
        for name in ids:
            threads.start(partial(part, queue, name, version))
        threads.join()
        for work in (partial(commit, queue, version, *ids), queue.prepared) * 2:
            threads.start(work)
        threads.join()
        assert waiting(queue)[-8:] == [name.encode() for name in ids]
    assert queue.qsize() == 24
    assert queue.prepared() == []


def test_one_at_a_time_decides_for_an_application(
    queue: PersistentQueue, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one finds the decision; it would wait in vain for the first to have company."""
    decided, company, decide = [], threading.Barrier(2), JointFile.decide

    def deciding(self: JointFile, commit: JointCommit) -> JointCommit:
        decided.append(commit.parts)
        with suppress(threading.BrokenBarrierError):
            company.wait(0.2)
        return decide(self, commit)

    monkeypatch.setattr(JointFile, "decide", deciding)
    part(queue, "a")
    for _ in range(2):
        threads.start(partial(commit, queue, 1, "a"))
    threads.join()
    assert len(decided) == 1
    assert waiting(queue) == [b"a"]


def test_a_client_and_the_owner_commit_the_same_version_once(tmp_path: Path, threads: Threads) -> None:
    """They take turns, two threads of each."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="shared") as owner, PersistentQueue(path, mode="shared", can_own=False) as client:
        ids = [part(handle, f"p{number}", 1) for number, handle in enumerate((owner, client) * 4)]
        for handle in (owner, client) * 2:
            threads.start(partial(commit, handle, 1, *ids))
        threads.join()
        assert waiting(owner) == waiting(client) == [name.encode() for name in ids]
        assert client.joint_commits.latest(APP) == owner.joint_commits.latest(APP) == 1
