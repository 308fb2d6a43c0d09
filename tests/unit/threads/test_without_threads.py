"""A queue whose threads cannot be started: what they would do is done by its callers, or at the next occasion."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Empty, FlushPolicy, PersistentQueue, StorageError
from holdfast.clock import SystemClock
from holdfast.queue.threads import flusher, poller
from holdfast.queue.threads.flusher import Flusher
from support.builders.jobs import Jobs
from support.processes.thread_starts import StartFaults, no_threads, starting
from support.storages.refusals import refusing

POLICIES = {
    "every_commit": FlushPolicy.every_commit(),
    "every": FlushPolicy.every(commits=1000, seconds=1000),
    "never": FlushPolicy.never(),
}


@pytest.fixture(autouse=True)
def no_watcher_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues of other tests, which may be open still, have the watcher of this process."""
    monkeypatch.setattr(poller, "_pollers", {})


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> FlushPolicy:
    """One after another."""
    return POLICIES[request.param]


@pytest.fixture
def limit() -> Iterator[StartFaults]:
    """No thread can be started, all through the test."""
    with no_threads() as faults:
        yield faults


@pytest.mark.usefixtures("limit")
def test_all_messages_come_and_their_space_returns_without_threads(policy: FlushPolicy) -> None:
    """A finished file is closed by whoever finishes it."""
    jobs = Jobs()
    with jobs.open(flush=policy) as queue:
        payloads = [b"%d" % number + bytes(1000) for number in range(100)]
        for payload in payloads:
            queue.put(payload)
        assert queue.stats().file_count > 4
        assert [queue.get(timeout=0) for _ in payloads[:60]] == payloads[:60]
        for payload in payloads[60:]:
            delivery = queue.receive(timeout=0)
            assert delivery.payload == payload
            delivery.ack()
            assert queue.stats().in_flight == 0
        assert queue.stats().depth == 0
        assert queue.stats().file_count == 1
    with jobs.killed().open() as queue, pytest.raises(Empty):
        queue.get(timeout=0)


@pytest.mark.usefixtures("limit")
def test_what_would_be_synced_in_time_is_synced_at_once() -> None:
    """Nobody else would do it, and the policy's bound holds: a loss of power takes nothing."""
    jobs = Jobs()
    queue = jobs.open(flush=POLICIES["every"])
    queue.put_many([b"one", b"two", b"three"])
    assert queue.get(timeout=0) == b"one"
    with jobs.without_power().open() as again:
        assert [again.get(timeout=0) for _ in range(2)] == [b"two", b"three"]
        with pytest.raises(Empty):
            again.get(timeout=0)
    queue.close()


@pytest.mark.usefixtures("limit")
def test_other_processes_see_at_once_what_the_background_would_have_told_them(policy: FlushPolicy) -> None:
    """Where the end of the log is written down by a thread."""
    jobs = Jobs()
    with jobs.open(mode="produce", flush=policy) as producer, jobs.open(mode="consume", flush=policy) as consumer:
        producer.put(b"told")
        assert consumer.get(timeout=0) == b"told"


@pytest.mark.usefixtures("limit")
def test_a_sync_that_fails_in_the_place_of_the_background_does_not_undo_the_put(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is as if the background had failed: the message is written, and the next call says what happened."""
    jobs = Jobs()
    queue = jobs.open(flush=POLICIES["every"])
    queue.put(b"first")
    with refusing(jobs.storage, "sync", ".data"):
        assert queue.put(b"written") == 1
    assert "flushing failed" in caplog.text
    with pytest.raises(StorageError):
        queue.put(b"refused")
    with pytest.raises(StorageError):
        queue.flush()
    queue.close()


@pytest.mark.usefixtures("limit")
def test_messages_larger_than_the_bound_of_unsynced_bytes_are_synced_without_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A policy that never syncs still starts writing early."""
    monkeypatch.setattr("holdfast.queue.producer.upkeep.EARLY_SYNC_BYTES", 1000)
    jobs = Jobs()
    queue = jobs.open(flush=POLICIES["never"])
    queue.put(bytes(2000))
    with jobs.without_power().open() as again:
        assert again.qsize() == 1
    queue.close()


@pytest.mark.parametrize("call", ["put", "get"])
def test_a_queue_that_was_opened_without_a_watcher_gets_one_at_the_next_occasion(tmp_path: Path, call: str) -> None:
    """From then on it answers other processes; before, nobody looks for what they ask."""
    with no_threads("holdfast-watcher"):
        queue = PersistentQueue(tmp_path / "orders")
    with queue:
        if call == "put":
            queue.put(b"first")
            assert queue.get() == b"first"
        else:
            with pytest.raises(Empty):
                queue.get(timeout=0.5)
        with PersistentQueue(queue.path, mode="submit") as submitter:
            submitter.put(b"asked", timeout=20)
        assert queue.get(timeout=0) == b"asked"


def test_a_queue_without_a_watcher_is_closed(tmp_path: Path) -> None:
    """There is no thread to wait for."""
    with no_threads():
        PersistentQueue(tmp_path / "orders").close()
    with PersistentQueue(tmp_path / "orders") as queue:
        assert queue.qsize() == 0


def test_requests_are_served_by_the_thread_that_looks_if_there_can_be_no_other(tmp_path: Path) -> None:
    """Slower for other queues; and nobody waits for ever."""
    with PersistentQueue(tmp_path / "orders") as queue:
        with no_threads("holdfast-requests"), PersistentQueue(queue.path, mode="submit") as submitter:
            for number in range(3):
                assert submitter.put(b"asked", timeout=20) == number
        with PersistentQueue(queue.path, mode="submit") as submitter:
            assert submitter.put(b"asked", timeout=20) == 3
        assert queue.get(timeout=0) == b"asked"


@pytest.mark.usefixtures("limit")
def test_whoever_submits_to_a_queue_that_nobody_owns_visits_it_himself(tmp_path: Path) -> None:
    """There is no thread to do it for him."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="submit") as submitter:
        assert [submitter.put(b"asked", timeout=20) for _ in range(3)] == [0, 1, 2]
    with PersistentQueue(path) as queue:
        assert queue.qsize() == 3


def test_a_visitor_in_the_thread_of_whoever_asked_leaves_though_others_go_on_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its own answer, and waits for nobody else's."""
    monkeypatch.setattr("holdfast.queue.server.visitor.LINGER_SECONDS", 60)
    with PersistentQueue(tmp_path / "orders", mode="submit") as submitter, no_threads("holdfast-visitor"):
        assert submitter.put(b"asked", timeout=20) == 0
        assert submitter.put(b"asked", timeout=20) == 1


@pytest.mark.parametrize("fail_at", [1, 2, 3, 4])
def test_a_start_that_fails_once_is_made_up_for(tmp_path: Path, fail_at: int) -> None:
    """Whichever of a queue's threads it was: what comes later finds everything at work."""
    path, policy = tmp_path / "orders", FlushPolicy.every(seconds=0.01)
    with starting(StartFaults(fail_at, forever=False)) as faults, PersistentQueue(path, flush=policy) as queue:
        for number in range(3):
            queue.put(b"%d" % number)
        assert [queue.get(timeout=0) for _ in range(3)] == [b"0", b"1", b"2"]
        with PersistentQueue(path, mode="submit") as submitter:
            assert submitter.put(b"asked", timeout=20) == 3
        assert queue.get(timeout=0) == b"asked"
    assert len(faults.failed) == 1


def test_a_background_that_meets_a_fault_of_ours_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """There may be memory again; what waits to be flushed is not forgotten."""
    done = threading.Event()
    errors = [MemoryError("none left")]

    def tick() -> bool:
        if errors:
            raise errors.pop()
        done.set()
        return False

    background = Flusher(tick, tick, 0.001, SystemClock())
    background.kick()
    assert done.wait(10)
    background.stop()
    assert "is tried again" in caplog.text


def test_a_thread_that_was_ended_with_the_interpreter_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put behind that, in another handler of the end, is flushed by whoever puts it."""
    monkeypatch.setattr(flusher, "LINGER_SECONDS", 60)
    flushed: list[threading.Thread] = []
    background = Flusher(lambda: False, lambda: flushed.append(threading.current_thread()), 0.001, SystemClock())
    background.kick()
    thread = background._thread
    assert thread is not None
    background._end()
    thread.join(10)
    with starting(StartFaults()):
        background.kick()
    assert flushed == [threading.current_thread()]
    background.stop()
    background.kick()
    assert len(flushed) == 1
