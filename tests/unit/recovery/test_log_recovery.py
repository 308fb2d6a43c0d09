"""Opening the log after whatever happened to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import CorruptionError
from holdfast.persistence.format.constants import FRAMES_START, HEADER_COPY_POSITIONS
from support.builders.log_parts import LogParts, frame, put
from support.storages.refusals import refusing


def written(parts: LogParts, count: int = 3, *, close: bool = False) -> None:
    """Write synced messages, and leave the log as a kill does unless it is closed."""
    writer = parts.writer()
    for index in range(count):
        writer.append(b"message %d" % index)
    writer.sync()
    if close:
        writer.close()


def test_an_empty_directory_is_an_empty_log(parts: LogParts) -> None:
    """Nothing was lost, and nothing was done."""
    log = parts.recover()
    assert (log.tail.next_offset, log.tail.file) == (0, None)
    assert log.report.clean


def test_a_clean_log_is_appended_to(parts: LogParts) -> None:
    """Its last file is handed on."""
    written(parts, close=True)
    log = parts.recover()
    assert log.report.clean
    assert log.tail.file is not None
    assert log.tail.next_offset == 3


def test_a_killed_log_is_never_appended_to(parts: LogParts) -> None:
    """The next append makes a new file, whose header names the accepted end."""
    written(parts)
    log = parts.recover()
    assert log.tail.file is None
    assert log.tail.next_offset == 3
    writer = parts.writer()
    assert writer.append(b"next") == 3
    names = parts.files().names()
    assert [(name.sequence, name.first_offset) for name in names] == [(1, 0), (2, 3)]


def test_recovery_is_idempotent(parts: LogParts) -> None:
    """A second one finds the same log, and has nothing left to do."""
    path, _ = parts.data_file([frame(parts.header(), b"a", 0), frame(parts.header(), b"torn", 1)[:20]])
    first = parts.recover()
    content = parts.storage.open(path).read_at(10**6, 0)
    second = parts.recover()
    assert first.report.recovered_count == 1
    assert first.report.torn_bytes > 0
    assert (second.report.recovered_count, second.report.torn_bytes) in {(1, 0), (0, 0)}
    assert (second.tail.next_offset, second.tail.position) == (first.tail.next_offset, first.tail.position)
    assert parts.storage.open(path).read_at(10**6, 0) == content


def test_what_recovery_shows_it_has_made_durable(parts: LogParts) -> None:
    """A power loss right after it takes nothing back."""
    written(parts)
    killed = parts.storage.crash_keeping_all()
    again = LogParts(killed)
    shown = again.recover().tail.next_offset
    lost_power = LogParts(killed.crash_dropping_unsynced())
    assert lost_power.recover().tail.next_offset == shown == 3


def test_offsets_that_a_group_has_finished_are_never_given_again(parts: LogParts) -> None:
    """Whatever became of their bytes."""
    written(parts)
    log = parts.recover(finished_offset=10)
    assert log.tail.next_offset == 10
    assert [(damage.offsets, damage.verdict) for damage in log.report.damage] == [(range(3, 10), "unsynced or damaged")]
    assert not log.report.clean


def test_a_last_file_without_a_header_is_given_up_and_its_offsets_kept(parts: LogParts) -> None:
    """write.mark says how many there were."""
    written(parts)
    path = parts.files().path(parts.files().names()[-1])
    file = parts.storage.open(path)
    for at in HEADER_COPY_POSITIONS:
        file.write_at((b"\xff" * 8,), at + 40)
    log = parts.recover()
    assert log.tail.next_offset == 3
    assert [damage.offsets for damage in log.report.damage] == [range(3)]


def test_a_last_file_that_is_missing_is_reported_and_its_sequence_not_used_again(parts: LogParts) -> None:
    """write.mark speaks of a file only once that is durable in data/."""
    written(parts, close=True)
    parts.storage.remove(parts.files().path(parts.files().names()[-1]))
    for _ in range(2):
        log = parts.recover()
        assert [(damage.offsets, damage.verdict) for damage in log.report.damage] == [(range(3), "damaged")]
        assert (log.tail.header.sequence, log.tail.next_offset) == (1, 3)
    writer = parts.writer()
    assert writer.append(b"next") == 3
    assert parts.files().names()[-1].sequence == 2


def test_a_last_file_that_is_not_what_its_name_says_refuses_the_log(parts: LogParts) -> None:
    """Going on from its header could overwrite another file."""
    header = parts.header(2, 3)
    path, _ = parts.data_file([frame(header, b"a", 0)], header=header)
    content = parts.storage.open(path).read_at(10**6, 0)
    parts.storage.remove(path)
    wrong = path.with_name("0000000003-00000000000000000009.data")
    put(parts.storage, wrong, content)
    with pytest.raises(CorruptionError, match="give it that name back"):
        parts.recover()
    assert parts.storage.open(wrong).read_at(10**6, 0) == content


def test_spares_do_not_survive_a_restart(parts: LogParts) -> None:
    """Nor does a next file that was being made."""
    put(parts.storage, parts.directory.spare / "next.data", b"x")
    put(parts.storage, parts.directory.spare / "0000000001.data", b"x")
    parts.recover()
    assert parts.storage.list(parts.directory.spare) == []


def test_a_torn_tail_is_cut_off(parts: LogParts) -> None:
    """Nothing of it is there for a later recovery to find."""
    good = frame(parts.header(), b"good", 0)
    path, _ = parts.data_file([good, frame(parts.header(), b"torn", 1)[:-1] + b"?", frame(parts.header(), b"x", 2)])
    parts.recover()
    assert parts.storage.open(path).size() == FRAMES_START + len(good)


def open_handle_count(parts: LogParts, call: Callable[[], object]) -> int:
    """Return how many handles a call leaves open."""
    count = 0

    def watch(verb: str, path: Path) -> None:
        nonlocal count
        count += (verb == "open") - (verb == "close")

    parts.storage.before_verb = watch
    call()
    parts.storage.before_verb = None
    return count


def test_a_file_behind_which_offsets_were_finished_is_not_appended_to(parts: LogParts) -> None:
    """Though it was closed in order: what is missing stands between it and the next message."""
    written(parts, close=True)
    assert open_handle_count(parts, parts.recover) == 2, "write.mark, and the file to append to"
    parts = LogParts(parts.storage.crash_keeping_all())
    assert open_handle_count(parts, lambda: parts.recover(finished_offset=10)) == 1
    log = parts.recover(finished_offset=10)
    assert (log.tail.file, log.tail.next_offset) == (None, 10)
    assert parts.writer().append(b"next") == 3, "nobody has finished anything here"


def test_an_older_copy_of_a_file_is_not_appended_to_where_a_later_one_is_missing(parts: LogParts) -> None:
    """It was put back after its clean close, and write.mark speaks of the one behind it."""
    written(parts, close=True)
    path = parts.files().path(parts.files().names()[-1])
    old = parts.storage.tree()[path]
    assert old is not None
    writer = parts.writer()
    while writer.end[0] == 1:
        writer.append(bytes(500))
    writer.append(b"last")
    writer.close()
    put_count = writer.end[2]
    parts.storage.remove(parts.files().path(parts.files().names()[-1]))
    put(parts.storage, path, old)
    assert open_handle_count(parts, parts.recover) == 1
    log = parts.recover()
    assert [damage.offsets for damage in log.report.damage] == [range(3, put_count)]
    assert (log.tail.file, log.tail.header.sequence, log.tail.next_offset) == (None, 2, put_count)


def test_messages_of_a_file_without_a_header_are_counted_up_to_the_first_bad_frame(parts: LogParts) -> None:
    """Where write.mark says nothing either, what is behind that is anybody's guess."""
    frames = [frame(parts.header(), b"m", index) for index in range(4)]
    path, _ = parts.data_file([*frames[:2], b"?" + frames[2][1:], frames[3]])
    file = parts.storage.open(path)
    for at in HEADER_COPY_POSITIONS:
        file.write_at((b"\xff" * 8,), at + 40)
    log = parts.recover()
    assert [damage.offsets for damage in log.report.damage] == [range(2)]
    assert log.tail.next_offset == 2


def test_a_header_that_the_disk_refuses_to_read_leaves_no_handle_open(parts: LogParts) -> None:
    """It is not given up as damage: the disk may be read again at the next opening."""
    path, _ = parts.data_file([frame(parts.header(), b"kept", 0)])

    def refused() -> None:
        with refusing(parts.storage, "read_at", path.name), pytest.raises(OSError, match="Input/output"):
            parts.recover()

    refused()  # the first one makes what a new queue lacks
    assert open_handle_count(parts, refused) == 0
    assert parts.recover().report.damage == ()
