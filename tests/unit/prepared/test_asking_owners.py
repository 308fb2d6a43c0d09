"""The owner of a shared queue is asked for an outcome through its socket. Without an answer it is not known."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from holdfast import PersistentQueue, transaction
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.prepared import asking_owners
from holdfast.queue.prepared.asking_owners import ask_owner
from holdfast.queue.protocol.messages import Done, Refused, Welcome
from holdfast.queue.transactions import two_phase
from support.processes.children import child
from support.processes.threads import wait_until

NONCE = b"n" * 16


def test_an_owner_knows_what_is_not_in_its_log(tmp_path: Path) -> None:
    """It was aborted. Who asks for another queue gets no answer, nor who asks where none owns."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="shared") as queue:
        asked = partial(ask_owner, OsStorage(), path, queue.queue_id, NONCE)
        wait_until(lambda: asked() is Outcome.ABORTED)  # beside other work it may take longer than it waits
        assert ask_owner(OsStorage(), path, b"o" * 16, NONCE) is None
    assert ask_owner(OsStorage(), path, queue.queue_id, NONCE) is None
    assert ask_owner(OsStorage(), tmp_path / "none", queue.queue_id, NONCE) is None


@pytest.mark.parametrize("answer", [Refused("{}"), Done({"outcome": "perhaps"})])
def test_an_answer_that_is_none_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Refused | Done
) -> None:
    """It may be one of another version."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="shared") as queue:
        answers = [Welcome(7, queue.queue_id), answer]
        monkeypatch.setattr(asking_owners, "_exchange", lambda connection, request: answers.pop(0))
        assert ask_owner(OsStorage(), path, queue.queue_id, NONCE) is None
        assert answers == []


def test_a_queue_that_is_opened_asks_the_owner_in_another_process(tmp_path: Path) -> None:
    """A client was killed behind the commit: the part of an exclusive queue follows when that is opened."""
    paths, ready = (tmp_path / "q0", tmp_path / "q1"), tmp_path / "ready"

    def hold() -> None:
        with PersistentQueue(paths[0], mode="shared"):
            ready.touch()
            signal.pause()

    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(two_phase, "_follow", lambda *rest: signal.raise_signal(signal.SIGKILL))
            with (
                PersistentQueue(paths[0], mode="shared", can_own=False) as first,
                PersistentQueue(paths[1], mode="exclusive") as second,
                transaction(first, second) as tx,
            ):
                tx.put(first, b"a")
                tx.put(second, b"b")

    with child(hold):
        wait_until(ready.exists)
        with child(work) as client:
            assert client.wait() == -signal.SIGKILL

        def is_settled() -> bool:
            with PersistentQueue(paths[1], mode="exclusive") as second:
                return second.prepared() == []

        wait_until(is_settled)
        with PersistentQueue(paths[1], mode="exclusive") as second:
            assert second.get(timeout=0) == b"b"
