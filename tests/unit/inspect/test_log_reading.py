"""Reading without a group: from any start to any stop, following, in every mode, over files that go meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from holdfast import ClosedError, ConfigError, FlushPolicy, PersistentQueue, StorageError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import FRAMES_START
from support.builders.clocks import NS_PER_SECOND, START_NS, FakeClock
from support.processes.children import child
from support.processes.threads import Threads

FILE_BYTES = 16 * 2**10


@pytest.fixture(params=["exclusive", "shared", "read_only"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[PersistentQueue, PersistentQueue]]:
    """A handle that puts and takes, and the one that reads: the same one, a client, or one that only looks."""
    path = tmp_path / "orders"
    first = "exclusive" if request.param == "read_only" else request.param
    with PersistentQueue(path, mode=first, data_file_bytes=FILE_BYTES) as queue:
        if request.param == "exclusive":
            yield queue, queue
            return
        with PersistentQueue(path, mode=request.param) as reader:
            yield queue, reader


def put_numbers(queue: PersistentQueue, first: int, end: int) -> None:
    """Put messages of 1,000 bytes; about 15 make a data file."""
    queue.put_many([b"%06d" % number + bytes(994) for number in range(first, end)][:8])
    for number in range(first + 8, end):
        queue.put(b"%06d" % number + bytes(994), headers={"number": str(number)})


def finish_all(queue: PersistentQueue) -> None:
    """Take all that is there, so that files are reclaimed."""
    while queue.stats().depth:
        queue.get_many(100)


def test_the_whole_log_is_read_in_order_and_stays(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """Over several files; payload, offset, time and headers are those of the put."""
    queue, reader = pair
    put_numbers(queue, 0, 60)
    messages = list(reader.read())
    assert [message.offset for message in messages] == list(range(60))
    assert [int(message.payload[:6]) for message in messages] == list(range(60))
    assert messages[20].headers == {"number": "20"}
    assert abs(messages[59].timestamp_ns - time.time_ns()) < 600 * NS_PER_SECOND
    assert queue.stats().depth == 60
    assert [message.offset for message in reader.read()] == list(range(60))


def test_finished_messages_and_dead_letters_are_read_too(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """As long as their file is there: what groups have done does not matter."""
    queue, reader = pair
    queue.groups.create("keeps")
    put_numbers(queue, 0, 10)
    queue.receive().reject("no")
    queue.get_many(5)
    assert [message.offset for message in reader.read()] == list(range(10))


@pytest.mark.parametrize(
    ("start", "stop", "offsets"),
    [
        ("earliest", "latest", range(60)),
        (7, 33, range(7, 33)),
        (-5, None, range(55, 60)),
        (0, -5, range(55)),
        ("latest", None, range(0)),
        (60, None, range(0)),
        (3, 3, range(0)),
        (30, 3, range(0)),
        (30, "earliest", range(0)),
        (58, 999, range(58, 60)),
        (timedelta(days=1), None, range(60)),
        (0, timedelta(days=1), range(0)),
    ],
)
def test_a_range_is_read(
    pair: tuple[PersistentQueue, PersistentQueue], start: int | str | timedelta, stop: int | str | None, offsets: range
) -> None:
    """The stop is not part of it, and may lie behind the end or before the start."""
    queue, reader = pair
    put_numbers(queue, 0, 60)
    reading = reader.read(start, stop)
    assert [message.offset for message in reading] == list(offsets)
    assert reading.is_over
    assert (reading.gaps, reading.damage) == ([], [])
    assert list(reading) == reading.read_on() == []


def test_times_are_those_of_the_puts(tmp_path: Path) -> None:
    """From one on, up to another one; also while it follows."""
    clock = FakeClock()
    at = datetime.fromtimestamp(START_NS / NS_PER_SECOND, UTC)
    with PersistentQueue(tmp_path / "q", mode="exclusive", clock=clock, data_file_bytes=FILE_BYTES) as queue:
        for number in range(50):
            queue.put(b"%06d" % number + bytes(994))
            clock.advance(1)
        for follow in (False, True):
            reading = queue.read(at + timedelta(seconds=9.5), at + timedelta(seconds=41), follow=follow)
            assert [message.offset for message in reading] == list(range(10, 41))
        assert [message.offset for message in queue.read(timedelta(seconds=3))] == [47, 48, 49]


@pytest.mark.parametrize(("start", "stop"), [(61, None), ("first", None), (0, "last"), (0, 1.5), (None, None)])
def test_a_start_or_stop_that_cannot_be_is_refused(
    pair: tuple[PersistentQueue, PersistentQueue], start: object, stop: object
) -> None:
    """At once, before anything is read."""
    queue, reader = pair
    put_numbers(queue, 0, 60)
    with pytest.raises(ConfigError):
        reader.read(start, stop)  # type: ignore[arg-type]


def test_an_empty_queue_has_nothing_to_read(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """And gets something to read."""
    queue, reader = pair
    assert list(reader.read()) == []
    following = reader.read(follow=True, timeout=30)
    put_numbers(queue, 0, 1)
    assert next(following).offset == 0


@pytest.mark.extra("filter")
def test_only_messages_that_match_are_read(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """A read of thousands of others makes no pause, and one that follows waits for the next that matches."""
    queue, reader = pair
    put_numbers(queue, 0, 300)
    wanted = "has(headers.number) && headers.number.endsWith('99')"
    assert [each.offset for each in reader.read(filter=wanted)] == [99, 199, 299]
    following = reader.read(200, filter=wanted, follow=True, timeout=0.2)
    assert [each.offset for each in following] == [299]
    assert following.next_offset == 300
    with pytest.raises(ConfigError, match="filter"):
        reader.read(filter="headers.number ==")


# -- Following ---------------------------------------------------------------------------------------------------------


def test_a_reader_that_follows_gets_what_is_put_later(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """Over new files, until nothing has come for the time that it waits."""
    queue, reader = pair
    put_numbers(queue, 0, 10)
    reading = reader.read(5, follow=True, timeout=0.3)
    assert [next(reading).offset for _ in range(5)] == [5, 6, 7, 8, 9]
    threads = Threads()
    threads.start(lambda: (time.sleep(0.1), put_numbers(queue, 10, 60)))
    assert [message.offset for message in reading] == list(range(10, 60))
    threads.join()
    assert reading.is_over
    assert reading.next_offset == 60


def test_a_reader_that_follows_ends_at_its_stop(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """Which may not be there when it begins."""
    queue, reader = pair
    reading = reader.read(0, 5, follow=True, timeout=30)
    put_numbers(queue, 0, 4)
    assert [next(reading).offset for _ in range(4)] == [0, 1, 2, 3]
    queue.put(b"4")
    queue.put(b"5")
    assert [message.offset for message in reading] == [4]


def test_a_shutdown_ends_a_reader_behind_the_last_message(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """It waits for nothing any more."""
    queue, reader = pair
    put_numbers(queue, 0, 3)
    reading = reader.read(follow=True)
    assert next(reading).offset == 0
    found: list[int] = []
    threads = Threads()
    threads.start(lambda: found.extend(message.offset for message in reading))
    reader.shutdown()
    threads.join()
    assert found == [1, 2]


def test_a_reader_of_a_closed_queue_says_so(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """Also one that waits just then."""
    queue, reader = pair
    put_numbers(queue, 0, 3)
    reading, other = reader.read(), reader.read("latest", follow=True)
    next(reading)
    threads = Threads()
    threads.start(lambda: list(other))
    time.sleep(0.05)
    reader.close()
    with pytest.raises(ClosedError):
        threads.join()
    assert [next(reading).offset, next(reading).offset] == [1, 2]
    with pytest.raises(ClosedError):
        next(reading)


def _put_slowly(path: Path) -> None:
    with PersistentQueue(path, mode="shared", can_own=False) as queue:
        for number in range(30):
            queue.put(b"%d" % number)
            time.sleep(0.005)


def test_a_reader_follows_what_another_process_puts(tmp_path: Path) -> None:
    """Each message once, in order."""
    with PersistentQueue(tmp_path / "q") as queue:
        reading = queue.read(follow=True, timeout=20)
        with child(partial(_put_slowly, tmp_path / "q")):
            assert [int(next(reading).payload) for _ in range(30)] == list(range(30))
        reading.close()
        assert list(reading) == []


def test_unsynced_messages_are_read_if_consumers_may_see_them(tmp_path: Path) -> None:
    """The flush policy decides, as for takes."""
    with PersistentQueue(tmp_path / "q", mode="exclusive", flush=FlushPolicy.never()) as queue:
        queue.put(b"soon")
        assert [message.payload for message in queue.read()] == [b"soon"]


# -- What is not there -------------------------------------------------------------------------------------------------


def test_what_was_reclaimed_before_is_a_gap(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """If it was asked for by number; the earliest is what is there."""
    queue, reader = pair
    put_numbers(queue, 0, 100)
    finish_all(queue)
    oldest = queue.stats().first_offset
    assert oldest > 50
    for start in (3, -97):
        reading = reader.read(start)
        assert [message.offset for message in reading] == list(range(oldest, 100))
        assert reading.gaps == [range(3, oldest)]
    reading = reader.read()
    assert [message.offset for message in reading] == list(range(oldest, 100))
    assert reading.gaps == []


def test_a_gap_in_the_middle_is_told_as_far_as_it_was_asked_for(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """One message keeps the first file, and the last one is there in any case."""
    queue, reader = pair
    put_numbers(queue, 0, 100)
    kept = queue.receive()
    while queue.stats().depth > 1:
        queue.get_many(100)
    (gap,) = (reading := reader.read()).gaps or (list(reading) and reading.gaps)
    assert 0 < gap.start < 20
    assert gap.stop > 70
    assert [message.offset for message in reader.read()] == [*range(gap.start), *range(gap.stop, 100)]
    short = reader.read(gap.start - 1, gap.start + 3)
    assert [message.offset for message in short] == [gap.start - 1]
    assert short.gaps == [range(gap.start, gap.start + 3)]
    inside = reader.read(gap.start + 3)
    assert next(inside).offset == gap.stop
    assert inside.gaps == [range(gap.start + 3, gap.stop)]
    kept.ack()


def test_a_file_that_is_reclaimed_while_it_is_read_becomes_a_gap(
    pair: tuple[PersistentQueue, PersistentQueue],
) -> None:
    """Its space may be used again: nothing of that is returned, and reading continues behind it."""
    queue, reader = pair
    put_numbers(queue, 0, 100)
    reading = reader.read(follow=True, timeout=0)
    found = [next(reading).offset for _ in range(3)]
    finish_all(queue)
    put_numbers(queue, 100, 160)
    found += [message.offset for message in reading]
    gone = [offset for gap in reading.gaps for offset in gap]
    assert sorted(found + gone) == list(range(160))
    assert gone
    assert found[-1] == 159
    assert reading.damage == []


def test_an_idle_reader_keeps_no_reclaimed_file_open(tmp_path: Path) -> None:
    """Else its space would not come back before the reader ends."""
    with PersistentQueue(tmp_path / "q", mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        put_numbers(queue, 0, 10)
        reading = queue.read(follow=True, timeout=0.1)
        assert len(reading.read_on()) == 10
        for _ in range(3):
            assert reading.read_on() == []
        assert reading._reader._file is None
        put_numbers(queue, 10, 20)
        assert [message.offset for message in reading] == list(range(10, 20))


def test_damage_is_passed_and_told(pair: tuple[PersistentQueue, PersistentQueue]) -> None:
    """With its place; what is before the start is none of its business."""
    queue, reader = pair
    put_numbers(queue, 0, 30)
    name = sorted((queue.path / "data").iterdir())[0]
    with name.open("r+b") as file:
        file.seek(FRAMES_START + 500)
        file.write(b"\xff" * 4)
    reading = reader.read()
    assert [message.offset for message in reading] == list(range(1, 30))
    assert [damage.offsets for damage in reading.damage] == [range(1)]
    behind = reader.read(1)
    assert [message.offset for message in behind] == list(range(1, 30))
    assert behind.damage == []


def test_a_missing_last_file_ends_a_reader_that_does_not_follow(tmp_path: Path) -> None:
    """The rest is a gap, and it does not wait for it."""
    with PersistentQueue(tmp_path / "q", mode="exclusive", data_file_bytes=FILE_BYTES) as queue:
        put_numbers(queue, 0, 40)
    sorted((tmp_path / "q" / "data").iterdir())[-1].unlink()
    with PersistentQueue(tmp_path / "q", mode="read_only") as looking:
        reading = looking.read()
        found = [message.offset for message in reading]
        assert reading.gaps == [range(found[-1] + 1, 40)]


def test_a_disk_that_refuses_ends_the_loop_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next call reads on."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        put_numbers(queue, 0, 3)
        reading = queue.read()

        def refuse(*_: object, **__: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(OsStorage, "open", refuse)
            patched.setattr(reading._reader, "read", refuse)
            with pytest.raises(StorageError, match="reading"):
                next(reading)
        assert [message.offset for message in reading] == [0, 1, 2]


def test_a_block_closes_the_file(tmp_path: Path) -> None:
    """So does the end of the iteration."""
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        put_numbers(queue, 0, 200)
        with queue.read() as reading:
            assert next(reading).offset == 0
            assert reading._reader._file is not None
        assert reading._reader._file is None
        assert reading.is_over
        for _ in (ended := queue.read()):
            pass
        assert ended._reader._file is None


def test_a_read_does_not_wait_while_it_comes_to_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a file leads to a place before it, which may be many messages ahead in a large batch."""
    with PersistentQueue(tmp_path / "q") as queue:
        queue.put_many([b"%d" % number for number in range(3000)])
        monkeypatch.setattr("holdfast.queue.inspect.log_reading.time.sleep", lambda _: pytest.fail("it has waited"))
        with queue.read(start=2500, stop=2501) as reading:
            assert [message.payload for message in reading] == [b"2500"]
