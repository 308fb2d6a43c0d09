"""The names and the small documents in ``requests/``."""

from pathlib import Path

import pytest

from holdfast.errors import CorruptionError
from holdfast.persistence.exchange.mailbox import Mailbox
from holdfast.persistence.exchange.requests import (
    ASK,
    BATCH,
    CLAIMED,
    STAGING,
    TAKEN,
    RequestName,
    clear_abandoned,
    finish_committed,
    list_requests,
    move,
    read_batch,
    read_verb,
    sync_requests,
    write_verb,
)
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.format.commit_record import Acknowledged, CommitRecord
from holdfast.persistence.segment.batch_file import BatchFileWriter
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

DIRECTORY = QueueDirectory(Path("/q"))
NAME = RequestName("0123456789abcdef", 64, BATCH)


@pytest.fixture
def storage() -> SimulatedStorage:
    """A disk with the directory of a queue."""
    storage = SimulatedStorage()
    storage.make_directory(DIRECTORY.root)
    return storage


def test_names_say_whose_request_it_is_and_sort_by_number() -> None:
    """What is no such name is nobody's request."""
    assert str(NAME) == "0123456789abcdef-0000000064.batch"
    assert RequestName.parse(str(NAME)) == NAME
    assert NAME.waiting_file == "requests/0123456789abcdef-0000000064.claimed"
    assert NAME.as_kind(CLAIMED).number == 64
    assert str(NAME) < str(RequestName(NAME.mailbox, 1000, BATCH))
    for other in (
        "",
        "x",
        "0123456789abcdef.answers",
        "0123456789abcdef-64.batch",
        "0123456789ABCDEF-0000000064.batch",
    ):
        assert RequestName.parse(other) is None


def test_names_of_what_is_asked_of_a_group_say_which_one() -> None:
    """Whatever its name: dots and hyphens too. Staged it says nothing of it, and nobody looks."""
    for group in ("default", "a.batch", "-", "_x.ask.y", "g" * 100):
        name = RequestName(NAME.mailbox, 64, ASK, group)
        assert str(name) == f"0123456789abcdef-0000000064.ask.{group}"
        assert RequestName.parse(str(name)) == name
        assert str(name.as_kind(TAKEN)) == f"0123456789abcdef-0000000064.taken.{group}"
        assert str(name.as_kind(STAGING)) == "0123456789abcdef-0000000064.staging"
    for other in ("ask", "ask.", "ask..x", "taken.a/b", "batch.default", "ask." + "g" * 101):
        assert RequestName.parse(f"0123456789abcdef-0000000064.{other}") is None


def test_a_queue_that_nobody_ever_asked_has_no_requests(storage: SimulatedStorage) -> None:
    """Looking makes nothing, and there is nothing to sync or to clear."""
    count = storage.mutation_count
    assert list_requests(storage, DIRECTORY.requests) == []
    sync_requests(storage, DIRECTORY)
    assert clear_abandoned(storage, DIRECTORY) == set()
    assert storage.mutation_count == count


def test_of_two_that_move_a_request_one_is_told_that_it_was_too_late(storage: SimulatedStorage) -> None:
    """The rename decides."""
    storage.make_directory(DIRECTORY.requests)
    path, claimed = NAME.path(DIRECTORY), NAME.as_kind(CLAIMED).path(DIRECTORY)
    storage.open(path, create=True).close()
    assert move(storage, path, claimed)
    assert not move(storage, path, claimed)


def test_a_verb_comes_back_or_is_found_damaged(storage: SimulatedStorage) -> None:
    """At every byte."""
    path = DIRECTORY.root / "verb"
    fields = {"verb": "commit_prepared", "id": "x", "force": False}
    write_verb(storage, path, fields)
    assert read_verb(storage, path) == fields
    file = storage.open(path)
    text = file.read_at(1000, 0)
    for at in range(len(text) - 1):
        file.write_at((text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :],), 0)
        with pytest.raises(CorruptionError):
            read_verb(storage, path)


def test_clearing_leaves_what_belongs_to_a_living_handle_and_what_is_not_ours(storage: SimulatedStorage) -> None:
    """Everything else goes, whatever state it is in."""
    storage.make_directory(DIRECTORY.requests)
    alive, dead = Mailbox(storage, DIRECTORY.requests), Mailbox(storage, DIRECTORY.requests)
    keep = [f"{alive.name}.answers", f"{alive.name}-0000000064.batch", f"{alive.name}-ab.staging", "notes.txt"]
    for name in [*keep, f"{dead.name}-0000000064.claimed", f"{dead.name}-ab.staging", f"{'0' * 16}.making"]:
        storage.open(DIRECTORY.requests / name, create=True).close()
    dead._lock.release()
    assert clear_abandoned(storage, DIRECTORY) == {alive.name}
    assert storage.list(DIRECTORY.requests) == sorted(keep)


def test_a_disk_that_refuses_is_not_taken_for_being_too_late(storage: SimulatedStorage) -> None:
    """The request is still there, under the name that it had."""
    storage.make_directory(DIRECTORY.requests)
    path = NAME.path(DIRECTORY)
    storage.open(path, create=True).close()
    with refusing(storage, "rename"), pytest.raises(OSError, match="Input/output error"):
        move(storage, path, NAME.as_kind(CLAIMED).path(DIRECTORY))
    assert move(storage, path, NAME.as_kind(CLAIMED).path(DIRECTORY))


@pytest.mark.parametrize(
    "decision",
    [
        CommitRecord("t", b"n" * 16, 1, 0, waiting_file=NAME.as_kind(CLAIMED).waiting_file.replace("64", "65")),
        CommitRecord("t", b"n" * 16, 1, 0),
        CommitRecord("t", b"n" * 16, 1, 0, None, (Acknowledged("g", b"g" * 16, ()),), waiting_file=NAME.waiting_file),
    ],
    ids=["another one", "none", "acknowledges"],
)
def test_a_request_that_is_not_what_its_name_says_is_damage(storage: SimulatedStorage, decision: CommitRecord) -> None:
    """Another one, none, or one that acknowledges: a process that may write here asks only for what it may ask."""
    storage.make_directory(DIRECTORY.requests)
    path = NAME.path(DIRECTORY)
    writer = BatchFileWriter(storage, path, b"q" * 16)
    writer.add(b"payload", b"", 1)
    writer.finish(decision)
    writer.close()
    with pytest.raises(CorruptionError, match="holds another request than its name says"):
        read_batch(storage, path, b"q" * 16, NAME, 1000)


def test_a_request_that_the_log_has_is_not_forgotten_while_it_cannot_be_removed(storage: SimulatedStorage) -> None:
    """It would be served again: so its decision stays open. What does not wait for an answer here is left alone."""
    storage.make_directory(DIRECTORY.requests)
    claimed = NAME.as_kind(CLAIMED).path(DIRECTORY)
    storage.open(claimed, create=True).close()
    decision = CommitRecord("t", b"n" * 16, 1, 0, waiting_file=NAME.waiting_file).placed(7)
    with refusing(storage, "remove"), pytest.raises(OSError, match="Input/output error"):
        finish_committed(storage, DIRECTORY, decision)
    assert storage.list(DIRECTORY.requests) == [claimed.name]
    assert finish_committed(storage, DIRECTORY, decision)
    assert storage.crash_dropping_unsynced().tree().get(claimed) is None
    assert not finish_committed(storage, DIRECTORY, CommitRecord("t", b"n" * 16, 1, 0, waiting_file="prepared/t.batch"))
