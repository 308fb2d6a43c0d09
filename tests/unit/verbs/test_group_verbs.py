"""Verbs on a consumer group: the owner of the queue does them, in whichever process; the next one, if it dies first."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ClosedError,
    GroupNotFoundError,
    HoldfastError,
    PersistentQueue,
    StaleReceiptError,
    UsageError,
)
from holdfast.queue.verbs.group_verbs import VERBS, perform
from support.processes.children import Child, Signal, child
from support.processes.threads import Threads, wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with three messages, and a second group."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put_many([b"a", b"b", b"c"])
        queue.groups.create("other")
    return path


@pytest.fixture
def done(tmp_path: Path) -> Journal:
    """What was done, by all processes."""
    return Journal(tmp_path / "done")


class Journal:
    """A file into which each process writes what it has done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def note(self, text: object) -> None:
        """Add one line."""
        with self._path.open("a") as file:
            file.write(f"{text}\n")

    def lines(self) -> list[str]:
        """Return all of them."""
        return self._path.read_text().splitlines()


@pytest.fixture(autouse=True)
def _verbs(monkeypatch: pytest.MonkeyPatch, done: Journal) -> None:
    """Teach every process some verbs that show what became of them; children are forked behind this."""
    tester = os.getpid()

    def note(_: Any, fields: dict[str, Any]) -> dict[str, Any]:
        done.note(fields.get("text"))
        return {"pid": os.getpid(), "count": len(fields.get("offsets", ()))}

    def refuse(_: Any, fields: dict[str, Any]) -> dict[str, Any]:
        raise StaleReceiptError("stale", offset=fields["offset"])

    def sleep(controls: Any, fields: dict[str, Any]) -> dict[str, Any]:
        done.note("begun")
        time.sleep(fields["seconds"])
        return note(controls, fields)

    def die(controls: Any, fields: dict[str, Any]) -> dict[str, Any]:
        if os.getpid() != tester:
            os.kill(os.getpid(), signal.SIGKILL)
        return note(controls, fields)

    def fail(_: Any, fields: dict[str, Any]) -> dict[str, Any]:
        return {"result": fields["unheard of"]}

    for verb in (note, refuse, sleep, die, fail):
        monkeypatch.setitem(VERBS, verb.__name__, verb)


@contextmanager
def owning(path: Path) -> Iterator[Child]:
    """Own the queue in another process."""
    opened = Signal()

    def own() -> None:
        with PersistentQueue(path, mode="shared"):
            opened.send()
            time.sleep(60)

    with child(own) as process:
        opened.wait()
        opened.close()
        yield process


def asking(queue: PersistentQueue, verb: str, **fields: Any) -> dict[str, Any]:
    """Ask for the queue's group."""
    return queue._engine.do({"verb": verb, **fields})


# -- The owner does it -------------------------------------------------------------------------------------------------


def test_the_owner_does_what_another_process_asks(path: Path, done: Journal) -> None:
    """Once for each request, for any group."""
    with (
        owning(path) as owner,
        PersistentQueue(path, mode="shared") as queue,
        PersistentQueue(path, mode="shared", group="other") as other,
    ):
        for number in range(5):
            assert asking(queue, "note", text=number) == {"pid": owner.pid, "count": 0}
        assert asking(other, "note", text="other")["pid"] == owner.pid
    assert done.lines() == ["0", "1", "2", "3", "4", "other"]


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_handle_that_owns_the_queue_does_it_itself(path: Path, mode: Any) -> None:
    """And refuses what it does not know; a closed one does nothing."""
    with PersistentQueue(path, mode=mode) as queue:
        assert asking(queue, "note")["pid"] == os.getpid()
        with pytest.raises(UsageError, match="knows no verb 'dance'"):
            asking(queue, "dance")
    with pytest.raises(ClosedError):
        queue.resume()


def test_many_offsets_go_there(path: Path) -> None:
    """In one request."""
    with owning(path), PersistentQueue(path, mode="shared") as queue:
        assert asking(queue, "note", offsets=list(range(200_000)))["count"] == 200_000


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "free"])
def test_errors_of_the_owner_come_back(path: Path, owned: bool) -> None:
    """As their classes, with their context; an unknown verb; and a fault of the owner's, which serves on."""
    with owning(path) if owned else nullcontext(), PersistentQueue(path, mode="shared") as queue:
        with pytest.raises(StaleReceiptError, match="stale") as stale:
            asking(queue, "refuse", offset=7)
        assert stale.value.offset == 7
        with pytest.raises(UsageError, match="knows no verb 'dance' on a queue"):
            asking(queue, "dance")
        with pytest.raises(UsageError, match="until_ns"):
            asking(queue, "pause", until_ns="soon")
        with pytest.raises(HoldfastError if owned else KeyError, match="unheard of"):
            asking(queue, "fail")
        assert asking(queue, "note")["count"] == 0


def test_a_group_that_is_gone_cannot_be_asked_for(path: Path, done: Journal) -> None:
    """Nothing is made or done for it."""
    with (
        owning(path),
        PersistentQueue(path, mode="shared", group="other") as queue,
        PersistentQueue(path, mode="shared") as another,
    ):
        another.groups.delete("other")
        with pytest.raises(GroupNotFoundError) as unknown:
            asking(queue, "note")
        assert unknown.value.group == "other"
        assert not (path / "groups" / "other" / "group.json").exists()
    assert done.lines() == []


# -- Owners that die ---------------------------------------------------------------------------------------------------


def test_what_an_owner_was_killed_in_is_done_by_the_next_one(path: Path, done: Journal) -> None:
    """It has taken the request; the one that asked takes the queue over, and does it."""
    with owning(path) as owner, PersistentQueue(path, mode="shared") as queue:
        assert not queue.is_owner
        assert asking(queue, "die", text="done") == {"pid": os.getpid(), "count": 0}
        assert queue.is_owner
        assert owner.wait() == -signal.SIGKILL
    assert done.lines() == ["done"]


def test_an_owner_that_is_busy_is_waited_for(path: Path, done: Journal, threads: Threads) -> None:
    """Its other clients have their answers, too."""
    with owning(path), PersistentQueue(path, mode="shared") as queue:
        threads.start(partial(asking, queue, "sleep", seconds=0.3, text="slow"))
        wait_until(lambda: done.lines() == ["begun"])
        assert asking(queue, "note", text="behind")["count"] == 0
        threads.join()
    assert sorted(done.lines()) == ["begun", "behind", "slow"]


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "free"])
def test_of_many_askers_each_gets_its_own_answer_once(path: Path, done: Journal, threads: Threads, owned: bool) -> None:
    """Processes and threads; with an owner that asks for nothing, or each of them may own."""

    def ask(name: str) -> None:
        with PersistentQueue(path, mode="shared") as queue:
            for number in range(20):
                assert asking(queue, "note", text=f"{name}-{number}", offsets=[0] * number)["count"] == number

    with owning(path) if owned else nullcontext():
        processes = [Child(partial(ask, f"process-{each}")) for each in range(2)]
        for each in range(3):
            threads.start(partial(ask, f"thread-{each}"))
        threads.join()
        assert [process.wait() for process in processes] == [0, 0]
    names = [f"process-{each}" for each in range(2)] + [f"thread-{each}" for each in range(3)]
    assert sorted(done.lines()) == sorted(f"{name}-{number}" for name in names for number in range(20))


def test_owners_come_and_go_and_every_asker_is_answered(path: Path, done: Journal, threads: Threads) -> None:
    """By SIGKILL: what is asked is done at least once."""
    over = time.monotonic() + 3.0
    asked: list[str] = []

    def ask(name: str) -> None:
        with PersistentQueue(path, mode="shared", can_own=False) as queue:
            number = 0
            while time.monotonic() < over:
                asked.append(f"{name}-{number}")
                asking(queue, "note", text=asked[-1])
                number += 1

    for each in range(3):
        threads.start(partial(ask, str(each)))
    while time.monotonic() < over:
        with owning(path) as process:
            time.sleep(0.1)
            process.kill()
            process.wait()
    threads.join()
    assert len(asked) > 3
    assert set(asked) <= set(done.lines())


# -- The verbs ---------------------------------------------------------------------------------------------------------


class Controls:
    """A read side that says what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def pause(self, until_ns: int | None, reason: str | None) -> None:
        self.calls.append(("pause", until_ns, reason))

    def resume(self) -> None:
        self.calls.append(("resume",))

    def dead_retry(self, offsets: list[int]) -> int:
        self.calls.append(("retry", offsets))
        return len(offsets)

    def dead_discard(self, offsets: list[int]) -> int:
        self.calls.append(("discard", offsets))
        return len(offsets)


def test_each_verb_calls_the_read_side_with_its_fields() -> None:
    """And returns what that returns, where it does."""
    controls = Controls()
    assert perform(controls, {"verb": "pause", "until_ns": 5, "reason": "so"}) == {}
    assert perform(controls, {"verb": "pause"}) == {}
    assert perform(controls, {"verb": "resume"}) == {}
    assert perform(controls, {"verb": "dead_retry", "offsets": [1, 2]}) == {"count": 2}
    assert perform(controls, {"verb": "dead_discard", "offsets": []}) == {"count": 0}
    assert controls.calls == [
        ("pause", 5, "so"),
        ("pause", None, None),
        ("resume",),
        ("retry", [1, 2]),
        ("discard", []),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"verb": None},
        {"verb": ["pause"]},
        {"verb": "dance"},
        {"verb": "pause", "until_ns": -1},
        {"verb": "pause", "until_ns": 1.5},
        {"verb": "pause", "until_ns": True},
        {"verb": "pause", "reason": 1},
        {"verb": "pause", "until": 1},
        {"verb": "resume", "reason": "x"},
        {"verb": "dead_retry"},
        {"verb": "dead_retry", "offsets": 1},
        {"verb": "dead_retry", "offsets": [True]},
        {"verb": "dead_discard", "offsets": [-1]},
        {"verb": "dead_discard", "offsets": ["1"]},
        {"verb": "dead_discard", "offsets": [], "force": True},
    ],
    ids=str,
)
def test_what_is_no_verb_or_has_other_fields_is_refused_and_nothing_is_done(fields: dict[str, Any]) -> None:
    """It may come from another version."""
    controls = Controls()
    with pytest.raises(UsageError):
        perform(controls, fields)
    assert controls.calls == []
