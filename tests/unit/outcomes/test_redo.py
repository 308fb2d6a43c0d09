"""Doing again what decisions say: groups that are gone or owned, files that are damaged, a disk that refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import QueueLockedError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.format.commit_record import Acknowledged, CommitRecord, Participant
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.groups.group_files import find_group, progress_reader, write_group
from holdfast.persistence.log.pending_commit_records import PendingCommitRecords
from holdfast.persistence.outcomes.redo import has_settled, redo_commit_records
from holdfast.persistence.segment.batch_file import BatchFileWriter
from support.builders.log_parts import LogParts, put
from support.storages.refusals import refusing

NONCE = b"n" * 16
RUNS = ((0, 2, 1, 5000),)


def decision(acknowledged: tuple[Acknowledged, ...] = (), waiting_file: str = "") -> CommitRecord:
    """Return one that stands in the log, over one message."""
    return CommitRecord("t", NONCE, 1, 0, 7, acknowledged, waiting_file=waiting_file)


def redo(parts: LogParts, *decisions: CommitRecord) -> PendingCommitRecords:
    """Do again what these say; return those that stay open."""
    found = PendingCommitRecords()
    for each in decisions:
        found.add(each, FRAMES_START, is_durable=True)
    assert redo_commit_records(parts.storage, parts.directory, parts.queue_id, parts.clock, found) == []
    return found


def finished(parts: LogParts, group: str = "g") -> int:
    """Return how many messages a group has finished."""
    found = find_group(parts.storage, parts.directory, group)
    assert found is not None
    return progress_reader(parts.storage, parts.directory, parts.queue_id, found).refresh().finished_count


def batch_file(parts: LogParts, nonce: bytes = NONCE) -> Path:
    """Make a batch that waits under the id of the decision; return where."""
    parts.storage.make_directory(parts.directory.prepared)
    path = parts.directory.batch_file("t")
    writer = BatchFileWriter(parts.storage, path, parts.queue_id)
    writer.add(b"payload", b"", 1)
    writer.finish(CommitRecord("t", nonce, 1, 0, waiting_file="prepared/t.batch"))
    writer.sync()
    writer.close()
    return path


# -- Groups ------------------------------------------------------------------------------------------------------------


def test_acknowledgements_go_to_the_group_that_made_them_and_to_no_other_of_its_name(parts: LogParts) -> None:
    """One that was deleted has nothing to note, and one made anew has not seen those messages."""
    group = write_group(parts.storage, parts.directory, "g", parts.files(), 0, {})
    gone = Acknowledged("gone", b"g" * 16, RUNS)
    assert len(redo(parts, decision((gone, Acknowledged("g", b"another life!!!!", RUNS))))) == 0
    assert finished(parts) == 0
    assert len(redo(parts, decision((Acknowledged("g", group.group_id, RUNS),)))) == 0
    assert finished(parts) == 2


@pytest.mark.parametrize("count", [2**28, 2**40, 2**62])
def test_acknowledgements_where_no_log_comes_are_damage_and_the_others_count(parts: LogParts, count: int) -> None:
    """They would move the next offset to where nobody has ever put a message."""
    put(parts.storage, parts.directory.write_mark, b"")
    group = write_group(parts.storage, parts.directory, "g", parts.files(), 0, {})
    acknowledged = decision((Acknowledged("g", group.group_id, (*RUNS, (2, count, 1, 5000))),))
    found = PendingCommitRecords()
    found.add(acknowledged, FRAMES_START, is_durable=True)
    (damage,) = redo_commit_records(parts.storage, parts.directory, parts.queue_id, parts.clock, found)
    assert "commit record t finishes messages of group 'g' beyond the log" in str(damage)
    assert finished(parts) == 2
    assert len(found) == 0


def test_a_group_that_is_owned_by_its_old_owner_is_not_gone_past(parts: LogParts) -> None:
    """It is being closed, and has not noted all: else its messages would come again."""
    group = write_group(parts.storage, parts.directory, "g", parts.files(), 0, {})
    acknowledged = decision((Acknowledged("g", group.group_id, RUNS),))
    owner = locks.try_acquire(parts.storage, parts.directory.group("g") / "read.lock")
    assert owner is not None
    with pytest.raises(QueueLockedError, match="has not noted every outcome"):
        redo(parts, acknowledged)
    owner.release()
    redo(parts, acknowledged)
    assert finished(parts) == 2


def test_a_vote_whose_group_is_owned_keeps_its_decision_open(parts: LogParts) -> None:
    """The owner may have settled it and not synced that: it is asked again once nobody owns the group."""
    write_group(parts.storage, parts.directory, "g", parts.files(), 0, {})
    voted = CommitRecord("t", NONCE, 1, 0, 7, participants=(Participant(".", parts.queue_id, "g"),))
    owner = locks.try_acquire(parts.storage, parts.directory.group("g") / "read.lock")
    assert owner is not None
    decisions = redo(parts, voted)
    assert len(decisions) == 1
    owner.release()
    decisions.end(decisions.applied_needs(), frozenset())
    assert len(decisions) == 0


# -- Files that waited -------------------------------------------------------------------------------------------------


def test_the_file_of_a_batch_that_is_in_the_log_goes(parts: LogParts) -> None:
    """Durably. One of the same id that is another transaction stays, and so does one that cannot be made out."""
    path = batch_file(parts, b"o" * 16)
    redo(parts, decision(waiting_file="prepared/t.batch"))
    assert path in parts.storage.tree()
    put(parts.storage, path, b"damaged")
    redo(parts, decision(waiting_file="prepared/t.batch"))
    assert parts.storage.tree()[path] == b"damaged"
    parts.storage.remove(path)
    batch_file(parts)
    parts.storage.sync_directory(path.parent)
    redo(parts, decision(waiting_file="prepared/t.batch"))
    assert path not in parts.storage.crash_dropping_unsynced().tree()


def test_a_file_that_cannot_be_looked_at_keeps_recovery_from_going_on(parts: LogParts) -> None:
    """It would be put into the log a second time."""
    batch_file(parts)
    with refusing(parts.storage, "open", "t.batch"), pytest.raises(OSError, match="Input/output error"):
        redo(parts, decision(waiting_file="prepared/t.batch"))


@pytest.mark.parametrize("has_directory", [True, False])
def test_a_file_that_is_gone_already_is_made_durably_gone(parts: LogParts, has_directory: bool) -> None:
    """The process that removed it may have been killed before its sync; its directory may be none of ours."""
    directory = parts.directory.root / "elsewhere"
    if has_directory:
        parts.storage.make_directory(directory)
        put(parts.storage, directory / "t.batch", b"x")
        parts.storage.remove(directory / "t.batch")
    redo(parts, decision(waiting_file="elsewhere/t.batch"))
    assert directory / "t.batch" not in parts.storage.crash_dropping_unsynced().tree()


# -- Other queues ------------------------------------------------------------------------------------------------------


def test_another_queue_has_settled_once_nothing_of_the_transaction_waits_there(parts: LogParts) -> None:
    """Where it cannot be seen, or something cannot be made out, it has not: the decision stays open."""

    def settled(path: str = "../other") -> bool:
        part = Participant(path, other_id)
        return has_settled(parts.storage, parts.directory.root, parts.clock, part, NONCE)

    other = LogParts(parts.storage)
    other.directory, other_id, _ = open_directory(parts.storage, Path("/other"), create=True)
    other.queue_id = other_id
    assert not settled("../nowhere")
    assert not settled("."), "that is this queue"
    assert settled(), "nothing was ever prepared there"
    path = batch_file(other)
    assert not settled()
    parts.storage.remove(path)
    assert settled()
    assert path not in parts.storage.crash_dropping_unsynced().tree()
    batch_file(other, b"o" * 16)
    assert settled(), "that is another one"
    put(parts.storage, path, b"damaged")
    assert not settled(), "it may be that one"
