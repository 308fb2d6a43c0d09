"""The reader that passes over plain messages by their frame headers."""

from pathlib import Path

import pytest

from holdfast import PersistentQueue, Put
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.log import file_steps, run_reader
from holdfast.persistence.log.run_reader import PlainRun, RunReader
from support.builders.handles import handle_of
from support.builders.log_parts import LogParts, frame
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
NO_LIMIT = 2**63 - 1


def reader_of(queue: PersistentQueue) -> RunReader:
    """Return a reader at the first message, whose file it has open."""
    handle = handle_of(queue)
    reader = RunReader(handle.files, pytest.fail)
    reader.seek(0)
    return reader


def filled(*messages: Put | bytes) -> PersistentQueue:
    """Return an open queue in memory."""
    queue = PersistentQueue(ROOT, mode="exclusive", storage=SimulatedStorage(), data_file_bytes=2**20)
    queue.put_many(messages)
    return queue


def passed(queue: PersistentQueue, reader: RunReader, count: int = NO_LIMIT, size: int = NO_LIMIT) -> PlainRun | None:
    """Pass over what is plain."""
    assert handle_of(queue).read_side is not None
    return reader.pass_plain(count, size, handle_of(queue).read_side.log_end)


def test_it_stops_at_a_number_of_messages_and_of_bytes() -> None:
    """Whichever comes first; and continues from there as any reader."""
    with filled(*[b"x" * 100] * 50) as queue:
        reader = reader_of(queue)
        first = passed(queue, reader, count=20)
        assert first is not None
        assert first[:2] == (0, 20)
        assert first.size_bytes == 2000
        second = passed(queue, reader, size=1050)
        assert second is not None
        assert (second.first_offset, second.message_count, second.size_bytes) == (20, 10, 1000)
        assert passed(queue, reader, size=99) is None
        assert handle_of(queue).read_side is not None
        (record,) = reader.read(1, handle_of(queue).read_side.log_end)
        assert record[0] == 30
        assert second.end_position + 132 == record[4]
        rest = passed(queue, reader)
        assert rest is not None
        assert (rest.first_offset, rest.message_count) == (31, 19)
        assert passed(queue, reader) is None
        reader.close()


def test_it_stops_before_a_message_that_asks_for_something_and_not_for_headers() -> None:
    """That one has to be read: it may have to wait, or to come first."""
    plain = Put(b"plain", headers={"content-type": "text/plain"})
    with filled(plain, plain, Put(b"urgent", priority=3), plain) as queue:
        reader = reader_of(queue)
        run = passed(queue, reader)
        assert run is not None
        assert (run.message_count, run.size_bytes) == (2, 10)
        assert passed(queue, reader) is None
        reader.close()


def test_messages_larger_than_a_stretch_have_to_be_read() -> None:
    """And those behind them are passed again."""
    with filled(b"a", b"b" * 2**19, b"c", b"d") as queue:
        reader = reader_of(queue)
        assert handle_of(queue).read_side is not None
        end = handle_of(queue).read_side.log_end
        first = passed(queue, reader)
        assert first is not None
        assert first.message_count == 1
        assert passed(queue, reader) is None
        assert len(reader.read(1, end)[0][3]) == 2**19
        last = passed(queue, reader)
        assert last is not None
        assert (last.first_offset, last.message_count) == (2, 2)
        reader.close()


def test_many_stretches_make_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the end of the file, which nothing passes over."""
    monkeypatch.setattr(file_steps, "FIRST_STEP_BYTES", 2**21)
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, data_file_bytes=2**21) as queue:
        for _ in range(30):
            queue.put_many([b"x" * 1000] * 100)
        reader = reader_of(queue)
        first = passed(queue, reader)
        assert first is not None
        assert first.message_count > 1500
        assert passed(queue, reader) is None
        assert handle_of(queue).read_side is not None
        following = reader.read(1, handle_of(queue).read_side.log_end)[0]
        assert (following[0], following[5]) == (first.message_count, first.sequence + 1)
        reader.close()


def test_it_goes_on_after_it_has_rested() -> None:
    """The file is opened again."""
    with filled(b"a", b"b") as queue:
        reader = reader_of(queue)
        assert passed(queue, reader, count=1) is not None
        reader.rest()
        reader.rest()
        run = passed(queue, reader)
        assert run is not None
        assert (run.first_offset, run.message_count) == (1, 1)
        reader.close()


def test_it_remembers_few_headers_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the next call are looked at anew; all are passed over all the same."""
    monkeypatch.setattr(run_reader, "_KNOWN_HEADERS_MAX", 3)
    with filled(*[Put(b"x", headers={"id": str(number)}) for number in range(10)]) as queue:
        reader = reader_of(queue)
        for count in (2, 5, 3):
            run = passed(queue, reader, count=count)
            assert run is not None
            assert run.message_count == count
            assert len(reader._plain_headers) <= 3
        reader.close()


def test_it_stops_before_a_frame_of_a_kind_that_it_does_not_know(parts: LogParts) -> None:
    """Whoever reads it says what it is."""
    header = parts.header()
    frames = [frame(header, b"a", 0), frame(header, b"?", 1, kind=99), frame(header, b"b", 1)]
    parts.data_file(frames)
    reader = RunReader(parts.files(), pytest.fail)
    reader.seek(0)
    run = reader.pass_plain(10, NO_LIMIT, (1, FRAMES_START + sum(map(len, frames)), 2))
    assert run is not None
    assert (run.message_count, run.end_position) == (1, FRAMES_START + len(frames[0]))
