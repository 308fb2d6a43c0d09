"""The memory of joint commits: decided as a whole, bounded, and honest about what it does not know."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import CommitUnknownError, CorruptionError, PoisonedError, StorageError, UnsupportedVersionError
from holdfast.persistence.filesystem.document import write_document
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.format.constants import FORMAT_VERSION
from holdfast.persistence.outcomes import joint_file
from holdfast.persistence.outcomes.joint_file import JointCommit, JointFile
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

DIRECTORY = Path("/prepared")
PATH = DIRECTORY / "joint.json"
PARTS = (("first", b"1" * 16), ("second", b"2" * 16))


@pytest.fixture
def storage() -> SimulatedStorage:
    """A disk with the directory."""
    storage = SimulatedStorage()
    storage.make_directory(DIRECTORY)
    storage.sync_directory(Path("/"))
    return storage


def opened(storage: SimulatedStorage, *, is_owner: bool = True) -> JointFile:
    """Open the memory."""
    return JointFile(storage, PATH, is_owner=is_owner)


def commit_of(application: str, version: int = 1, *, at: int = 1, has_parts: bool = True) -> JointCommit:
    """Return a commit of two parts, or of none."""
    return JointCommit(application, version, at, PARTS if has_parts else ())


def test_what_is_decided_outlives_a_loss_of_power(storage: SimulatedStorage) -> None:
    """With the parts in their order, for whoever reads it next."""
    joint = opened(storage)
    assert joint.find("a") is None
    assert joint.pending() == []
    joint.decide(commit_of("a", 7, at=2))
    assert joint.decide(commit_of("b", 1, at=1)) == commit_of("b", 1, at=3), "younger, though the clock was set back"
    for again in (joint, opened(storage.crash_dropping_unsynced())):
        assert again.find("a") == commit_of("a", 7, at=2)
        assert again.pending() == [commit_of("a", 7, at=2), commit_of("b", 1, at=3)], "oldest first"


def test_a_commit_says_what_it_covers_and_what_it_commits() -> None:
    """A part is committed by its nonce: what has its id by now is another one."""
    commit = commit_of("a", 7)
    assert [commit.covers(PartOf("a", version)) for version in (6, 7, 8)] == [True, True, False]
    assert commit.commits(PartOf("a", 7), b"2" * 16)
    assert not commit.commits(PartOf("a", 7), b"3" * 16)
    assert commit.commits(PartOf("a", 6), b"2" * 16)  # of an earlier version, kept for a queue that was away
    assert not commit.commits(PartOf("a", 8), b"2" * 16)


def test_finished_is_noted_by_the_next_decision(storage: SimulatedStorage) -> None:
    """Until then a crash brings the parts back: they are looked for, and are in the log already."""
    joint = opened(storage)
    joint.decide(commit_of("a"))
    joint.finished(commit_of("a", version=2))
    assert joint.pending() == [commit_of("a")], "that was another one"
    joint.finished(commit_of("a"))
    assert joint.pending() == []
    assert opened(storage).pending() == [commit_of("a")]
    joint.decide(commit_of("b", at=2))
    assert opened(storage).pending() == [commit_of("b", at=2)]
    assert opened(storage).find("a") == commit_of("a", has_parts=False)


def test_the_oldest_finished_application_is_forgotten_first(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never one with parts; and the order is that of the decisions, wherever the clock was set."""
    monkeypatch.setattr(joint_file, "JOINT_APPLICATIONS_MAX", 3)
    joint = opened(storage)
    for number, application in enumerate("abc"):
        joint.decide(commit_of(application, at=100 + number))
    for application in "bc":
        joint.finished(commit_of(application, at=100 + "abc".index(application)))
    joint.decide(commit_of("d", at=1, has_parts=False))
    assert {name: joint.find(name) is not None for name in "abcd"} == {"a": True, "b": False, "c": True, "d": True}
    joint.decide(commit_of("e", at=200))
    assert {name: joint.find(name) is not None for name in "acde"} == {"a": True, "c": False, "d": True, "e": True}
    for number, application in enumerate("fgh"):
        joint.decide(commit_of(application, at=300 + number))
    assert [each.application for each in joint.pending()] == ["a", "e", "f", "g", "h"], "none of these is let go of"
    assert joint.find("d") is None
    assert opened(storage).find("h") == commit_of("h", at=302)


def test_an_application_that_is_not_remembered_goes_once_it_is_finished(storage: SimulatedStorage) -> None:
    """From the next decision on; with parts pending it stays. Its owner still knows, for who has not heard."""
    joint = opened(storage)
    joint.decide(commit_of("a"))
    joint.forget("a")
    assert joint.find("a") == commit_of("a")
    joint.finished(commit_of("a"))
    joint.forget("a")
    joint.forget("never")
    joint.decide(commit_of("b", at=2))
    assert joint.find("a") == commit_of("a", has_parts=False)
    assert opened(storage).find("a") is None
    joint.decide(commit_of("a", version=2, at=3))
    assert joint.find("a") == opened(storage).find("a") == commit_of("a", version=2, at=3)


def test_what_is_not_remembered_is_bounded_too(storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes first."""
    monkeypatch.setattr(joint_file, "JOINT_APPLICATIONS_MAX", 2)
    joint = opened(storage)
    for number, application in enumerate("abc"):
        joint.decide(commit_of(application, at=1 + number, has_parts=False))
        joint.forget(application)
    assert [joint.find(application) is not None for application in "abc"] == [False, True, True]


def test_a_commit_that_is_not_remembered_stays_until_it_is_finished(storage: SimulatedStorage) -> None:
    """It is written with a mark, so that also the next owner leaves it out; no parts that wait are lost."""
    opened(storage).decide(replace(commit_of("a"), is_remembered=False))
    joint = opened(storage)
    joint.decide(commit_of("b", at=2))
    assert opened(storage).find("a") == replace(commit_of("a"), is_remembered=False)
    joint.finished(replace(commit_of("a"), is_remembered=False))
    joint.decide(commit_of("c", at=3))
    assert opened(storage).find("a") is None
    assert joint.find("a") is not None


def test_who_does_not_own_it_sees_what_others_decide(storage: SimulatedStorage) -> None:
    """It reads each time; an owner reads once."""
    owner, other = opened(storage), opened(storage, is_owner=False)
    assert other.find("a") is None
    owner.decide(commit_of("a", 1))
    assert other.find("a") == commit_of("a", 1)
    owner.decide(commit_of("a", 2, at=2))
    assert other.find("a") == commit_of("a", 2, at=2)


@pytest.mark.parametrize("verb", ["open", "write_at", "sync", "rename"])
def test_a_disk_that_refuses_before_the_rename_leaves_it_undecided(storage: SimulatedStorage, verb: str) -> None:
    """The old memory stays, and the next decision is fine."""
    joint = opened(storage)
    joint.decide(commit_of("a", 1))
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({verb}))
    with pytest.raises(StorageError) as raised:
        joint.decide(commit_of("a", 2, at=2))
    assert type(raised.value) is StorageError
    storage.faults = None
    assert joint.find("a") == opened(storage).find("a") == commit_of("a", 1)
    joint.decide(commit_of("a", 2, at=2))
    assert opened(storage.crash_dropping_unsynced()).find("a") == commit_of("a", 2, at=2)


def test_a_decision_that_may_stand_there_is_unknown_until_it_is_opened_again(storage: SimulatedStorage) -> None:
    """A second sync of the directory could succeed over a lost name: so nothing is decided or said any more."""
    joint = opened(storage)
    storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync_directory"}))
    with pytest.raises(CommitUnknownError, match="committing jointly"):
        joint.decide(commit_of("a"))
    storage.faults = None
    for call in (lambda: joint.find("a"), joint.pending, lambda: joint.decide(commit_of("b"))):
        with pytest.raises(PoisonedError):
            call()
    assert opened(storage).find("a") == commit_of("a")
    assert opened(storage.crash_dropping_unsynced()).find("a") in (None, commit_of("a"))


@pytest.mark.parametrize(
    "applications",
    [None, [], {"a": 1}, {"a": {"version": 1, "at": 1}}, {"a": {"version": "x", "at": 1, "parts": []}}],
    ids=repr,
)
def test_a_document_that_says_something_else_is_damage(storage: SimulatedStorage, applications: object) -> None:
    """Its checksum may be right all the same."""
    write_document(storage, PATH, {"format": FORMAT_VERSION, "applications": applications})
    with pytest.raises(CorruptionError, match=r"joint\.json is damaged .*restore it"):
        opened(storage).find("a")


def test_a_document_that_does_not_verify_is_damage_and_is_left_as_it_is(storage: SimulatedStorage) -> None:
    """No decision is written over it; one of a newer version says so."""
    opened(storage).decide(commit_of("a"))
    with_fault = storage.crash_keeping_all()
    file = with_fault.open(PATH)
    file.write_at((b"#",), 0)
    file.close()
    content = with_fault.tree()
    joint = opened(with_fault)
    for call in (lambda: joint.find("a"), joint.pending, lambda: joint.decide(commit_of("b"))):
        with pytest.raises(CorruptionError, match=r"/prepared/joint\.json"):
            call()
    assert with_fault.tree() == content
    write_document(storage, PATH, {"format": FORMAT_VERSION + 1, "applications": {}})
    with pytest.raises(UnsupportedVersionError):
        opened(storage).find("a")


def test_a_decision_that_cannot_be_looked_at_any_more_is_unknown(storage: SimulatedStorage) -> None:
    """It may stand there, so nobody is told that it does not."""
    joint = opened(storage)
    joint.decide(commit_of("a"))
    with (
        refusing(storage, "sync_directory"),
        refusing(storage, "open", "joint.json"),
        pytest.raises(CommitUnknownError, match="committing jointly"),
    ):
        joint.decide(commit_of("a", 2, at=2))
    assert opened(storage).find("a") == commit_of("a", 2, at=2)


def test_a_disk_that_refuses_is_not_taken_for_an_empty_memory(storage: SimulatedStorage) -> None:
    """Else a commit that has happened could happen again."""
    opened(storage).decide(commit_of("a"))
    joint = opened(storage)
    with refusing(storage, "open", "joint.json"), pytest.raises(StorageError, match="reading joint commits"):
        joint.find("a")
    assert joint.find("a") == commit_of("a")
