"""Data files are made in steps: small at first, larger behind full ones, and allocated before they are used."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from holdfast import DiskFullError, StorageError
from holdfast.persistence.filesystem.layout import list_data_files
from holdfast.persistence.filesystem.storage import free_bytes
from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, FRAMES_START
from holdfast.persistence.format.seal import capacity_for, seal_room
from holdfast.persistence.log import file_steps
from holdfast.persistence.log.file_steps import step_after, step_holding
from holdfast.persistence.log.log_writer import LogWriter
from support.builders.log_parts import LogParts
from support.storages.refusals import refusing

FIRST, LARGEST, LEAST, UNIT = 8192, 100_000, 6144, 1024
STEPS = [FIRST, 4 * FIRST, LARGEST]
KIB, MIB = 2**10, 2**20


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("FIRST_STEP_BYTES", FIRST), ("LEAST_BYTES", LEAST), ("_UNIT_BYTES", UNIT)):
        monkeypatch.setattr(file_steps, name, size)


def sizes(parts: LogParts) -> list[int]:
    """Return the sizes of the data files, in log order."""
    paths = [parts.directory.data_file(name) for name in list_data_files(parts.storage, parts.directory)]
    return [size_of(parts, path) for path in paths]


def size_of(parts: LogParts, path: Path) -> int:
    """Return the size of one file."""
    with parts.storage.open(path) as file:
        return file.size()


def fill(writer: LogWriter) -> None:
    """Append messages until a file begins."""
    begun = writer.end[0]
    while writer.end[0] == begun:
        writer.append(bytes(500))


def test_the_steps_of_the_default_are_quarters_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 KiB, 1, 4, 16, 64 MiB; then it stays."""
    monkeypatch.undo()
    steps = [step_holding(0, 64 * MIB)]
    while len(steps) < 7:
        steps.append(step_after(steps[-1], 64 * MIB))
    assert steps == [256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 64 * MIB, 64 * MIB]


@pytest.mark.parametrize(
    ("size", "largest", "step"),
    [
        (0, 16, 16),
        (FIRST, LARGEST, FIRST),
        (FIRST + 1, LARGEST, 4 * FIRST),
        (4 * FIRST + 1, LARGEST, LARGEST),
        (LARGEST + 1, LARGEST, LARGEST + 1),
    ],
)
def test_a_step_holds_what_it_is_asked_for(size: int, largest: int, step: int) -> None:
    """The option cuts the steps; what is larger than the largest step has its own size."""
    assert step_holding(size, largest) == step


def test_each_file_behind_a_full_one_is_larger_and_has_its_space(parts: LogParts) -> None:
    """The file is as large as its step before its first message; full ones are cut behind their seal."""
    writer = parts.writer(file_bytes=LARGEST)
    for step in [*STEPS, LARGEST]:
        fill(writer)
        *full, active = sizes(parts)
        assert active == step
        assert full == [size for size, most in zip(full, STEPS, strict=False) if most - 1000 < size <= most]
    writer.sync()
    assert parts.recover().tail.next_offset == writer.end[2]


def test_a_message_that_a_step_does_not_hold_gets_the_step_that_does(parts: LogParts) -> None:
    """So does a batch; one that no step holds gets a file of its own size."""
    writer = parts.writer(file_bytes=LARGEST)
    writer.append(bytes(FIRST))
    assert sizes(parts)[-1] == 4 * FIRST
    writer = LogParts().writer(file_bytes=LARGEST)
    batch = [bytes(LARGEST)] * 2
    writer.append_batch(batch)
    frames = writer.end[1] - FRAMES_START
    assert writer._file is not None
    assert writer._file.size() == capacity_for(FRAMES_START + frames)


def test_a_full_step_leaves_room_for_its_seal(parts: LogParts) -> None:
    """The seal is inside what was allocated, at every step."""
    writer = parts.writer(file_bytes=LARGEST)
    for step in STEPS:
        fill(writer)
        assert writer._limit == step - seal_room(step)


def test_a_file_that_was_closed_goes_on_in_the_step_that_holds_it(parts: LogParts) -> None:
    """A clean close cuts the file; the messages of the next opening fill the same step."""
    writer = parts.writer(file_bytes=LARGEST)
    fill(writer)
    fill(writer)
    while writer.end[1] < FIRST + 500:
        writer.append(bytes(500))
    writer.close()
    again = parts.writer(file_bytes=LARGEST)
    assert again._limit == 4 * FIRST - seal_room(4 * FIRST)
    again.append(b"goes on")
    assert again.end[0] == 2
    fill(again)
    assert sizes(parts)[-1] == LARGEST


def test_behind_an_unclean_close_the_next_file_has_the_same_step(parts: LogParts) -> None:
    """A queue that is killed again and again does not take more each time, and the step is not forgotten."""
    writer = parts.writer(file_bytes=LARGEST)
    fill(writer)
    fill(writer)
    while writer.end[1] < FIRST + 500:
        writer.append(bytes(500))
    writer.sync()
    again = parts.writer(file_bytes=LARGEST)
    again.append(b"a")
    assert sizes(parts)[-1] == 4 * FIRST
    for _ in range(3):
        again.sync()
        again = parts.writer(file_bytes=LARGEST)
        again.append(b"a")
        assert sizes(parts)[-1] == FIRST


def test_behind_a_file_larger_than_the_option_the_next_one_has_the_largest_step(parts: LogParts) -> None:
    """The option may have been larger before."""
    parts.writer(file_bytes=LARGEST).append_batch([bytes(50_000)])
    parts.writer(file_bytes=20_000).append(b"a")
    assert sizes(parts)[-1] == 20_000


def test_a_spare_that_is_larger_than_the_step_is_used_as_it_is(parts: LogParts) -> None:
    """All of it, and the next step follows from its size."""
    writer = parts.writer(file_bytes=LARGEST)
    with parts.storage.open(parts.directory.spare / "0000000001.data", create=True) as spare:
        spare.allocate(20_000)
    writer.append(b"a")
    assert sizes(parts) == [20_000]
    assert writer._limit == 20_000 - seal_room(20_000)
    fill(writer)
    assert sizes(parts)[-1] == LARGEST


def test_a_spare_that_is_smaller_than_the_step_is_extended(parts: LogParts) -> None:
    """Before anything is written into it."""
    writer = parts.writer(file_bytes=LARGEST)
    with parts.storage.open(parts.directory.spare / "0000000001.data", create=True) as spare:
        spare.allocate(5000)
    allocated: list[str] = []
    parts.storage.before_verb = lambda verb, path: allocated.append(verb) if path.name == "next.data" else None
    writer.append(b"a")
    assert sizes(parts) == [FIRST]
    assert allocated.index("allocate") < allocated.index("write_at")


# -- A full disk -----------------------------------------------------------------------------------------------------


def spare(parts: LogParts, size: int, sequence: int = 1) -> Path:
    """Leave an emptied file of this size; return its path."""
    path = parts.directory.spare / f"{sequence:010d}.data"
    with parts.storage.open(path, create=True) as file:
        file.allocate(size)
    return path


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("verb", ["allocate", "sync"])
def test_on_a_full_disk_the_next_file_is_the_smallest_that_is_enough(parts: LogParts, error: int, verb: str) -> None:
    """The spares are given up first; the steps behind it follow from its size."""
    writer = parts.writer(file_bytes=LARGEST)
    fill(writer)
    fill(writer)
    assert sizes(parts)[-1] == 4 * FIRST
    spare(parts, 5000, 8)
    spare(parts, 5000, 9)
    with refusing(parts.storage, verb, "next.data", error, count=1):
        fill(writer)
    assert sizes(parts)[-1] == LEAST
    assert parts.storage.list(parts.directory.spare) == []
    fill(writer)
    assert sizes(parts)[-1] == step_after(LEAST, LARGEST)
    writer.sync()
    assert parts.recover().tail.next_offset == writer.end[2]


def test_on_a_full_disk_a_large_message_gets_a_file_of_about_its_size(parts: LogParts) -> None:
    """It is smaller than its step."""
    writer = parts.writer(file_bytes=LARGEST)
    fill(writer)
    fill(writer)
    with refusing(parts.storage, "allocate", "next.data", errno.ENOSPC, count=1):
        writer.append(bytes(4 * FIRST - FRAMES_START))
    assert 0 <= sizes(parts)[-1] - capacity_for(4 * FIRST + FRAME_HEADER_BYTES) < UNIT


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_what_a_file_takes_and_what_is_free(parts: LogParts, error: int) -> None:
    """One line, with the option; nothing has happened, and the next message may succeed."""
    writer = parts.writer(file_bytes=LARGEST)
    end = writer.end
    with refusing(parts.storage, "allocate", "next.data", error), pytest.raises(DiskFullError) as caught:
        writer.append(b"a")
    text = str(caught.value)
    assert re.search(rf"/data takes {LEAST} bytes at least, and \d+ are free \({os.strerror(error)}\)", text)
    assert f"data_file_bytes={LARGEST}" in text
    assert "Drain the queue or free disk space" in text
    assert "\n" not in text
    assert writer.end == end
    assert writer.append(b"a") == 0


@pytest.mark.parametrize("count", [1, 2])
def test_a_disk_that_refuses_is_not_taken_for_a_full_one(parts: LogParts, count: int) -> None:
    """At the first attempt, and at the second one behind a full disk."""
    writer = parts.writer(file_bytes=LARGEST)
    kept = spare(parts, 5000)
    errors = iter([errno.ENOSPC, errno.EIO][-count:])

    def fail(verb: str, path: Path) -> None:
        if verb == "allocate":
            raise OSError(next(errors), "refused", str(path))

    parts.storage.before_verb = fail
    with pytest.raises(StorageError, match="making room for the next data file failed") as caught:
        writer.append(b"a")
    assert not isinstance(caught.value, DiskFullError)
    parts.storage.before_verb = None
    assert kept.name not in parts.storage.list(parts.directory.spare)
    assert writer.append(b"a") == 0


def test_free_space_that_cannot_be_told_is_none(tmp_path: Path) -> None:
    """It must not hide the error that it is told with, nor count as a full disk."""
    free = free_bytes(tmp_path)
    assert free is not None
    assert free > 0
    assert free_bytes(tmp_path / "missing") is None
