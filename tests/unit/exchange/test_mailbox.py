"""Mailboxes: answers in slots, and who is behind them."""

import errno
import itertools
import secrets
from pathlib import Path

import pytest

from holdfast.errors import DiskFullError, StorageError
from holdfast.persistence.exchange import mailbox
from holdfast.persistence.exchange.mailbox import (
    ANSWERS,
    MAKING,
    TEXT_BYTES_MAX,
    Answer,
    Answers,
    Mailbox,
    remove_quietly,
)
from holdfast.persistence.filesystem.locks import is_free, try_acquire
from holdfast.persistence.format.constants import ANSWER_DONE, ANSWER_ERROR, ANSWER_NO_ROOM, ANSWER_SLOT, ANSWER_SLOTS
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

REQUESTS = Path("/requests")


@pytest.fixture
def storage() -> SimulatedStorage:
    """A disk with an empty directory."""
    storage = SimulatedStorage()
    storage.make_directory(REQUESTS)
    return storage


@pytest.mark.parametrize(
    "answer",
    [
        Answer(64, ANSWER_DONE, range(7, 9)),
        Answer(65, ANSWER_ERROR, text="é" * (TEXT_BYTES_MAX // 2)),
        Answer(2**63, ANSWER_NO_ROOM),
    ],
)
def test_an_answer_comes_back_as_it_was_written(storage: SimulatedStorage, answer: Answer) -> None:
    """In its slot, for the request of its number and for no other one."""
    box, answers = Mailbox(storage, REQUESTS), Answers(storage, REQUESTS)
    assert box.read(answer.number) is None
    assert answers.write(box.name, answer)
    assert box.read(answer.number) == answer
    assert box.read(answer.number + ANSWER_SLOTS) is None
    assert box.read(answer.number + 1) is None


def test_a_slot_that_does_not_verify_says_nothing() -> None:
    """Torn, cut off, zeros, or of a verdict that nobody knows."""
    slot = Answer(64, ANSWER_DONE, range(7, 9)).encode()
    assert Answer.decode(slot) is not None
    assert Answer.decode(slot[:-1]) is None
    assert Answer.decode(bytes(ANSWER_SLOT.size)) is None
    for at in range(32):
        assert Answer.decode(slot[:at] + bytes([slot[at] ^ 4]) + slot[at + 1 :]) is None


def test_an_older_answer_never_takes_the_place_of_a_newer_one(storage: SimulatedStorage) -> None:
    """Whoever takes over answers again what its log has; the slot may have gone on."""
    box, answers = Mailbox(storage, REQUESTS), Answers(storage, REQUESTS)
    newer = Answer(64 + ANSWER_SLOTS, ANSWER_ERROR, text="no")
    assert answers.write(box.name, newer)
    assert not answers.write(box.name, Answer(64, ANSWER_DONE, range(1)))
    assert box.read(newer.number) == newer


def test_nobody_is_answered_who_is_not_there(storage: SimulatedStorage) -> None:
    """A mailbox goes with its handle; answering it makes none."""
    box, answers = Mailbox(storage, REQUESTS), Answers(storage, REQUESTS)
    assert not is_free(storage, REQUESTS / (box.name + ANSWERS))
    assert answers.write(box.name, Answer(64, ANSWER_DONE))
    box.close()
    assert storage.list(REQUESTS) == []
    answers.keep(set())
    assert not answers.write(box.name, Answer(65, ANSWER_DONE))
    assert storage.list(REQUESTS) == []


def test_a_mailbox_that_is_taken_for_a_leftover_while_it_is_made_is_made_again(storage: SimulatedStorage) -> None:
    """Somebody removes it between its making and its locking; the next one works. Where all go, it gives up."""
    removed = []

    def remove(verb: str, path: Path) -> None:
        if verb == "rename" and len(removed) < limit:
            removed.append(path)
            storage.remove(path)

    storage.before_verb, limit = remove, 3
    box = Mailbox(storage, REQUESTS)
    assert len(removed) == 3
    assert storage.list(REQUESTS) == [box.name + ANSWERS]
    limit = 3 + mailbox._ATTEMPTS
    with pytest.raises(StorageError, match="gone again"):
        Mailbox(storage, REQUESTS)


@pytest.mark.parametrize(("verb", "name"), [("open", MAKING), ("allocate", MAKING), ("rename", MAKING)])
def test_a_disk_that_refuses_a_mailbox_keeps_nothing_of_it(storage: SimulatedStorage, verb: str, name: str) -> None:
    """The error comes from the first attempt, no file is left, and the next attempt works."""
    with refusing(storage, verb, name, errno.ENOSPC) as failed, pytest.raises(DiskFullError, match="making a mailbox"):
        Mailbox(storage, REQUESTS)
    assert len(failed) == 1
    assert storage.list(REQUESTS) == []
    Mailbox(storage, REQUESTS).close()


def test_a_mailbox_whose_handle_cannot_be_had_is_let_go_of(storage: SimulatedStorage) -> None:
    """It is opened twice, for its lock and for its answers; where the second fails, nobody holds the lock."""
    opened = []

    def fail(verb: str, path: Path) -> None:
        if verb == "open":
            opened.append(path)
            if len(opened) == 2:
                raise OSError(errno.EMFILE, "too many open files")

    storage.before_verb = fail
    with pytest.raises(StorageError, match="too many open files"):
        Mailbox(storage, REQUESTS)
    assert len(opened) == 2
    assert storage.list(REQUESTS) == []


def test_a_name_that_somebody_else_has_locked_is_left_to_them(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that clears away leftovers; the next name is tried."""
    names = itertools.chain(["taken"], itertools.repeat("free"))
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(names))
    theirs = try_acquire(storage, REQUESTS / ("taken" + MAKING))
    box = Mailbox(storage, REQUESTS)
    assert box.name == "free"
    assert storage.list(REQUESTS) == ["free" + ANSWERS, "taken" + MAKING]
    assert theirs is not None


def test_removing_quietly_says_whether_it_is_gone(storage: SimulatedStorage) -> None:
    """Also where it never was there; and not where the disk refuses."""
    path = REQUESTS / "some"
    storage.open(path, create=True).close()
    with refusing(storage, "remove", "some"):
        assert not remove_quietly(storage, path)
    assert remove_quietly(storage, path)
    assert remove_quietly(storage, path)


def test_done_is_what_was_answered_with_offsets(storage: SimulatedStorage) -> None:
    """Or what was answered at all before its slot went on; an error is no offsets, and nobody's mailbox no answer."""
    box, answers = Mailbox(storage, REQUESTS), Answers(storage, REQUESTS)
    assert not answers.is_done(box.name, 64)
    answers.write(box.name, Answer(64, ANSWER_ERROR, text="no"))
    assert not answers.is_done(box.name, 64)
    answers.write(box.name, Answer(64, ANSWER_DONE, range(3)))
    assert answers.is_done(box.name, 64)
    answers.write(box.name, Answer(64 + ANSWER_SLOTS, ANSWER_ERROR, text="no"))
    assert answers.is_done(box.name, 64)
    assert not answers.is_done("nobody", 64)
