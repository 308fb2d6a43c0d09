"""Dead letters seen and decided from other processes and other threads."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast import ClosedError, DeadLetter, Empty, PersistentQueue, UsageError
from support.builders.jobs import bury_some, drained, ready
from support.processes.children import Signal, child
from support.processes.threads import Threads, wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue in real time: three dead letters, two messages left."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", max_deliveries=1) as queue:
        queue.put_many([b"a", b"b", b"c", b"d", b"e"])
        bury_some(queue)
    return tmp_path / "orders"


@contextmanager
def owner(path: Path, owned: bool) -> Iterator[None]:
    """Have another process own the queue; or no process does."""
    if not owned:
        yield
        return
    opened = Signal()

    def own() -> None:
        with PersistentQueue(path, mode="shared"):
            opened.send()
            time.sleep(60)

    with child(own):
        opened.wait()
        yield
    opened.close()


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "without owner"])
def test_dead_letters_are_decided_from_another_process(path: Path, owned: bool) -> None:
    """By the owner, or by who asks if there is none; all of it is there when the call returns."""
    with owner(path, owned), PersistentQueue(path, mode="shared") as queue:
        assert queue.is_owner is not owned
        assert queue.dead.retry([1, 4]) == 1
        assert queue.dead.discard(0) == 1
        assert queue.dead.discard(0) == 0
        with PersistentQueue(path, mode="read_only") as look:
            assert [letter.offset for letter in look.dead.list()] == [2]
            assert sorted(ready(look)) == [b"b", b"d", b"e"]
            assert queue.dead.list() == look.dead.list()
            assert len(queue.dead) == 1
            assert queue.dead.retry(reason="exception") == 1
            assert queue.dead.list() == []
    with PersistentQueue(path, mode="exclusive") as queue:
        assert sorted(drained(queue)) == [b"b", b"c", b"d", b"e"]


def test_hundreds_of_dead_letters_are_retried_from_another_process(tmp_path: Path) -> None:
    """One request names them all."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive", max_deliveries=1) as queue:
        queue.put_many([b"%d" % number for number in range(3000)])
        queue.receive_many(3000).nack()
    with owner(path, owned=True), PersistentQueue(path, mode="shared") as queue:
        letters = queue.dead.list()
        assert len(letters) == 3000
        assert queue.dead.retry(letters) == 3000
        assert len(queue.dead) == 0


def test_a_handle_that_only_looks_decides_nothing(path: Path) -> None:
    """The error says with which mode it would; beside an owner, too."""
    with owner(path, owned=True), PersistentQueue(path, mode="read_only") as look:
        verbs: list[Callable[[], object]] = [
            lambda: look.dead.retry([1]),
            lambda: look.dead.discard([1]),
            lambda: look.dead.retry(reason="exception"),
            look.pause,
            look.resume,
            look.purge,
            lambda: look.commit_prepared("any"),
            lambda: look.abort_prepared("any"),
            lambda: look.joint_commits.commit("app", 1, ["any"]),
        ]
        for verb in verbs:
            with pytest.raises(UsageError, match=r"mode='read_only'.*use mode='shared'$"):
                verb()
        assert len(look.dead) == 3


def test_a_closed_queue_has_no_dead_letters_to_show(path: Path) -> None:
    """As all its verbs."""
    queue = PersistentQueue(path, mode="read_only")
    queue.close()
    with pytest.raises(ClosedError):
        _ = queue.dead


def test_a_thread_that_waits_is_given_what_another_process_has_retried(path: Path, threads: Threads) -> None:
    """At once."""
    with (
        owner(path, owned=True),
        PersistentQueue(path, mode="shared") as queue,
        PersistentQueue(path, mode="shared") as other,
    ):
        drained(queue)
        found: list[bytes] = []
        threads.start(lambda: found.append(queue.get(timeout=30)))
        assert other.dead.retry(2) == 1
        wait_until(lambda: found == [b"c"])


def test_listing_goes_on_while_others_retry_and_bury(tmp_path: Path, threads: Threads) -> None:
    """In the owner's process the list shows what was dead when it began, and never breaks."""
    with PersistentQueue(tmp_path / "q", mode="exclusive", max_deliveries=1) as queue:
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
