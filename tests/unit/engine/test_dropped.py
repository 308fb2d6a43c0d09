"""Handles that nobody closed: a warning, and the lock is free again, without a message lost or handed out twice."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import ClosedError, FlushPolicy, PersistentQueue, QueueLockedError, QueueService, threads
from holdfast.queue import closing
from holdfast.queue.local_engine import LocalEngine
from support.processes.children import child, run_script
from support.processes.thread_starts import StartFaults, starting
from support.processes.threads import wait_until
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

SECONDS = 30.0
DROPPED = "was dropped and not closed"


@contextmanager
def dropping() -> Iterator[None]:
    """Expect a warning for what is dropped inside, once it is collected."""
    gc.collect()  # what other tests have dropped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [each.category for each in caught if DROPPED in str(each.message)] == [ResourceWarning]
    caught.clear()  # it names the queue, which it would keep


def is_free(path: Path, **options: Any) -> bool:
    """Tell whether the queue can be opened."""
    try:
        PersistentQueue(path, **{"mode": "exclusive", **options}).close()
    except QueueLockedError:
        return False
    return True


def descriptors_below(path: Path) -> list[str]:
    """Return the files below a path that this process has open, once for each descriptor.

    Without ``write.mark``: a thread of the owner opens it for a moment, whenever that is.
    """
    names = []
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            names.append(os.readlink(f"/proc/self/fd/{each}"))
    return sorted(name for name in names if name.startswith(f"{path}/") and not name.endswith("/write.mark"))


def given(path: Path, do: Callable[[PersistentQueue], Any], **options: Any) -> Any:
    """Open a queue, return what ``do`` does with it, and forget it."""
    return do(PersistentQueue(path, **{"mode": "exclusive", **options}))


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_dropped_handle_warns_and_lets_go_of_its_locks(tmp_path: Path, mode: str) -> None:
    """Within seconds of the warning, and what it has put is there."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"before")
    with dropping():
        given(path, lambda queue: queue.put(b"a"), mode=mode)
    wait_until(lambda: is_free(path), SECONDS)
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.get_many(10) == [b"before", b"a"]


def test_a_dropped_handle_without_a_lock_warns_too(tmp_path: Path) -> None:
    """Another one looks as before; the file that it had open is closed."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"a")
        before = descriptors_below(path)
        with dropping():
            given(path, lambda queue: queue.qsize(), mode="read_only")
        assert descriptors_below(path) == before
        with PersistentQueue(path, mode="read_only") as other:
            assert other.qsize() == 1


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_delivery_outlives_its_queue(tmp_path: Path, mode: str) -> None:
    """The queue is closed once it is settled, not before: nobody gets the message a second time."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put_many([b"a", b"b"])
    with dropping():
        delivery = given(path, lambda queue: queue.receive(), mode=mode)
    with delivery:
        gc.collect()
        assert not is_free(path)
    wait_until(lambda: is_free(path), SECONDS)
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.get_many(10) == [b"b"]


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_delivery_that_is_not_settled_ends_with_its_lease(tmp_path: Path, mode: str) -> None:
    """Or the lock would stay for ever."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"a")
    with dropping():
        delivery = given(path, lambda queue: queue.receive(lease_seconds=0.01), mode=mode)
    wait_until(lambda: is_free(path), SECONDS)
    with pytest.raises(ClosedError):
        delivery.ack()


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_transaction_outlives_its_queue(tmp_path: Path, mode: str) -> None:
    """It can be committed; then the queue is closed."""
    path = tmp_path / "orders"
    with dropping():
        transaction = given(path, lambda queue: queue.begin(), mode=mode)
    transaction.put(b"a")
    transaction.commit()
    wait_until(lambda: is_free(path), SECONDS)
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.get_many(10) == [b"a"]


def test_the_end_of_a_process_does_not_wait_for_a_dropped_queue_that_is_in_use(tmp_path: Path) -> None:
    """Its locks go with the process."""
    path = tmp_path / "orders"
    with dropping():
        engine, transaction = given(path, lambda queue: (queue._engine, queue.begin()), mode="shared")
    (closing,) = [each for each in threading.enumerate() if each.name == "holdfast-closing"]
    threads._starter.ends[closing]()  # as at the end of the interpreter
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert not is_free(path)
    transaction.abort()
    engine.close()
    assert is_free(path)


def test_a_dropped_service_warns_of_its_queues_and_lets_go_of_them(tmp_path: Path) -> None:
    """The thread that keeps its catalogue does not keep the service."""
    with dropping():
        QueueService(tmp_path).queue("orders").put(1)
    wait_until(lambda: is_free(tmp_path / "orders"), SECONDS)


def test_a_queue_keeps_its_service(tmp_path: Path) -> None:
    """Only the last of both that is dropped is warned of."""
    queue = QueueService(tmp_path).queue("orders")
    gc.collect()
    queue.put(1)
    assert queue.receive(timeout=0).body == 1
    with dropping():
        del queue


def test_what_was_closed_or_never_opened_or_is_the_parents_is_not_warned_of(tmp_path: Path) -> None:
    """A warning has to mean something."""
    path = tmp_path / "orders"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        with PersistentQueue(path, mode="exclusive"):
            assert not is_free(path)  # opening that fails
        with pytest.raises(TypeError):
            PersistentQueue()  # type: ignore[call-arg]
        gc.collect()
    assert not [each for each in caught if DROPPED in str(each.message)]
    queues = [PersistentQueue(path, mode="exclusive")]

    def drop() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            queues.clear()
            gc.collect()
            assert not caught

    with child(drop) as process:
        assert process.wait() == 0
    queues.pop().close()


def test_closing_a_dropped_queue_without_memory_is_tried_again(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would stay locked as long as the process lives."""
    path = Path("/orders")
    monkeypatch.setattr(closing, "TROUBLE_SECONDS", 0.001)
    errors, close = [MemoryError()] * 2, LocalEngine.close

    def close_without_memory(engine: LocalEngine) -> None:
        if errors:
            raise errors.pop()
        close(engine)

    queues = [PersistentQueue(path, mode="exclusive", storage=storage)]
    monkeypatch.setattr(LocalEngine, "close", close_without_memory)
    with dropping():
        queues.clear()
    wait_until(lambda: is_free(path, storage=storage), SECONDS)
    assert errors == []


def test_closing_a_dropped_queue_that_fails_is_logged(
    storage: SimulatedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody calls who could be told."""
    path = Path("/orders")
    queues = [PersistentQueue(path, mode="exclusive", storage=storage, flush=FlushPolicy.never())]
    queues[0].put(b"a")
    with refusing(storage, "sync", count=1):
        with dropping():
            queues.clear()
        wait_until(lambda: "closing /orders, which was dropped, failed" in caplog.text, SECONDS)
    assert is_free(path, storage=storage)


def test_a_dropped_queue_is_closed_once_a_thread_can_be_started(tmp_path: Path) -> None:
    """Closing takes too long for the thread that looks after all queues."""
    path = tmp_path / "orders"
    given_back = StartFaults(prefix="holdfast-closing", forever=False)
    with starting(given_back):
        with dropping():
            given(path, lambda queue: queue.put(b"a"))
        wait_until(lambda: is_free(path), SECONDS)
    assert given_back.tried == ["holdfast-closing"] * 2


def test_a_program_that_ends_without_closing_ends() -> None:
    """Neither what was dropped nor what is still there keeps it; each message is there for the next one."""
    script = """
import gc, sys, tempfile
from pathlib import Path
from holdfast import PersistentQueue

root = Path(tempfile.mkdtemp())
dropped, kept = PersistentQueue(root / "dropped", mode="exclusive"), PersistentQueue(root / "kept", mode="exclusive")
for queue in (dropped, kept):
    queue.put(b"a")
    queue.cycle = queue
held = kept.receive()
del queue, dropped
gc.collect()
print(root)
"""
    root = Path(run_script(script).strip())
    for name in ("dropped", "kept"):
        with PersistentQueue(root / name, mode="exclusive") as queue:
            assert queue.get_many(10) == [b"a"]


def test_an_opening_that_was_interrupted_late_is_not_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has let go of everything by itself."""
    path = tmp_path / "orders"

    def interrupt(part: object) -> None:
        if isinstance(part, PersistentQueue):
            raise KeyboardInterrupt

    with warnings.catch_warnings(record=True) as caught, monkeypatch.context() as patched:
        warnings.simplefilter("always", ResourceWarning)
        patched.setattr("holdfast.queue.threads.lifecycle.watch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            PersistentQueue(path, mode="exclusive")
        gc.collect()
    assert not [each for each in caught if DROPPED in str(each.message)]
    assert is_free(path)


def test_a_handle_that_was_forgotten_is_not_warned_of(storage: SimulatedStorage) -> None:
    """As a forked child does with those of its parent."""
    queues = [PersistentQueue("/orders", mode="exclusive", storage=storage)]
    queues[0].forget_after_fork()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        queues.clear()
        gc.collect()
    assert not [each for each in caught if DROPPED in str(each.message)]
