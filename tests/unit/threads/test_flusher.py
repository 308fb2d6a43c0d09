"""The thread that flushes in the background: it is there while something happens, and misses no kick."""

import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast import FlushPolicy, PersistentQueue
from holdfast.clock import SystemClock
from holdfast.errors import DiskFullError, PoisonedError
from holdfast.queue.producer import upkeep
from holdfast.queue.threads import flusher
from holdfast.queue.threads.flusher import Flusher
from support.builders.handles import handle_of
from support.processes.interruptions import without_hanging
from support.processes.log_handlers import text_said
from support.processes.threads import wait_until


class Ticks:
    """Something to do, once for each kick."""

    def __init__(self) -> None:
        self.count = 0
        self.threads: set[threading.Thread] = set()

    def __call__(self) -> bool:
        self.count += 1
        self.threads.add(threading.current_thread())
        return False


def in_time(ticks: Ticks) -> Flusher:
    """Return a flusher that calls ``ticks`` at once."""
    return Flusher(ticks, ticks, 0.0001, SystemClock())


def test_the_thread_ends_when_nothing_happens_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 idle queues have no thread each."""
    monkeypatch.setattr(flusher, "LINGER_SECONDS", 0.001)
    ticks = Ticks()
    background = in_time(ticks)
    for number in range(5):
        background.kick()
        wait_until(lambda number=number: ticks.count > number)  # type: ignore[misc]
        wait_until(lambda: background._thread is None)
        assert background.idle
    background.stop()


def test_a_thread_that_lingers_takes_the_next_kick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever puts now and then does not start a thread for each message."""
    monkeypatch.setattr(flusher, "LINGER_SECONDS", 60)
    ticks = Ticks()
    background = in_time(ticks)
    for number in range(5):
        background.kick()
        wait_until(lambda number=number: ticks.count > number)  # type: ignore[misc]
    assert len(ticks.threads) == 1
    background.stop()
    assert background._thread is None


def test_no_kick_is_lost_while_the_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes at that very moment is taken by the old thread or by the next one."""
    monkeypatch.setattr(flusher, "LINGER_SECONDS", 0.0002)
    ticks = Ticks()
    background = in_time(ticks)
    for _ in range(300):
        seen = ticks.count
        background.kick()
        wait_until(lambda seen=seen: ticks.count > seen)  # type: ignore[misc]
    assert len(ticks.threads) > 1
    background.stop()


def test_nothing_is_called_after_stop() -> None:
    """A kick that comes too late starts nothing."""
    ticks = Ticks()
    background = in_time(ticks)
    background.stop()
    background.kick()
    assert background._thread is None
    assert ticks.count == 0


def test_a_side_that_is_broken_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """The next call of the application finds that it is."""
    count = 0

    def tick() -> bool:
        nonlocal count
        count += 1
        raise PoisonedError("broken")

    background = Flusher(tick, tick, 0.0001, SystemClock())
    background.kick()
    thread = background._thread
    assert thread is not None
    thread.join(10)
    background.kick()
    background.stop()
    assert count == 1
    assert "background flush failed: broken" in text_said(caplog)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("can't start new thread")], ids=repr)
def test_a_kick_that_starts_no_thread_is_made_up_for_by_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """An interruption reaches the caller; that there can be no thread does not, for the message is written."""
    ticks = Ticks()
    background = in_time(ticks)

    def fail(_: object) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", fail)
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                background.kick()
        else:
            background.kick()
            assert "can't start new thread" in text_said(caplog)
    assert background.idle
    background.kick()
    wait_until(lambda: ticks.count > 0)
    background.stop()


def test_a_thread_whose_start_was_interrupted_once_it_ran_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would take its kick, and the stop would wait for one of them alone."""
    monkeypatch.setattr(flusher, "LINGER_SECONDS", 60)
    ticks, start = Ticks(), threading.Thread.start
    background = in_time(ticks)
    started: list[threading.Thread] = []

    def start_and_fail(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", start_and_fail)
        with pytest.raises(KeyboardInterrupt):
            background.kick()
    background.kick()
    wait_until(lambda: ticks.count > 0)
    without_hanging(background.stop)
    assert len(ticks.threads) == 1
    assert background._thread is None
    wait_until(lambda: not started[0].is_alive())


def test_what_a_queue_syncs_by_time_is_synced_after_its_threads_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts and acknowledgements of a queue that was idle in between."""
    monkeypatch.setattr(flusher, "LINGER_SECONDS", 0.001)
    monkeypatch.setattr(upkeep, "_IDLE_SECONDS", 0.01)
    with PersistentQueue(tmp_path / "orders", mode="exclusive", flush=FlushPolicy.every(seconds=0.002)) as queue:
        side = handle_of(queue).require_write_side()
        for number in range(3):
            assert queue.put(b"a") == number
            wait_until(lambda: side._writer.synced == side._writer.end)
            assert queue.get(timeout=0) == b"a"
            books = handle_of(queue).require_read_side().progress_store
            assert books is not None
            wait_until(lambda books=books: books._positions.unsynced_count == 0)  # type: ignore[misc]
            assert books._flusher is not None
            wait_until(lambda books=books: side._flusher._thread is books._flusher._thread is None)  # type: ignore[misc]


def test_a_failure_that_passes_is_tried_again_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was put is synced in time from then on, though no other put kicks."""
    monkeypatch.setattr(flusher, "TROUBLE_SECONDS", 0.001)
    outcomes: list[bool | Exception] = [
        DiskFullError("no space"),
        DiskFullError("no space"),
        MemoryError(),
        True,
        False,
    ]
    ticked: list[object] = []

    def tick() -> bool:
        ticked.append(outcome := outcomes[len(ticked)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    background = Flusher(tick, tick, 0.0001, SystemClock())
    background.kick()
    wait_until(lambda: ticked == outcomes)
    background.stop()
    assert text_said(caplog).count("no space") == 1


def test_a_failure_that_cannot_be_logged_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for both, say."""
    monkeypatch.setattr(flusher, "TROUBLE_SECONDS", 0.001)
    monkeypatch.setattr(flusher.logger, "error", Mock(side_effect=MemoryError))
    tick = Mock(side_effect=[MemoryError(), MemoryError(), False])
    background = Flusher(tick, tick, 0.0001, SystemClock())
    background.kick()
    wait_until(lambda: tick.call_count == 3)
    background.stop()


def test_a_thread_that_finds_no_memory_to_wait_with_is_replaced_by_the_next_kick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else nothing would be synced in time any more."""
    failures = [MemoryError()]

    class Clock(SystemClock):
        def wait(self, event: threading.Event, seconds: float | None) -> bool:
            if failures:
                raise failures.pop()
            return super().wait(event, seconds)

    ticks = Ticks()
    background = Flusher(ticks, ticks, 0.0001, Clock())
    unhandled: list[object] = []
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    background.kick()
    wait_until(lambda: len(unhandled) == 1)
    assert background._thread is None
    assert background.idle
    background.kick()
    wait_until(lambda: ticks.count == 1)
    background.stop()
