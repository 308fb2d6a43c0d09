"""A queue whose threads cannot be started: what they would do is done by its callers, or at the next occasion."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from holdfast import Empty, FlushPolicy, PersistentQueue, RetryableError, StorageError
from holdfast.clock import SystemClock
from holdfast.queue.engine import idle_handles
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.threads import flusher, poller
from holdfast.queue.threads.flusher import Flusher
from support.builders.handles import handle_of
from support.builders.jobs import Jobs, ready
from support.processes.thread_starts import StartFaults, no_threads, starting
from support.processes.threads import wait_until
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
    with jobs.open(mode="exclusive", flush=policy) as owner, jobs.open(mode="read_only") as look:
        owner.put(b"told")
        assert ready(look) == [b"told"]


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
def test_a_queue_that_was_opened_without_a_watcher_gets_one_at_the_next_occasion(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From then on it is polled; before, no thread closes what it does not use."""
    monkeypatch.setattr(idle_handles, "REST_SECONDS", 0.02)
    with no_threads("holdfast-watcher"):
        queue = PersistentQueue(tmp_path / "orders", mode="exclusive")
    with queue, mock.patch.object(handle_of(queue).require_write_side(), "rest") as rest:
        time.sleep(0.1)
        assert not rest.called
        if call == "put":
            queue.put(b"first")
            assert queue.get() == b"first"
        else:
            with pytest.raises(Empty):
                queue.get(timeout=0.5)
        wait_until(lambda: rest.called)


def test_a_queue_without_a_watcher_is_closed(tmp_path: Path) -> None:
    """There is no thread to wait for."""
    with no_threads():
        PersistentQueue(tmp_path / "orders", mode="exclusive").close()
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        assert queue.qsize() == 0


def test_a_queue_that_cannot_be_served_to_others_is_not_shared(tmp_path: Path) -> None:
    """The error says so, and the next one owns it."""
    with no_threads("holdfast-owner"), pytest.raises(RetryableError, match="no thread can be started"):
        PersistentQueue(tmp_path / "orders", mode="shared")
    with PersistentQueue(tmp_path / "orders", mode="shared") as queue:
        assert queue.is_owner


def test_a_client_puts_and_takes_without_threads(tmp_path: Path) -> None:
    """Only those that the process had before: what the owner is told in the background is told at the end."""
    with PersistentQueue(tmp_path / "orders", mode="shared") as owner:
        with no_threads(), PersistentQueue(owner.path, mode="shared") as client:
            client.put_many([b"one", b"two", b"three"])
            assert client.get(timeout=20) == b"one"
            with client.receive(timeout=20) as delivery:
                assert delivery.payload == b"two"
        assert owner.get(timeout=20) == b"three"


@pytest.mark.parametrize(("mode", "fail_at"), [("exclusive", 1), ("exclusive", 2), ("exclusive", 3), ("shared", 1)])
def test_a_start_that_fails_once_is_made_up_for(tmp_path: Path, mode: Mode, fail_at: int) -> None:
    """Whichever of a queue's threads it was: what comes later finds everything at work."""
    path, policy = tmp_path / "orders", FlushPolicy.every(seconds=0.01)
    faults = StartFaults(fail_at, forever=False)
    with starting(faults), PersistentQueue(path, mode=mode, flush=policy) as queue:
        for number in range(3):
            queue.put(b"%d" % number)
        assert [queue.get(timeout=0) for _ in range(3)] == [b"0", b"1", b"2"]
        names = faults.tried
        wait_until(lambda: queue.put(b"again") > 0 and names.count(faults.failed[0]) > 1)
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
