"""Batch reads while everything changes or fails under them: the right rows, or an error, and never fewer unsaid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import CorruptionError, PersistentQueue
from holdfast.arrow.reading.file_range_reader import ConsumedMeanwhileError
from support.builders.small_queues import SmallQueue, build, payload
from support.processes.threads import Threads
from support.spark.drain_faults import KILLS_THE_READER, noted, struck_at
from support.spark.spark_rows import payloads

ROUNDS = 40
PER_ROUND = 60


def text(offset: int, size: int = 300) -> bytes:
    """Return what a message holds."""
    return b'{"id": %d, "rest": "%s"}' % (offset, b"x" * size)


def table(spark: Any, path: Path, **options: Any) -> Any:
    """Return a queue as a DataFrame."""
    return spark.read.format("holdfast").options(**options).load(str(path))


def take(queue: PersistentQueue, count: int) -> None:
    """Take so many messages; a call gives those of one data file."""
    while count:
        count -= len(queue.get_many(count, timeout=0))


# -- Without Java ----------------------------------------------------------------------------------------------------


class Application:
    """Puts and takes, a batch of each at a time; data files are so small that they are retired all the time.

    Attributes
    ----------
    put_count : int
        So many messages were put for sure.
    taken_count : int
        So many may have been taken.
    is_over : bool
        Whether it has ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.put_count = self.taken_count = 0
        self.is_over = False

    def run(self) -> None:
        """Go on to the end."""
        try:
            with PersistentQueue(self.path, mode="exclusive", data_file_bytes=2**14) as queue:
                for _ in range(ROUNDS):
                    queue.put_many([text(self.put_count + each) for each in range(PER_ROUND)])
                    self.put_count += PER_ROUND
                    self.taken_count += PER_ROUND - 1
                    take(queue, PER_ROUND - 1)
        finally:
            self.is_over = True


@pytest.mark.usefixtures("arrow_packages")
def test_reads_while_an_application_puts_takes_and_retires_lack_nothing_that_waits(tmp_path: Path) -> None:
    """A strict read has everything or says what it lacks; a lenient one all that nobody has taken meanwhile."""
    path, application = tmp_path / "q", Application(tmp_path / "q")
    PersistentQueue(path, mode="exclusive").close()
    threads = Threads()
    threads.start(application.run)
    read_count = 0
    while not application.is_over:
        is_strict = read_count % 2 == 0
        put_count = application.put_count
        try:
            found = payloads(path, failOnDataLoss=is_strict)
        except ConsumedMeanwhileError:
            assert is_strict
            continue
        finally:
            read_count += 1
        assert set(range(application.taken_count, put_count)) <= found.keys()
        assert all(body == text(offset) for offset, body in found.items())
        if is_strict and found:
            assert list(found) == list(range(min(found), max(found) + 1))
    threads.join()
    assert read_count > 3


@pytest.mark.usefixtures("arrow_packages")
def test_a_group_that_finishes_nothing_keeps_every_file_for_strict_reads(tmp_path: Path) -> None:
    """However fast the application takes."""
    path, application = tmp_path / "q", Application(tmp_path / "q")
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create("audit")
    threads = Threads()
    threads.start(application.run)
    while not application.is_over:
        put_count = application.put_count
        found = payloads(path, group="audit")
        assert list(found) == list(range(len(found)))
        assert len(found) >= put_count
    threads.join()
    assert payloads(path, group="audit") == {each: text(each) for each in range(ROUNDS * PER_ROUND)}


def cut(queue: SmallQueue, number: int) -> range:
    """Cut a data file behind its second message; return the offsets that are gone."""
    path = queue.data_files()[number]
    frame = queue.frames(path)[1]
    end = queue.header(queue.data_files()[number + 1]).first_offset
    lost = range(queue.header(path).first_offset + frame.index + 1, end)
    queue.write(path, queue.read(path)[: frame.end + 7])
    return lost


def remove(queue: SmallQueue, number: int) -> range:
    """Remove a data file; return the offsets that are gone."""
    path, following = queue.data_files()[number : number + 2]
    lost = range(queue.header(path).first_offset, queue.header(following).first_offset)
    path.unlink()
    return lost


@pytest.mark.usefixtures("arrow_packages")
@pytest.mark.parametrize("damage", [cut, remove])
def test_a_file_that_was_cut_or_removed_is_an_error_with_its_offsets_or_left_out(tmp_path: Path, damage: Any) -> None:
    """The option says which."""
    queue = build(tmp_path / "queue", taken_count=1)
    lost = damage(queue, 1)
    with pytest.raises(CorruptionError, match=r"read the rest with failOnDataLoss=false") as raised:
        payloads(queue.root)
    assert [offset for each in raised.value.offsets for offset in each] == list(lost)
    rest = payloads(queue.root, failOnDataLoss=False)
    assert rest == {each: payload(each) for each in range(queue.put_count) if each not in lost}


# -- With Spark ------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the workers in /proc")
def test_a_worker_that_is_killed_in_the_middle_of_its_read_costs_no_row_and_doubles_none(
    spark: Any, tmp_path: Path
) -> None:
    """Spark tries its task again, and that reads what was planned."""
    path, message_count = tmp_path / "q", 6000
    with PersistentQueue(path, mode="exclusive", data_file_bytes=2**18) as queue:
        for at in range(0, message_count, 100):
            queue.put_many([text(each, 1200) for each in range(at, at + 100)])
    frame = table(spark, path, partitionBytes=2**22)
    struck = struck_at(100, KILLS_THE_READER, tmp_path / "notes", path)
    seen = frame.select(struck(frame["offset"], frame["payload"])).collect()
    (line,) = noted(tmp_path / "notes")
    assert int(line.split()[-1]) >= 1, "nobody was there to be killed"
    assert sorted(row[0] for row in seen) == list(range(message_count))


@pytest.mark.spark
def test_a_frame_whose_files_were_consumed_says_so_and_a_new_one_reads_what_is_there(
    spark: Any, tmp_path: Path
) -> None:
    """Or has what is left of it, where that is asked for."""
    from pyspark.errors import PySparkException

    path = tmp_path / "q"
    with PersistentQueue(path, mode="exclusive", data_file_bytes=2**14) as queue:
        for at in range(0, 400, 20):
            queue.put_many([text(each) for each in range(at, at + 20)])
        frames = [table(spark, path, failOnDataLoss=each) for each in ("true", "false")]
        assert [frame.count() for frame in frames] == [400, 400]
        take(queue, 250)
        strict, lenient = frames
        with pytest.raises(PySparkException, match=r"was consumed after this read was planned"):
            strict.collect()
        left, anew = (
            [row.offset for row in each.orderBy("offset").collect()] for each in (lenient, table(spark, path))
        )
    assert left == anew == list(range(anew[0], 400))
    assert 200 < anew[0] <= 250
