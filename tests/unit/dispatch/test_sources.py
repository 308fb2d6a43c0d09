"""How a handle that looks waits for a writer in another process: it looks at ``write.mark`` now and then."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import PersistentQueue, StorageError
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.index.priorities import Priorities
from holdfast.queue.dispatch.sources import RemoteSource
from support.builders.handles import handle_of
from support.processes.threads import Threads, wait_until


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[PersistentQueue]:
    """Stands for one in another process."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        yield queue


@pytest.fixture
def source(writer: PersistentQueue) -> Iterator[RemoteSource]:
    """Follows it through its files."""
    storage, directory = OsStorage(), QueueDirectory(writer.path)
    remote = RemoteSource(storage, directory.write_mark, handle_of(writer).queue_id, Priorities(storage, directory))
    yield remote
    remote.leave()


class Asked:
    """What a consumer looks at before it sleeps."""

    def __init__(self) -> None:
        self.count = 0
        self.is_ready = False

    def __call__(self) -> bool:
        self.count += 1
        return self.is_ready


def test_a_consumer_that_waits_hears_of_what_is_put(
    source: RemoteSource, writer: PersistentQueue, threads: Threads
) -> None:
    """It looks at the mark alone until that says something new."""
    assert source.end()[2] == 0
    asked = Asked()
    threads.start(lambda: source.wait(asked, None))
    wait_until(lambda: source._delay > 0.01)
    writer.put(b"a")
    threads.join()
    assert asked.count == 1
    assert source.end()[2] == 1
    assert source._delay < 0.01


def test_a_consumer_that_is_woken_does_not_wait_for_its_next_look(source: RemoteSource, threads: Threads) -> None:
    """Somebody in its own process gave a message back, or closes the queue."""
    is_over = threading.Event()
    threads.start(lambda: (source.wait(Asked(), None), is_over.set()))
    wait_until(lambda: len(source._notifier.waiting) == 1)
    source.wake()
    assert is_over.wait(10)


def test_waiting_ends_when_the_time_is_over_or_there_is_something_already(source: RemoteSource) -> None:
    """Nothing was put, and nobody rang."""
    asked = Asked()
    source.wait(asked, 0.01)
    source.wait(asked, 0)
    asked.is_ready = True
    source.wait(asked, None)
    assert asked.count == 3


def test_a_mark_that_does_not_verify_leaves_the_end_where_it_was(source: RemoteSource, writer: PersistentQueue) -> None:
    """It was read while it was written; the next look finds it whole."""
    writer.put(b"a")
    assert source.end()[2] == 1
    path = writer.path / "write.mark"
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    assert source.end()[2] == 1
    path.write_bytes(whole)
    writer.put(b"b")
    assert source.end()[2] == 2


def test_a_mark_that_cannot_be_read_is_an_error_of_the_storage(source: RemoteSource, writer: PersistentQueue) -> None:
    """It ends the waiting too."""
    assert source.end()[2] == 0
    assert source._mark is not None
    source._mark.close()
    with pytest.raises(StorageError, match="looking for the end of the log"):
        source.wait(Asked(), None)
