"""The offset of a time: found from the headers of files and the index of one, whatever is damaged or gone."""

from pathlib import Path

import pytest

from holdfast.errors import UnsupportedVersionError
from holdfast.persistence.format.constants import FRAMES_START, HEADER_COPY_POSITIONS
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.log_times import offset_since
from support.builders.clocks import NS_PER_SECOND, START_NS
from support.builders.log_parts import LogParts
from support.storages.simulated_storage import SimulatedFile, SimulatedStorage

FILE_BYTES = 300_000


def a_log(count: int, *, size: int = 20_000, file_bytes: int = FILE_BYTES) -> tuple[LogParts, LogEnd]:
    """Write messages, one a second, into several data files; return the parts, and the end of the log."""
    parts = LogParts()
    writer = parts.writer(file_bytes=file_bytes)
    for _ in range(count):
        writer.append(bytes(size))
        parts.clock.advance(1)
    writer.sync()
    end = writer.end
    writer.close()
    return parts, end


def second(number: float) -> int:
    """Return the time so many seconds behind the first message."""
    return START_NS + round(number * NS_PER_SECOND)


def test_each_time_has_the_first_message_from_then_on() -> None:
    """In each file, at the edges of files, between two messages, and before the first one."""
    parts, end = a_log(60)
    files = parts.files()
    assert len(files) > 3
    for number in range(60):
        assert offset_since(files, second(number), end) == number
        assert offset_since(files, second(number - 0.5), end) == number
    assert offset_since(files, 0, end) == 0


def test_a_time_behind_all_messages_is_the_end() -> None:
    """Nothing was put since; an empty log has nothing at all."""
    parts, end = a_log(20)
    assert offset_since(parts.files(), second(19.5), end) == 20
    assert offset_since(LogParts().files(), 0, (0, 0, 0)) == 0


def test_messages_behind_the_end_do_not_count() -> None:
    """The end is that of the reader: the log may be longer."""
    parts, _ = a_log(20, file_bytes=10**7)
    assert offset_since(parts.files(), second(19), (1, FRAMES_START + 5 * 20_032, 5)) == 5


def test_messages_of_one_time_are_found_from_their_first_one() -> None:
    """A clock that stands still gives many messages one timestamp, over several files."""
    parts = LogParts()
    writer = parts.writer(file_bytes=FILE_BYTES)
    for number in range(90):
        writer.append(bytes(20_000))
        if number in {29, 59}:
            parts.clock.advance(1)
    writer.sync()
    end = writer.end
    files = parts.files()
    assert [offset_since(files, second(number), end) for number in (0, 1, 2)] == [0, 30, 60]


def test_only_part_of_a_sealed_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a file of 4 MiB leads to the right 64 KiB of it."""
    parts, end = a_log(400, file_bytes=4 * 2**20)
    files = parts.files()
    sizes: list[int] = []
    read_at = SimulatedFile.read_at

    def noted(file: SimulatedFile, size: int, position: int) -> bytes:
        sizes.append(size)
        return read_at(file, size, position)

    monkeypatch.setattr(SimulatedFile, "read_at", noted)
    assert offset_since(files, second(150), end) == 150
    assert 0 < sum(sizes) < 2**20


def damage_header(storage: SimulatedStorage, path: Path, version: int | None = None) -> None:
    """Overwrite both copies of a header, or give them another version."""
    with storage.open(path) as file:
        for position in HEADER_COPY_POSITIONS:
            content = b"XXXXXXXX" if version is None else version.to_bytes(2, "little")
            file.write_at([content], position + 8 * (version is not None))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_header_costs_time_only(place: int) -> None:
    """Each time behind that file is found; one in it is the first message that can be read behind."""
    parts, end = a_log(60)
    files = parts.files()
    names = files.names()
    damage_header(parts.storage, files.path(names[place]))
    lost = range(names[place].first_offset, names[place + 1].first_offset)
    for number in range(60):
        assert offset_since(files, second(number), end) == (lost.stop if number in lost else number)


def test_a_file_that_is_gone_is_passed() -> None:
    """It was reclaimed since its name was listed."""
    parts, end = a_log(60)
    files = parts.files()
    names = files.names()
    parts.storage.remove(files.path(names[1]))
    assert offset_since(files, second(names[1].first_offset), end) == names[2].first_offset


def test_a_seal_that_is_damaged_costs_time_only() -> None:
    """The file is read from its start."""
    parts, end = a_log(60)
    files = parts.files()
    first = files.path(files.names()[0])
    with parts.storage.open(first) as file:
        file.write_at([b"\xff"], file.size() - 1)
    assert offset_since(files, second(7), end) == 7


def test_a_damaged_message_at_an_indexed_place_is_passed() -> None:
    """The search continues behind it."""
    parts, end = a_log(60)
    files = parts.files()
    with parts.storage.open(files.path(files.names()[0])) as file:
        file.write_at([b"\xff"], FRAMES_START + 20_032 * 4 + 100)
    assert [offset_since(files, second(number), end) for number in (3, 4, 5)] == [3, 5, 5]


def test_a_file_of_another_version_is_an_error() -> None:
    """It is not damaged: another Holdfast can read it."""
    parts, end = a_log(60)
    files = parts.files()
    damage_header(parts.storage, files.path(files.names()[0]), version=9)
    with pytest.raises(UnsupportedVersionError):
        offset_since(files, second(1), end)
