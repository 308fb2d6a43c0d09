"""Dead letters seen and decided from other processes and other threads."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast import ClosedError, DeadLetter, Empty, PersistentQueue, UsageError
from support.builders.jobs import bury_some, drained, ready
from support.processes.children import Signal, child
from support.processes.threads import Threads, wait_until

LOOKERS = ["read_only", "submit"]
ASKERS = ["read_only", "produce", "submit"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue in real time: three dead letters, two messages left."""
    with PersistentQueue(tmp_path / "orders", max_deliveries=1) as queue:
        queue.put_many([b"a", b"b", b"c", b"d", b"e"])
        bury_some(queue)
    return tmp_path / "orders"


@contextmanager
def owner(path: Path, owned: bool) -> Iterator[None]:
    """Have another process own the queue's read side, or nobody."""
    if not owned:
        yield
        return
    opened = Signal()

    def own() -> None:
        with PersistentQueue(path, mode="consume"):
            opened.send()
            time.sleep(60)

    with child(own):
        opened.wait()
        yield
    opened.close()


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "without owner"])
@pytest.mark.parametrize("mode", ASKERS)
def test_dead_letters_are_decided_from_another_process(path: Path, mode: str, owned: bool) -> None:
    """By the owner, or by who asks where there is none; all of it is there when the call returns."""
    with owner(path, owned), PersistentQueue(path, mode=mode) as queue:
        assert queue.dead.retry([1, 4]) == 1
        assert queue.dead.discard(0) == 1
        assert queue.dead.discard(0) == 0
        with PersistentQueue(path, mode="read_only") as look:
            assert [letter.offset for letter in look.dead.list()] == [2]
            assert sorted(ready(look)) == [b"b", b"d", b"e"]
            if mode in LOOKERS:
                assert queue.dead.list() == look.dead.list()
                assert len(queue.dead) == 1
                assert queue.dead.retry(reason="exception") == 1
                assert queue.dead.list() == []
    with PersistentQueue(path) as queue:
        assert sorted(drained(queue)) == sorted([b"b", b"d", b"e"] + ([b"c"] if mode in LOOKERS else []))


def test_hundreds_of_dead_letters_are_retried_from_another_process(tmp_path: Path) -> None:
    """One request names them all."""
    path = tmp_path / "orders"
    with PersistentQueue(path, max_deliveries=1) as queue:
        queue.put_many([b"%d" % number for number in range(3000)])
        queue.receive_many(3000).nack()
    with PersistentQueue(path, mode="read_only") as look:
        letters = look.dead.list()
        assert len(letters) == 3000
        assert look.dead.retry(letters) == 3000
        assert len(look.dead) == 0


def test_a_mode_that_cannot_read_says_so(path: Path) -> None:
    """It can decide by offset; to list, to export and to find those of one reason it would have to read."""
    out = path.with_name("dead.jsonl")
    with PersistentQueue(path, mode="produce") as queue:
        for reads in (
            queue.dead.list,
            lambda: queue.dead.export(out, 0),
            lambda: queue.dead.retry(reason="exception"),
            lambda: queue.dead.discard(reason="exception"),
        ):
            with pytest.raises(UsageError, match="read_only"):
                reads()
        assert list(path.parent.iterdir()) == [path]
        with pytest.raises(UsageError, match="read_only"):
            len(queue.dead)
    with pytest.raises(ClosedError):
        _ = queue.dead


def test_a_thread_that_waits_is_given_what_another_process_has_retried(path: Path, threads: Threads) -> None:
    """At once."""
    with PersistentQueue(path) as queue, PersistentQueue(path, mode="read_only") as look:
        drained(queue)
        found: list[bytes] = []
        threads.start(lambda: found.append(queue.get(timeout=30)))
        assert look.dead.retry(2) == 1
        wait_until(lambda: found == [b"c"])


def test_listing_goes_on_while_others_retry_and_bury(tmp_path: Path, threads: Threads) -> None:
    """In the owner's process the list shows what was dead when it began, and never breaks."""
    with PersistentQueue(tmp_path / "q", max_deliveries=1) as queue:
        queue.put_many([b"%d" % number for number in range(200)])
        over = time.monotonic() + 1.5

        def churn() -> None:
            while time.monotonic() < over:
                with suppress(Empty):
                    queue.receive_many(20, timeout=0).nack()
                queue.dead.retry([letter.offset for letter in queue.dead.list(limit=10)])

        def look() -> None:
            while time.monotonic() < over:
                letters = queue.dead.list()
                assert all(isinstance(letter, DeadLetter) for letter in letters)
                assert all(letter.payload == b"%d" % letter.offset for letter in letters)
                queue.browse("dead")
                queue.browse("ready", limit=500)
                queue.browse("leased")
                queue.stats()

        for work in (churn, churn, look, look):
            threads.start(work)
        threads.join(60)
        assert queue.stats().depth + len(queue.dead) == 200
