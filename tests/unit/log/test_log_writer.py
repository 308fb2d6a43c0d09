"""Appending to the log when the disk refuses, or when somebody presses Control-C."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from holdfast import CommitUnknownError, DiskFullError, FencedError, PoisonedError, RecordTooLargeError, StorageError
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.log import segment_writer
from holdfast.persistence.log.log_writer import LogWriter
from support.builders.log_parts import LogParts
from support.storages.refusals import refusing

DECISION = CommitRecord("t", b"n" * 16, 1, 0)


def count_after_restart(parts: LogParts) -> int:
    """Return how many messages the next process finds."""
    return LogParts(parts.storage.crash_keeping_all()).recover().tail.next_offset


def is_refused(writer: LogWriter) -> bool:
    """Whether nothing can be appended any more, and nothing synced."""
    for call in (lambda: writer.append(b"x"), lambda: writer.append_batch([b"x"]), writer.sync):
        with pytest.raises(PoisonedError):
            call()
    return True


# -- Taking back -----------------------------------------------------------------------------------------------------


def test_a_mark_that_cannot_be_written_is_taken_back(parts: LogParts) -> None:
    """The next message takes its place."""
    writer = parts.writer()
    writer.append(b"a")
    end = writer.end
    with refusing(parts.storage, "write_at", ".data", errno.ENOSPC), pytest.raises(DiskFullError):
        writer.append_mark()
    assert writer.end == end
    assert writer.append(b"b") == 1
    writer.sync()
    assert count_after_restart(parts) == 2


def test_a_writer_of_decisions_alone_finds_out_that_its_file_was_removed(parts: LogParts) -> None:
    """They have the time of the last message, and the clock runs on."""
    writer = parts.writer()
    writer.append(b"a")
    writer.sync()
    (name,) = parts.files().names()
    parts.storage.remove(parts.directory.data_file(name))
    parts.clock.advance(1)
    with pytest.raises(FencedError):
        writer.append_batch([], decision=DECISION)


def test_behind_a_sealed_file_no_mark_is_needed(parts: LogParts) -> None:
    """Its seal is the witness."""
    parts.writer().append(b"a")
    writer = parts.writer()
    count = parts.storage.mutation_count
    writer.append_mark()
    assert parts.storage.mutation_count == count


@pytest.mark.parametrize("decision", [None, DECISION], ids=["batch", "decision"])
def test_what_cannot_be_taken_back_poisons(parts: LogParts, decision: CommitRecord | None) -> None:
    """Whether it counts, the next opening finds out; until then its decision stays open."""
    writer = parts.writer()
    writer.append(b"a")
    with (
        refusing(parts.storage, "write_at", ".data"),
        refusing(parts.storage, "truncate", ".data"),
        pytest.raises(CommitUnknownError, match="taking back a failed write"),
    ):
        writer.append_batch([b"b"], decision=decision)
    assert len(writer.pending_commit_records) == (decision is not None)
    assert is_refused(writer)
    assert count_after_restart(parts) == 1


@pytest.mark.parametrize("decision", [None, DECISION], ids=["batch", "decision"])
def test_an_interrupted_write_is_taken_back_and_the_interruption_goes_on(
    parts: LogParts, decision: CommitRecord | None
) -> None:
    """Its offset is given to the next message, and nothing was decided."""
    writer = parts.writer()
    writer.append(b"a")
    with refusing(parts.storage, "write_at", ".data", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        writer.append_batch([b"b"], decision=decision)
    assert len(writer.pending_commit_records) == 0
    assert writer.append(b"c") == 1


def test_a_write_that_is_interrupted_behind_its_last_step_stays(
    parts: LogParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whole, on the disk and in memory; its decision too."""
    writer = parts.writer()
    writer.append(b"a")
    advance: Callable[..., int] = writer._advance

    def interrupted(*arguments: int) -> int:
        advance(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(writer, "_advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.append_batch([b"b"], decision=DECISION)
    assert len(writer.pending_commit_records) == 1
    assert writer.append(b"c") == 2
    writer.sync()
    assert count_after_restart(parts) == 3


def test_an_interrupted_sync_poisons(parts: LogParts) -> None:
    """Nobody knows what it has done, and a second one could succeed over lost data."""
    writer = parts.writer()
    writer.append(b"a")
    with refusing(parts.storage, "sync", ".data", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        writer.sync()
    assert is_refused(writer)
    before = parts.storage.tree()
    writer.publish()  # the background thread wakes once more
    assert parts.storage.tree() == before


# -- Keeping room ----------------------------------------------------------------------------------------------------


def test_room_that_is_kept_is_for_nobody_else_until_the_next_file(parts: LogParts) -> None:
    """Who needs some rolls, and the next file is as any."""
    writer = parts.writer()
    writer.append(b"a")
    writer.keep_room(is_kept=True)
    assert not writer.has_space(1)
    writer.keep_room(is_kept=False)
    writer.append(b"b")
    assert writer.end[0] == 1
    writer.keep_room(is_kept=True)
    writer.append(b"c")
    assert writer.end[0] == 2
    assert not writer.keeps_room


def test_a_poisoned_log_refuses_whatever_room_was_kept(parts: LogParts) -> None:
    """Another thread may let its room go, behind a sync that has failed."""
    writer = parts.writer()
    writer.append(b"a")
    writer.keep_room(is_kept=True)
    writer.poison(OSError("the disk is gone"))
    writer.keep_room(is_kept=False)
    assert is_refused(writer)


# -- Rolling ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_no_data_file_holds_is_refused(parts: LogParts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written; the error says how much there may be."""
    monkeypatch.setattr(segment_writer, "DATA_FILE_BYTES_LIMIT", 20_000)
    writer = parts.writer()
    writer.append(b"a")
    count = parts.storage.mutation_count
    with pytest.raises(RecordTooLargeError, match="put them in several batches") as caught:
        writer.append_batch([bytes(10_000)] * 2)
    assert (caught.value.size_bytes > 20_000, caught.value.max_bytes) == (True, 20_000 - FRAMES_START)
    assert parts.storage.mutation_count == count
    assert writer.append(b"b") == 1


def roll(writer: LogWriter) -> None:
    """Append messages until the next data file begins."""
    while writer.end[0] == 1:
        writer.append(bytes(500))


def test_an_interruption_while_the_next_file_gets_its_name_poisons(parts: LogParts) -> None:
    """Whether it is there, the next opening finds out; what the old one holds is synced."""
    writer = parts.writer()
    writer.append(b"a")
    with refusing(parts.storage, "sync_directory", "data", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        roll(writer)
    assert is_refused(writer)
    put_count = writer.end[2]
    assert put_count > 1
    assert count_after_restart(parts) == put_count


def test_an_interruption_behind_a_roll_leaves_the_next_file_in_use(parts: LogParts) -> None:
    """Letting go of the old one is all that was left to do."""
    writer = parts.writer()
    writer.append(b"a")
    with refusing(parts.storage, "close", ".data", KeyboardInterrupt(), count=1), pytest.raises(KeyboardInterrupt):
        roll(writer)
    put_count = writer.end[2]
    assert writer.end[0] == 2
    assert writer.append(b"next") == put_count
    writer.sync()
    assert count_after_restart(parts) == put_count + 1


# -- Closing ---------------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_cut_is_not_closed_in_order(parts: LogParts) -> None:
    """The caller is told, all handles are let go of, and nothing that was synced is lost."""
    writer = parts.writer()
    writer.append(b"a")
    closed: list[str] = []
    parts.storage.before_verb = lambda verb, path: closed.append(path.name) if verb == "close" else None
    with refusing(parts.storage, "truncate", ".data"), pytest.raises(StorageError, match="closing"):
        writer.close()
    assert sorted(closed) == ["next.data", "write.mark"]
    assert count_after_restart(parts) == 1
