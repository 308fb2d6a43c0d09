"""The one place that starts threads, and what becomes of them at the end of the interpreter."""

import ast
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast import RetryableError, threads
from holdfast.threads import join_thread, no_thread_error, start_thread
from support.processes.children import run_script
from support.processes.log_handlers import text_said
from support.processes.thread_starts import LIMIT, StartFaults, no_threads, starting

PACKAGE = Path(threads.__file__).parent
STARTERS = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread", "start_joinable_thread", "to_thread"}

PRELUDE = """
import atexit, sys, time
from pathlib import Path
from holdfast import FlushPolicy, PersistentQueue
from support.storages.slow_syncs import SlowStorage

place, told = Path(sys.argv[1]), print
policies = {
    "commit": FlushPolicy.every_commit(),
    "every": FlushPolicy.every(commits=1000, seconds=0.01),
    "never": FlushPolicy.never(),
}
"""

AT_EXIT = """
def last():
    for name, policy in policies.items():
        with PersistentQueue(place / name, mode="exclusive", flush=policy, data_file_bytes=16 * 1024) as queue:
            for number in range(40):
                queue.put(bytes(2000))
            for number in range(40):
                queue.get(timeout=0)
            queue.put(b"left")
            assert queue.stats().depth == 1
            assert queue.stats().file_count < 4, "finished files are retired all the same"
            with queue.receive(timeout=0) as delivery:
                assert delivery.payload == b"left"
    told("done")

atexit.register(last)
"""

IN_DEL = """
class Last:
    def __init__(self, queue):
        self.queue = queue

    def __del__(self):
        self.queue.put(b"last")
        self.queue.flush()
        assert self.queue.get(timeout=0) == b"last"
        self.queue.put(b"left")
        self.queue.close()
        told("done")

lasts = [Last(PersistentQueue(place / name, mode="exclusive", flush=policy)) for name, policy in policies.items()]
"""

IN_THE_MIDDLE = """
class Last:
    def __init__(self, queue):
        self.queue = queue

    def __del__(self):
        self.queue.put(b"last")
        self.queue.flush()
        self.queue.close()
        told("done")

queue = PersistentQueue(place / "slow", mode="exclusive", flush=policies["every"], storage=SlowStorage())
queue.put(b"first")
time.sleep(0.1)  # the background is in the middle of its sync
last = Last(queue)
del queue
"""


NO_ROOM_FOR_STACKS = """
import threading

threading.stack_size(2**46)  # no thread has so much: the operating system refuses each start
"""


def test_a_queue_works_where_the_operating_system_refuses_every_thread(tmp_path: Path) -> None:
    """As at a limit of threads or of memory, in the middle of a program."""
    told = run_script(PRELUDE + NO_ROOM_FOR_STACKS + AT_EXIT + "atexit.unregister(last)\nlast()\n", tmp_path)
    assert told.split() == ["done"]


@pytest.mark.parametrize(
    ("script", "count"), [(AT_EXIT, 1), (IN_DEL, 3), (IN_THE_MIDDLE, 1)], ids=["atexit", "del", "in the middle"]
)
def test_a_queue_works_at_the_end_of_the_interpreter(tmp_path: Path, script: str, count: int) -> None:
    """No thread can be started there, and one that was stopped in the middle of a sync would keep its lock."""
    assert run_script(PRELUDE + script, tmp_path).split() == ["done"] * count


def test_a_thread_that_cannot_be_started_is_told_once_until_one_can_be(caplog: pytest.LogCaptureFixture) -> None:
    """A queue tries again with each commit: the log is not flooded."""
    with no_threads():
        assert start_thread(print, "holdfast-test") is None
        assert start_thread(print, "holdfast-test") is None
    assert text_said(caplog).count(LIMIT) == 1
    done = threading.Event()
    thread = start_thread(done.set, "holdfast-test")
    join_thread(thread)
    assert done.is_set()
    with no_threads():
        assert start_thread(print, "holdfast-test") is None
    assert text_said(caplog).count(LIMIT) == 2


def test_an_interruption_of_a_start_goes_on_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere; and nothing waits for that thread at the end."""
    monkeypatch.setattr(threads, "_starter", threads._Starter())  # threads of other tests may be running still
    with starting(StartFaults(error=KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
        start_thread(print, "holdfast-test", end=print)
    assert not threads._starter.ends


def test_the_end_of_the_interpreter_waits_for_threads_that_can_be_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And starts no others."""
    monkeypatch.setattr(threads, "_starter", threads._Starter())
    told, ended = threading.Event(), threading.Event()

    def work() -> None:
        told.wait(30)
        ended.set()

    thread = start_thread(work, "holdfast-test", end=told.set)
    threads._end_all()
    assert ended.is_set()
    assert thread is not None
    assert not thread.is_alive()
    assert start_thread(print, "holdfast-test") is None


def test_a_thread_of_ours_that_ends_the_interpreter_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may end up there."""
    monkeypatch.setattr(threads, "_starter", threads._Starter())
    thread = start_thread(threads._end_all, "holdfast-test", end=lambda: None)
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


def test_a_thread_is_not_waited_for_by_itself_nor_where_it_may_have_been_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor where there is none."""
    join_thread(None)
    join_thread(threading.current_thread())
    go_on = threading.Event()
    thread = start_thread(go_on.wait, "holdfast-test")
    with monkeypatch.context() as ending:
        ending.setattr(sys, "is_finalizing", lambda: True)
        join_thread(thread)
        assert start_thread(print, "holdfast-test") is None
    go_on.set()
    join_thread(thread)


def test_what_cannot_be_done_without_a_thread_says_what_to_do() -> None:
    """It may be tried again."""
    error = no_thread_error("waiting for messages of 'orders'")
    assert isinstance(error, RetryableError)
    assert "try again" in str(error)


def test_threads_are_started_in_one_place() -> None:
    """So that none is forgotten that cannot be started: nothing else in the package starts one by itself."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "threads.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        if (getattr(node.func, "attr", None) or getattr(node.func, "id", None)) in STARTERS
    ]
    assert not found


def test_a_thread_that_there_is_no_memory_for_is_as_one_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asks for one does without."""
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Mock(side_effect=MemoryError))
        assert start_thread(print, "holdfast-test", end=lambda: None) is None
    assert "holdfast-test: no thread can be started" in text_said(caplog)
    thread = start_thread(lambda: None, "holdfast-test")
    join_thread(thread)
    assert thread is not None
