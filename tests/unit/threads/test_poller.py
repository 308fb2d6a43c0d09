"""The one thread that looks after everything that is open in a process."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.queue.threads import poller
from support.processes.children import run_script
from support.processes.interruptions import without_hanging
from support.processes.threads import Threads, wait_until


class OwnClock(SystemClock):
    """The system's time; what is watched by it has a thread of its own, whatever else runs."""


class Looked:
    """Something to look at."""

    def __init__(self, error: Exception | None = None, seconds: float = 0.001) -> None:
        self.count = 0
        self.error = error
        self.seconds = seconds
        self.threads: set[threading.Thread] = set()

    def look(self) -> float:
        self.threads.add(threading.current_thread())
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.seconds


def test_one_thread_looks_at_everything_and_ends_with_the_last_of_it() -> None:
    """A process with 200 queues does not have 200 threads; one without queues has none."""
    clock = OwnClock()
    parts = [Looked() for _ in range(20)]
    for part in parts:
        poller.watch(part, clock)
    wait_until(lambda: all(part.count > 1 for part in parts))
    (thread,) = set.union(*(part.threads for part in parts))
    for part in parts[1:]:
        poller.unwatch(part, clock)
    assert thread.is_alive()
    poller.unwatch(parts[0], clock)
    assert not thread.is_alive()


def test_what_is_watched_later_is_looked_at_by_another_thread_once_the_first_has_ended() -> None:
    """A process may close its last queue and open the next one."""
    clock = OwnClock()
    for _ in range(5):
        part = Looked()
        poller.watch(part, clock)
        wait_until(lambda part=part: part.count > 0)  # type: ignore[misc]
        poller.unwatch(part, clock)
        assert not part.threads.pop().is_alive()


def started_and(error: BaseException, started: list[threading.Thread]) -> Callable[[threading.Thread], None]:
    """Return what starts a thread, and fails behind that: as an interruption has it that comes while Python waits."""
    start = threading.Thread.start

    def start_and_fail(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise error

    return start_and_fail


def test_what_an_interruption_has_watched_is_watched_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is not open, so nothing else would end it; its thread ends too."""
    clock, part, started = OwnClock(), Looked(), list[threading.Thread]()
    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", started_and(KeyboardInterrupt(), started))
        with pytest.raises(KeyboardInterrupt):
            poller.watch(part, clock)
    wait_until(lambda: not started[0].is_alive())
    assert poller._key(clock) not in poller._pollers


@pytest.mark.parametrize("is_late", [False, True])
def test_a_thread_that_runs_though_its_start_has_failed_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Two would take each other's wake, and the end would wait for one of them until its next look."""
    clock, started, start = OwnClock(), list[threading.Thread](), threading.Thread.start
    parts = [Looked(seconds=60), Looked(seconds=60)]
    with monkeypatch.context() as broken:
        if is_late:
            broken.setattr(threading.Thread, "start", lambda thread: None)
        fail = started_and(RuntimeError("release unlocked lock"), started)
        broken.setattr(threading.Thread, "start", fail)
        poller.watch(parts[0], clock)
    poller.watch(parts[1], clock)
    poller.ensure_watching()
    if is_late:
        start(started[0])
    for part in parts:
        wait_until(lambda part=part: part.count > 0)  # type: ignore[misc]
        without_hanging(lambda part=part: poller.unwatch(part, clock))  # type: ignore[misc]
    assert len({*parts[0].threads, *parts[1].threads}) == 1
    wait_until(lambda: not started[0].is_alive())


def test_what_cannot_be_looked_at_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours in one queue is logged, and the look is tried again."""
    clock = OwnClock()
    broken, sound = Looked(ValueError("a fault")), Looked()
    poller.watch(broken, clock)
    poller.watch(sound, clock)
    wait_until(lambda: broken.count > 0)
    seen = sound.count
    wait_until(lambda: sound.count > seen + 3)
    wait_until(lambda: broken.count > 1)
    poller.unwatch(broken, clock)
    poller.unwatch(sound, clock)
    assert "a fault" in caplog.text


def test_nothing_is_looked_at_any_more_once_unwatch_has_returned(threads: Threads) -> None:
    """Whoever closes a queue waits for the look that is under way, and closes no file under it."""
    clock = OwnClock()
    begun, go_on, is_over = threading.Event(), threading.Event(), threading.Event()

    class Slow(Looked):
        def look(self) -> float:
            begun.set()
            go_on.wait(10)
            return super().look()

    slow, other = Slow(), Looked()
    poller.watch(slow, clock)
    poller.watch(other, clock)
    assert begun.wait(10)

    def unwatch() -> None:
        poller.unwatch(slow, clock)
        is_over.set()

    threads.start(unwatch)
    assert not is_over.wait(0.05)
    go_on.set()
    assert is_over.wait(10)
    count, seen = slow.count, other.count
    wait_until(lambda: other.count > seen + 3)
    assert slow.count == count
    poller.unwatch(other, clock)


def test_unwatching_twice_or_what_was_never_watched_does_nothing() -> None:
    """Closing is tried again where it was cut short."""
    clock = OwnClock()
    part, other = Looked(), Looked()
    poller.unwatch(part, clock)
    poller.watch(part, clock)
    poller.watch(other, clock)
    poller.unwatch(part, clock)
    poller.unwatch(part, clock)
    wait_until(lambda: other.count > 0)
    poller.unwatch(other, clock)


def test_queues_that_were_opened_at_any_time_are_due_together() -> None:
    """Waking costs more than a look: 200 queues are one round."""
    times = [100.0 + 0.0007 * number for number in range(60)]
    assert {round(poller._next_round(now, 0.1), 9) for now in times} == {100.1}
    assert all(now < poller._next_round(now, seconds) <= now + seconds for now in times for seconds in (0.015, 1.0))


def test_all_clocks_of_the_system_are_one_and_others_keep_their_own_time() -> None:
    """Each queue makes a clock of its own, and they share a thread all the same."""
    parts = [Looked(), Looked(), Looked()]
    clocks = [SystemClock(), SystemClock(), OwnClock()]
    for part, clock in zip(parts, clocks, strict=True):
        poller.watch(part, clock)
    wait_until(lambda: all(part.count > 0 for part in parts))
    for part, clock in zip(parts, clocks, strict=True):
        poller.unwatch(part, clock)
    assert parts[0].threads == parts[1].threads != parts[2].threads


def test_a_forked_child_looks_after_its_own_queues_and_waits_for_no_thread_of_the_parent(tmp_path: Path) -> None:
    """The child has no such thread: it neither waits for it nor takes it for its own. The parent's continues."""
    script = """
import gc, os, signal, sys, threading, time, warnings
from pathlib import Path
from holdfast import PersistentQueue, QueueLockedError
from holdfast.queue.engine import idle_handles

signal.alarm(60)
warnings.simplefilter("ignore")  # forking beside threads, and dropping queues, is what this is about
idle_handles.REST_SECONDS = 0.01
place = Path(sys.argv[1])

def dropped_is_closed(name):
    PersistentQueue(place / name, mode="exclusive").put(b"x")
    gc.collect()
    while True:
        try:
            return PersistentQueue(place / name, mode="exclusive").close()
        except QueueLockedError:
            time.sleep(0.005)

queue = PersistentQueue(place / "parents", mode="exclusive")
dropped_is_closed("dropped")
for number in range(10):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        queue.close()
        dropped_is_closed(f"childs-{number}")
        while [each.name for each in threading.enumerate()] != ["MainThread"]:
            time.sleep(0.005)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, number
    dropped_is_closed("dropped")
queue.put(b"x")
queue.close()
"""
    run_script(script, tmp_path)


def test_what_has_ended_is_not_looked_at_any_more() -> None:
    """Though the thread had it on its list for this round."""
    looked = Looked()
    entry = poller._Entry(looked, 0.0)
    entry.look(1.0)
    entry.end()
    entry.look(2.0)
    assert looked.count == 1


def test_a_thread_that_found_no_memory_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next call that may take a moment: else no open queue was looked after any more."""
    failures, unhandled = [MemoryError()], list[object]()

    class Short(OwnClock):
        def wait(self, event: threading.Event, seconds: float | None) -> bool:
            if failures:
                raise failures.pop()
            return super().wait(event, seconds)

    clock, part = Short(), Looked()
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    poller.watch(part, clock)
    wait_until(lambda: len(unhandled) == 1)
    assert part.count == 0
    poller.ensure_watching()
    wait_until(lambda: part.count > 0)
    poller.unwatch(part, clock)
