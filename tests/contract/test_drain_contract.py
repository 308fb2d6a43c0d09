"""What a drain promises, whichever engine runs its batches. The application gets the Arrow table of each."""

import os
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, PersistentQueue, QueueLockedError, QueueNotFoundError, TransactionStateError
from holdfast.arrow import DrainProgress
from support.arrow.engines import ENGINES
from support.builders.handles import handle_of
from support.spark.drains import fill


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    """What runs the batches."""
    return request.param


class Sink:
    """Replaces what it has of a batch, as a directory would; raises where it is told to."""

    def __init__(self) -> None:
        self.batches: dict[str, list[int]] = {}
        self.calls: list[str] = []
        self.fails_before = self.fails_after = 0

    def __call__(self, table: Any, batch_id: str) -> None:
        self.calls.append(batch_id)
        if self.fails_before:
            self.fails_before -= 1
            raise RuntimeError("before")
        self.batches[batch_id] = table.column("offset").to_pylist()
        if self.fails_after:
            self.fails_after -= 1
            raise RuntimeError("after")

    @property
    def offsets(self) -> list[int]:
        """Everything that has arrived."""
        return sorted(offset for batch in self.batches.values() for offset in batch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of 1,000 messages."""
    fill(tmp_path / "q", range(1000))
    return tmp_path / "q"


def test_everything_that_was_there_comes_once_in_batches(engine: Any, path: Path) -> None:
    """The report says what was done, and progress is told after each batch."""
    sink, progress = Sink(), list[DrainProgress]()
    report = engine.drain(path, sink, max_messages=300, group="night", on_progress=progress.append)
    assert sink.offsets == list(range(1000))
    assert [len(batch) for batch in sink.batches.values()] == [300, 300, 300, 100]
    assert report.batch_ids == tuple(sink.calls) == tuple(each.batch_id for each in progress)
    assert (report.message_count, report.depth, report.resumed_count, report.damage) == (1000, 0, 0, ())
    assert [(each.total_count, each.depth) for each in progress] == [(300, 700), (600, 400), (900, 100), (1000, 0)]
    assert progress[0].megabytes_per_second > 0
    with PersistentQueue(path, mode="read_only") as queue:
        assert queue.stats().depth == 1000  # of the default group, which is another one
    assert engine.drain(path, sink, group="night").batch_ids == ()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_batch_that_fails_comes_again_as_it_was(engine: Any, path: Path, when: str) -> None:
    """Under its id and with its messages, though more have come and the bounds are others; what it raised comes out."""
    sink = Sink()
    setattr(sink, f"fails_{when}", 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=when) as caught:
            engine.drain(path, sink, max_messages=400, group="night")
        assert sink.calls[0] in caught.value.__notes__[0]
    fill(path, range(1000, 1100))
    report = engine.drain(path, sink, max_messages=150, group="night")
    assert len(set(sink.calls[:3])) == 1
    assert len(sink.batches[sink.calls[0]]) == 400
    assert sink.offsets == list(range(1100))
    assert report.resumed_count == 1


def test_ids_name_the_queue_the_group_and_the_first_message(engine: Any, path: Path, tmp_path: Path) -> None:
    """So no two batches ever have the same, and each can be the name of a directory."""
    fill(tmp_path / "other", range(10))
    ids = [
        engine.drain(where, Sink(), max_messages=500, group=group).batch_ids
        for where, group in ((path, "a"), (path, "b"), (tmp_path / "other", "a"))
    ]
    assert len({batch_id for each in ids for batch_id in each}) == 5
    with PersistentQueue(path, mode="read_only") as queue:
        name = handle_of(queue).queue_id.hex()
    assert all(name in each for each in ids[0])
    assert [each.rsplit("-", 1)[1] for each in ids[0]] == ["0", "500"]
    assert max(len(each) for batch in ids for each in batch) <= 100


def test_the_group_of_a_drain_gives_no_message_up(engine: Any, path: Path) -> None:
    """Unlike the default group, which keeps the settings that it has; and a group that was there keeps its own."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create("day", max_deliveries=3)
    for group, expected in [("night", None), ("day", 3), ("default", 5)]:
        engine.drain(path, Sink(), group=group)
        with PersistentQueue(path, mode="exclusive", group=group) as queue:
            assert queue.settings["max_deliveries"] == expected


def test_a_second_drain_of_the_group_is_refused_and_another_group_is_not(engine: Any, path: Path) -> None:
    """Nor is a consumer, of the default group or of the same one: it gets what the drain has not reserved."""
    others = Sink()

    def meanwhile(_: Any, __: str) -> None:
        with pytest.raises(QueueLockedError, match=str(os.getpid())):
            engine.drain(path, Sink(), group="night")
        engine.drain(path, others, group="day")
        for group, offset in (("default", 0), ("night", 700)):
            with PersistentQueue(path, mode="shared", group=group) as queue, queue.receive(timeout=5) as delivery:
                assert delivery.offset == offset
        drainer.stop()

    drainer = engine.drainer(path, meanwhile, group="night", max_messages=700)
    assert drainer.run().depth == 299
    assert others.offsets == list(range(1000))


def test_a_batch_that_somebody_gave_back_is_not_taken_for_drained(engine: Any, path: Path) -> None:
    """The drain ends with an error, and the messages come again, under the id that replaces what was written."""
    sink = Sink()

    def give_back(table: Any, batch_id: str) -> None:
        sink(table, batch_id)
        queue.abort_prepared(batch_id)

    with PersistentQueue(path, mode="exclusive") as queue:
        with pytest.raises(TransactionStateError, match="aborted"):
            engine.drain(queue, give_back, max_messages=700)
        assert queue.stats().depth == 1000
        engine.drain(queue, sink, max_messages=600)
        assert queue.stats().depth == 0  # and the queue that was handed in is still open
    assert sink.offsets == list(range(1000))


@pytest.mark.parametrize("opens", [True, False])
def test_a_drain_that_waits_takes_what_comes_and_ends_when_it_is_told(engine: Any, path: Path, *, opens: bool) -> None:
    """Behind the batch at hand; by its own handle, beside others, or by that of an application that owns the queue."""
    sink, is_empty = Sink(), threading.Event()

    def look(progress: DrainProgress) -> None:
        if progress.depth == 0:
            is_empty.set()

    with ExitStack() as stack:
        queue = path if opens else stack.enter_context(PersistentQueue(path, mode="exclusive"))
        group = "night" if opens else "default"
        drainer = engine.drainer(queue, sink, group=group, max_messages=400, on_progress=look)
        thread = threading.Thread(target=drainer.run, args=("forever",))
        thread.start()
        for end in (1100, 1200):
            assert is_empty.wait(30)
            is_empty.clear()
            if isinstance(queue, PersistentQueue):
                queue.put_many([b"more"] * 100)
            else:
                fill(queue, range(end - 100, end))
        assert is_empty.wait(30)
        drainer.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert sink.offsets == list(range(1200))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_behind_the_batch_at_hand(engine: Any, path: Path, number: int) -> None:
    """The handlers are those from before when it has ended."""
    sink, before = Sink(), signal.getsignal(number)

    def interrupted(table: Any, batch_id: str) -> None:
        os.kill(os.getpid(), number)
        sink(table, batch_id)

    report = engine.drain(path, interrupted, max_messages=100, until="forever", group="night")
    assert (report.message_count, report.depth) == (100, 900)
    assert signal.getsignal(number) is before


def test_what_cannot_be_is_refused_before_anything_is_made(engine: Any, path: Path, tmp_path: Path) -> None:
    """Bounds, words, a queue that is not there, and an open queue of another group."""
    with pytest.raises(ConfigError, match="max_bytes"):
        engine.drain(path, Sink(), max_bytes=0)
    with pytest.raises(ConfigError, match="tomorrow"):
        engine.drain(path, Sink(), until="tomorrow")
    with pytest.raises(QueueNotFoundError):
        engine.drain(tmp_path / "nowhere", Sink(), group="night")
    assert not (tmp_path / "nowhere").exists()
    with PersistentQueue(path, mode="exclusive") as queue, pytest.raises(ConfigError, match="default"):
        engine.drain(queue, Sink(), group="night")
