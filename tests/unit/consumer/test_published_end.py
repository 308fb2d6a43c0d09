"""How far a handle that only looks may read: as far as the owner says in ``write.mark``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import PersistentQueue, StorageError
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.consumer.published_end import PublishedEnd
from support.builders.handles import handle_of


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[PersistentQueue]:
    """Return the owner; tests read only what it publishes."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        yield queue


@pytest.fixture
def published(writer: PersistentQueue) -> Iterator[PublishedEnd]:
    """Follows it through its files."""
    storage, directory = OsStorage(), QueueDirectory(writer.path)
    published = PublishedEnd(storage, directory.write_mark, handle_of(writer).queue_id)
    yield published
    published.close()


def test_a_mark_that_does_not_verify_leaves_the_end_where_it_was(
    published: PublishedEnd, writer: PersistentQueue
) -> None:
    """It was read while it was written; the next look finds it whole."""
    writer.put(b"a")
    assert published.end()[2] == 1
    path = writer.path / "write.mark"
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    assert published.end()[2] == 1
    path.write_bytes(whole)
    writer.put(b"b")
    assert published.end()[2] == 2


def test_a_mark_that_cannot_be_read_is_an_error_of_the_storage(
    published: PublishedEnd, writer: PersistentQueue
) -> None:
    """The end is unknown then, and not where it was."""
    assert published.end()[2] == 0
    assert published._mark is not None
    published._mark.close()
    with pytest.raises(StorageError, match="looking for the end of the log"):
        published.end()
