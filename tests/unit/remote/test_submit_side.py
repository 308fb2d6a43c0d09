"""Preparing through the owner of the write side, which dies before it answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import CommitUnknownError, PersistentQueue
from holdfast.queue.remote.requester import NoAnswerError, Requester
from support.builders.transactions import open_queue, prepare, prepared_ids
from support.storages.simulated_storage import SimulatedStorage


@pytest.fixture
def submitter(storage: SimulatedStorage) -> Iterator[PersistentQueue]:
    """A handle that submits to a queue which another one has made."""
    open_queue(storage).close()
    with open_queue(storage, mode="submit") as queue:
        yield queue


def dying(monkeypatch: pytest.MonkeyPatch, *, when_done: bool) -> None:
    """Let owners die behind what they were asked for, or before it."""
    really = Requester.ask

    def ask(self: Requester, *asked: Any) -> None:
        if when_done:
            really(self, *asked)
        raise NoAnswerError("the request is gone, and nobody has answered it", path="")

    monkeypatch.setattr(Requester, "ask", ask)


def test_what_was_prepared_by_an_owner_that_died_then_is_prepared(
    submitter: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is where it belongs, and its name is made durable."""
    with monkeypatch.context() as patched:
        dying(patched, when_done=True)
        prepare(submitter, "puts", "t")
    assert prepared_ids(submitter) == ["t"]
    assert submitter.commit_prepared("t") == range(1)


def test_of_what_an_owner_that_died_did_not_prepare_nobody_knows(
    submitter: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not there."""
    with monkeypatch.context() as patched:
        dying(patched, when_done=False)
        with pytest.raises(CommitUnknownError):
            prepare(submitter, "puts", "t")
    assert prepared_ids(submitter) == []


def test_a_batch_of_somebody_else_under_the_same_id_is_not_taken_for_ours(
    submitter: PersistentQueue, storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told apart by their nonces."""
    late = submitter.begin()
    late.put(b"late")
    with monkeypatch.context() as patched:
        really = Requester.ask

        def ask(self: Requester, *_: Any) -> None:
            patched.setattr(Requester, "ask", really)
            with open_queue(storage, mode="submit") as other:
                prepare(other, "puts", "t")
            raise NoAnswerError("the request is gone, and nobody has answered it", path="")

        patched.setattr(Requester, "ask", ask)
        with pytest.raises(CommitUnknownError):
            late.prepare("t")
    assert prepared_ids(submitter) == ["t"]
