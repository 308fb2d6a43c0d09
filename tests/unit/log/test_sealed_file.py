"""What was retired from the middle of the log is nobody's loss, least of all that of a group that came later."""

from pathlib import Path

import pytest

from holdfast import PersistentQueue, verify
from holdfast.persistence.filesystem.layout import DataFileName
from holdfast.persistence.format.constants import FRAMES_START, HEADER_COPY_POSITIONS, KIND_SEAL
from holdfast.persistence.groups.group_files import list_groups
from holdfast.persistence.log.sealed_file import end_offset, retired_ranges, sealed_places
from support.builders.handles import handle_of
from support.builders.log_parts import LogParts, frame
from support.storages.refusals import refusing

FILE_BYTES = 16 * 2**10


def with_a_gap(path: Path) -> list[int]:
    """Make a queue whose middle data files are retired; return the offsets that are still there."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        for number in range(100):
            queue.put(b"%d" % number + bytes(1000))
        pinned = queue.receive()
        while queue.stats().depth > 1:
            queue.get_many(100)
        assert pinned.offset == 0
        names = sorted(file.name for file in (path / "data").iterdir())
        assert len(names) == 2
        first_of_last = int(names[1].split("-")[1].split(".")[0])
        assert first_of_last > 50
    report = verify(path)
    assert report.ok, str(report)
    count_in_first = report.message_count - (100 - first_of_last)
    return [*range(count_in_first), *range(first_of_last, 100)]


def take_all(queue: PersistentQueue) -> list[int]:
    """Return the numbers of all that is left."""
    numbers: list[int] = []
    while not queue.empty():
        numbers += [int(payload.rstrip(b"\0")) for payload in queue.get_many(100)]
    return numbers


def test_a_group_made_behind_a_gap_gets_what_is_there_and_misses_nothing(tmp_path: Path) -> None:
    """Its depth counts what it can get, and nothing is reported as lost."""
    there = with_a_gap(tmp_path / "orders")
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.groups.create("late")
    with PersistentQueue(tmp_path / "orders", mode="exclusive", group="late") as queue:
        assert queue.stats().depth == len(there)
        assert take_all(queue) == there
        assert queue.recovery.damage == ()
        assert queue.stats().lost == 0


def test_looking_over_a_gap_shows_no_damage(tmp_path: Path) -> None:
    """The group that finished what is gone knows so."""
    with_a_gap(tmp_path / "orders")
    with PersistentQueue(tmp_path / "orders", mode="read_only") as queue:
        assert [entry.offset for entry in queue.peek(100)] == [0]
        assert queue.recovery.damage == ()


def test_a_file_that_recovery_cut_says_where_its_offsets_end(tmp_path: Path) -> None:
    """It has no seal; its frames are counted."""
    path = tmp_path / "orders"
    there = with_a_gap(path)
    first = min((path / "data").iterdir())
    seal_bytes = int.from_bytes(first.read_bytes()[-4:], "little")
    with first.open("r+b") as file:
        file.truncate(first.stat().st_size - seal_bytes)
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create("late")
    with PersistentQueue(path, mode="exclusive", group="late") as queue:
        assert take_all(queue) == there
        assert queue.recovery.damage == ()


# -- What a seal says --------------------------------------------------------------------------------------------------


def sealed(parts: LogParts) -> Path:
    """Return a data file of some hundred KiB, sealed by the writer that left it."""
    writer = parts.writer(file_bytes=2**18)
    while writer.end[0] <= 1:
        writer.append(bytes(1000))
    return parts.files().path(parts.files().names()[0])


def test_a_seal_says_where_some_messages_stand(parts: LogParts) -> None:
    """Every 64 KiB or so; the file that is being written says nothing yet."""
    places = sealed_places(parts.storage, sealed(parts))
    assert places[0] == (0, FRAMES_START)
    assert [position for _, position in places] == [FRAMES_START + offset * 1032 for offset, _ in places]
    assert 3 <= len(places) <= 5
    assert sealed_places(parts.storage, parts.files().path(parts.files().names()[1])) == []


def test_a_file_that_is_gone_or_damaged_has_no_places_and_a_disk_that_refuses_says_so(parts: LogParts) -> None:
    """Whoever reads it reports what is lost."""
    path = sealed(parts)
    with refusing(parts.storage, "open", path.name), pytest.raises(OSError, match="Input/output error"):
        sealed_places(parts.storage, path)
    assert sealed_places(parts.storage, path.with_name("gone")) == []
    file = parts.storage.open(path)
    for at in HEADER_COPY_POSITIONS:
        file.write_at((b"\xff" * 8,), at + 40)
    assert sealed_places(parts.storage, path) == []


def test_what_stands_where_a_seal_should_and_is_none_says_nothing(parts: LogParts) -> None:
    """Its checksum is right; the frames are counted instead, past what is damaged."""
    header = parts.header()
    frames = [frame(header, b"m", index) for index in range(4)]
    trailer = (32 + 12).to_bytes(4, "little")
    frames.append(frame(header, b"no seal." + trailer, 4, kind=KIND_SEAL))
    path, _ = parts.data_file(frames)
    assert sealed_places(parts.storage, path) == []
    assert end_offset(parts.storage, path, DataFileName(1, 0)) == 4
    parts.storage.open(path).write_at((b"?",), FRAMES_START + len(frames[0]))
    assert end_offset(parts.storage, path, DataFileName(1, 0)) == 4
    file = parts.storage.open(path)
    for at in HEADER_COPY_POSITIONS:
        file.write_at((b"\xff" * 8,), at + 40)
    assert end_offset(parts.storage, path, DataFileName(1, 0)) == 0


def test_a_group_that_begins_behind_a_gap_stores_nothing_of_it(tmp_path: Path) -> None:
    """However many gaps there are; one that begins at the oldest message needs to know them."""
    with_a_gap(tmp_path / "orders")
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        first = handle_of(queue).files.first_offset
        queue.groups.create("late", start="latest")
        queue.groups.create("early")
        files = handle_of(queue).files
        (gap,) = retired_ranges(files)
        assert retired_ranges(files, gap.stop) == []
        assert retired_ranges(files, gap.stop - 1) == retired_ranges(files, first) == [gap]
        stored = {each.name: each.retired for each in list_groups(files.storage, handle_of(queue).directory)}
        assert (stored["late"], stored["early"]) == ((), (gap,))
