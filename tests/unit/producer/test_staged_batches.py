"""Batches that another process has staged: committed and prepared by the owner, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast import CorruptionError, FlushPolicy, StorageError, UsageError
from holdfast.persistence.format.commit_record import CommitRecord, Participant
from holdfast.persistence.format.message_options import MessageOptions
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.staged_file import stage, staged_path
from holdfast.queue.engine.queue_handle import QueueHandle
from support.builders.log_parts import with_options
from support.builders.sessions import FILE_BYTES, SESSION, THREAD, owner, put, requested
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

SMALL, LARGE = 100, FILE_BYTES // 4
"""Sizes of a message: two small ones are copied into the log, of the large ones one is too many for that."""


def staged(handle: QueueHandle, record: CommitRecord, size: int = SMALL, headers: bytes = b"") -> BatchFileWriter:
    """Write a batch as a client does; it keeps the lock."""
    handle.require_batches().make_directory()
    writer = stage(handle.storage, handle.directory, record.nonce, handle.queue_id)
    for _ in range(record.count):
        writer.add(bytes(size), headers, 1)
    writer.finish(record)
    return writer


def files(storage: SimulatedStorage) -> list[str]:
    """Return the staged files that are there."""
    return [path.name for path in storage.tree() if path.suffix == ".staging"]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_staged_batch_is_committed_once(storage: SimulatedStorage, size: int) -> None:
    """Copied or adopted; sent again to this owner, and to the next one, it has the same offsets."""
    record = requested(1, messages=2)
    with owner(storage, flush=FlushPolicy.never()) as handle:
        put(handle.require_write_side(), requested(1, thread=THREAD[::-1]))
        writer = staged(handle, record, size)
        batches = handle.require_batches()
        assert batches.commit_staged(record.nonce, SESSION) == (range(1, 3), True)
        assert batches.commit_staged(record.nonce, SESSION) == (range(1, 3), False)
        assert files(storage) == []
        killed = storage.crash_keeping_all()
        writer.close()
    with owner(killed, SESSION, flush=FlushPolicy.never()) as handle:
        assert handle.require_batches().commit_staged(record.nonce, SESSION) == (range(1, 3), False)
        handle.require_write_side().acknowledge_answers(THREAD, 1)
        with pytest.raises(StorageError, match="reading a staged batch"):
            handle.require_batches().commit_staged(record.nonce, SESSION)
        with staged(handle, record, size).file, pytest.raises(UsageError, match="was answered before"):
            handle.require_batches().commit_staged(record.nonce, SESSION)
        assert handle.next_offset() == 3


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_staged_batch_waits_for_space(storage: SimulatedStorage, size: int) -> None:
    """Its file stays, and is asked for again."""
    record = requested(1, messages=2)
    with owner(storage, maxsize=2) as handle:
        put(handle.require_write_side(), requested(1, thread=THREAD[::-1]))
        with staged(handle, record, size).file:
            assert handle.require_batches().commit_staged(record.nonce, SESSION) is None
            handle.require_read_side().get_many(1, timeout=0)
            assert handle.require_batches().commit_staged(record.nonce, SESSION) == (range(1, 3), True)


def test_a_staged_message_that_may_have_an_id_is_read_before_there_is_space(storage: SimulatedStorage) -> None:
    """It may need none; one without an id is not read in vain."""
    record = requested(1)
    with owner(storage, maxsize=1) as handle:
        put(handle.require_write_side(), requested(1, thread=THREAD[::-1]))
        with staged(handle, record).file:
            for has_id in (True, False):
                assert handle.require_batches().commit_staged(record.nonce, SESSION, has_id=has_id) is None
            handle.require_read_side().get_many(1, timeout=0)
            assert handle.require_batches().commit_staged(record.nonce, SESSION, has_id=False) == (range(1, 2), True)


def test_a_large_message_with_an_id_is_put_once(storage: SimulatedStorage) -> None:
    """Its id was put before: nothing is written, and its file goes."""
    headers = with_options(MessageOptions(dedup_id="id"), b"")
    with owner(storage) as handle:
        assert put(handle.require_write_side(), requested(1), dedup_id="id") == range(1)
        with staged(handle, requested(2), LARGE * 2, headers).file:
            assert handle.require_batches().commit_staged(requested(2).nonce, SESSION) == (range(1), False)
        assert files(storage) == []


def test_a_file_that_is_not_what_the_request_says_is_refused(storage: SimulatedStorage) -> None:
    """Another session's, with consequences, under another name, or damaged."""
    record = requested(1, messages=2)
    with owner(storage) as handle:
        batches = handle.require_batches()
        with staged(handle, record).file, pytest.raises(CorruptionError, match="another request"):
            batches.commit_staged(record.nonce, SESSION + 1)
        voting = replace(record, waiting_file="prepared/t.batch")
        with staged(handle, voting).file, pytest.raises(CorruptionError, match="another request"):
            batches.commit_staged(record.nonce, SESSION)
        for size in (SMALL, LARGE):
            writer = staged(handle, record, size)
            writer.file.write_at((b"!",), 4608 + 60)
            with writer.file, pytest.raises(CorruptionError):
                batches.commit_staged(record.nonce, SESSION)
        assert handle.next_offset() == 0


def test_a_file_that_cannot_be_removed_is_left_to_its_maker(storage: SimulatedStorage) -> None:
    """It is committed all the same; the next opening leaves it alone, and so does the one behind its maker's death."""
    record = requested(1)
    with owner(storage) as handle:
        writer = staged(handle, record)
        with refusing(storage, "remove", writer.path.name):
            assert handle.require_batches().commit_staged(record.nonce, SESSION) == (range(1), True)
        assert files(storage) == [writer.path.name]
    with owner(storage, SESSION) as handle:
        assert files(storage) == [writer.path.name]
        assert handle.require_batches().commit_staged(record.nonce, SESSION) == (range(1), False)
        assert files(storage) == []
        writer.close()


def test_a_staged_batch_is_prepared_once(storage: SimulatedStorage) -> None:
    """Its file is not there a second time; under the same id no other is."""
    record = replace(requested(1), id="t", waiting_file="prepared/t.batch", session=0)
    other = replace(record, nonce=requested(2).nonce)
    with owner(storage) as handle:
        batches = handle.require_batches()
        for each in (record, other):
            writer = staged(handle, each)
            writer.sync()
            writer.close()
        assert batches.prepare_staged(batches.staged_summary("t", record.nonce, ())).path.name == "t.batch"
        with pytest.raises(StorageError):
            batches.staged_summary("t", record.nonce, ())
        with pytest.raises(UsageError, match="t is prepared"):
            batches.prepare_staged(batches.staged_summary("t", other.nonce, ()))


@pytest.mark.parametrize(
    ("changed", "transaction_id", "text"),
    [
        ({}, "u", "another transaction"),
        ({"nonce": requested(2).nonce}, "t", "another transaction"),
        ({"waiting_file": "prepared/u.batch"}, "t", "no puts to prepare"),
        ({"session": SESSION}, "t", "no puts to prepare"),
        ({"participants": ()}, "t", "no puts to prepare"),
    ],
)
def test_a_staged_batch_that_is_not_what_the_request_says_is_not_prepared(
    storage: SimulatedStorage, changed: dict[str, Any], transaction_id: str, text: str
) -> None:
    """Another id or nonce, other votes, or a request of a session."""
    voters = (Participant(".", b"q" * 16, "default"),)
    record = replace(requested(1), id="t", waiting_file="prepared/t.batch", session=0, participants=voters)
    with owner(storage) as handle:
        with staged(handle, record).file as file:
            file.sync()
        assert handle.require_batches().staged_summary("t", record.nonce, voters).commit_record == record
        storage.remove(staged_path(handle.directory, record.nonce))
        with staged(handle, replace(record, **changed)).file:
            path = staged_path(handle.directory, replace(record, **changed).nonce)
            if path != staged_path(handle.directory, record.nonce):
                storage.rename(path, staged_path(handle.directory, record.nonce))
            with pytest.raises(CorruptionError, match=text):
                handle.require_batches().staged_summary(transaction_id, record.nonce, voters)
