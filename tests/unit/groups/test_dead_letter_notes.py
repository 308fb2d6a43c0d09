"""Notes of dead letters: kept beside the group, and nothing depends on them."""

from pathlib import Path

import pytest

from holdfast.persistence.groups.dead_letter_notes import DeadLetterNotes
from support.builders.jobs import ROOT, Jobs, fail
from support.processes.log_handlers import text_said
from support.storages.faults import FaultPlan
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

GROUP = ROOT / "groups" / "default"
FIELDS = {"detail": "größe", "exception": "builtins.ValueError", "traceback": 'line 1\n"line 2"'}


def note_path(offset: int) -> Path:
    """Return where a note stands."""
    return GROUP / f"dead-{offset:020d}.json"


def overwrite(storage: SimulatedStorage, path: Path, content: bytes) -> None:
    """Replace all of a file."""
    file = storage.open(path, create=True)
    file.truncate(0)
    file.write_at((content,), 0)
    file.close()


@pytest.fixture
def notes() -> DeadLetterNotes:
    """Those of an empty group."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"a")
        queue.get()
    return DeadLetterNotes(jobs.storage, GROUP)


def test_a_note_comes_back_and_can_be_written_again_and_removed(notes: DeadLetterNotes) -> None:
    """The last one counts, also where it is shorter; removing what is not there does nothing."""
    assert notes.read(7) == {}
    notes.write(7, FIELDS)
    assert notes.read(7) == FIELDS
    notes.write(7, {"detail": "x"})
    assert notes.read(7) == {"detail": "x"}
    notes.remove(7)
    notes.remove(7)
    assert notes.read(7) == {}


def test_a_text_that_is_no_unicode_can_be_noted(notes: DeadLetterNotes) -> None:
    """Names of files have such letters, and exceptions say them."""
    notes.write(7, {"detail": "\udcff"})
    assert notes.read(7) == {"detail": "\udcff"}


def test_notes_of_what_is_no_dead_letter_are_removed_and_nothing_else(notes: DeadLetterNotes) -> None:
    """An earlier process may have died in between."""
    for offset in (1, 2, 3):
        notes.write(offset, FIELDS)
    notes.keep({2})
    assert [notes.read(offset) != {} for offset in (1, 2, 3)] == [False, True, False]
    names = notes._storage.list(GROUP)
    assert "group.json" in names
    assert "read.lock" in names


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"{", b"[]", b"null", b'"text"', b'{"detail": 5, "traceback": [1]}', bytes(100)],
    ids=repr,
)
def test_a_damaged_note_spoils_nothing(content: bytes) -> None:
    """The dead letter is there, with all that stands in the position file."""
    jobs = Jobs()
    with jobs.open(max_deliveries=1) as queue:
        queue.put_many([b"a", b"b"])
        fail(queue.receive())
        fail(queue.receive())
    overwrite(jobs.storage, note_path(0), content)
    with jobs.open(mode="read_only") as look:
        first, second = look.dead.list()
        assert (first.payload, first.reason, first.delivery_count) == (b"a", "exception", 1)
        assert second.exception == "builtins.RuntimeError"
        assert isinstance(first.detail, str)
    with jobs.open() as queue:
        assert queue.dead.retry([0, 1]) == 2
        assert queue.get_many(5) == [b"a", b"b"]


def test_a_missing_note_spoils_nothing() -> None:
    """As a damaged one."""
    jobs = Jobs()
    with jobs.open(max_deliveries=1) as queue:
        queue.put(b"a")
        fail(queue.receive())
        jobs.storage.remove(note_path(0))
        assert [(letter.reason, letter.exception) for letter in queue.dead.list()] == [("exception", "")]
        assert queue.dead.discard(0) == 1


@pytest.mark.parametrize("verb", ["open", "write_at", "sync", "truncate", "remove"])
def test_a_note_that_cannot_be_written_or_removed_stops_nobody(verb: str) -> None:
    """The message is a dead letter all the same, and can be retried."""
    jobs = Jobs()
    with jobs.open(max_deliveries=1) as queue:
        queue.put(b"a")
        delivery = queue.receive()
        jobs.storage.before_verb = lambda called, path: refuse(called, path, verb)
        fail(delivery)
        assert [letter.reason for letter in queue.dead.list()] == ["exception"]
        assert queue.dead.retry(0) == 1
        jobs.storage.before_verb = None
        assert queue.receive().delivery_count == 1


def refuse(called: str, path: Path, verb: str) -> None:
    """Fail one verb on notes."""
    if called == verb and path.name.startswith("dead-"):
        FaultPlan(1).strike("open", path)


def test_a_note_of_an_earlier_death_is_not_shown_for_a_later_one() -> None:
    """What an exception said has nothing to do with a lease that ran out after a retry."""
    jobs = Jobs()
    with jobs.open(max_deliveries=1) as queue:
        queue.put(b"a")
        fail(queue.receive())
        jobs.storage.before_verb = lambda called, path: refuse(called, path, "remove")
        queue.dead.retry(0)
        jobs.storage.before_verb = None
        queue.receive()
        jobs.clock.advance(31)
        (letter,) = queue.dead.list()
        assert (letter.reason, letter.exception) == ("lease_expired", "")


def test_notes_go_with_their_dead_letters() -> None:
    """Retried, discarded, swept, or finished otherwise."""
    jobs = Jobs()
    with jobs.open(max_deliveries=1, dead_letter_seconds=100) as queue:
        queue.put_many([b"a", b"b", b"c"])
        for _ in range(3):
            fail(queue.receive())
        assert [name for name in jobs.storage.list(GROUP) if name.startswith("dead-")] == [
            note_path(offset).name for offset in range(3)
        ]
        queue.dead.retry(0)
        queue.dead.discard(1)
        jobs.clock.advance(101)
        queue.get()
        assert [name for name in jobs.storage.list(GROUP) if name.startswith("dead-")] == []


def test_notes_of_a_group_that_is_not_there_or_cannot_be_listed_are_left_alone(
    notes: DeadLetterNotes, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing depends on them: the log says what could not be looked at, and not what is simply not there."""
    notes.write(7, FIELDS)
    with refusing(notes._storage, "list", "default"):  # type: ignore[arg-type]  # it is a simulated one
        notes.keep(())
    assert "cannot be listed" in text_said(caplog)
    assert notes.read(7) == FIELDS
    caplog.clear()
    DeadLetterNotes(notes._storage, GROUP.with_name("gone")).keep(())
    assert text_said(caplog) == ""
