"""Handlers in processes of their own: what they say, how they die, and that nothing of them is left."""

import logging
import os
import pickle
import signal
import sys
import threading
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from holdfast import ConfigError, WorkerDiedError
from holdfast.queue.threads import lifecycle
from holdfast.service.queue_service import QueueService
from holdfast.service.typed_queue import TypedQueue
from holdfast.service.workers.job import Job
from holdfast.service.workers.processes import worker_main
from holdfast.service.workers.processes.worker_pool import WorkerPool
from holdfast.service.workers.processes.worker_process import WorkerProcess
from holdfast.service.workers.settlement import NACK
from support.processes.children import child
from support.processes.threads import Threads, wait_until
from support.service.consumers import SECONDS, lives, run_until_finished, running
from support.service.worker_handlers import DATA_VARIABLE, JOURNAL_VARIABLE, Task, handle, handle_with_delivery, noted

Tasks = TypedQueue[Task]


@pytest.fixture
def journal(tmp_path: Path, service: QueueService, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the handlers write; their processes find it, and the service's directory, in the environment."""
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal"))
    monkeypatch.setenv(DATA_VARIABLE, str(service.path))
    return tmp_path / "journal"


@pytest.fixture
def tasks(service: QueueService) -> Tasks:
    """A queue whose failed messages come again at once, twice."""
    return service.queue("tasks", type=Task, backoff=[], max_deliveries=3)


def begun(journal: Path, number: int) -> list[int]:
    """Return the processes in which a task was begun."""
    return [int(pid) for word, task, pid in noted(journal) if (word, task) == ("begun", str(number))]


def done(journal: Path) -> list[int]:
    """Return the tasks that were done, in order of their number."""
    return sorted(int(task) for word, task, _ in noted(journal) if word == "done")


def test_verdicts_come_back_from_a_worker_process(service: QueueService, tasks: Tasks, journal: Path) -> None:
    """What returned is done, the rest as in a thread; with traceback, and no process is left."""
    service.consumer(tasks, processes=1)(handle)
    tasks.put_many([Task(0), Task(1, "raise"), Task(2, "reject"), Task(3, "retry"), Task(4, "interrupt")])
    tasks.raw.put(b"undecodable")
    run_until_finished(service, "tasks")
    assert done(journal) == [0, 4]
    letters = {each.offset: each for each in tasks.dead.list()}
    assert {
        offset: (each.reason, each.detail, each.delivery_count) for offset, each in letters.items() if offset < 5
    } == {
        1: ("exception", "bad task", 3),
        2: ("rejected", "no such task", 1),
        3: ("max_deliveries", "", 3),
    }
    assert "in _raise" in letters[1].traceback
    assert letters[1].exception == "builtins.ValueError"
    assert (letters[5].reason, letters[5].delivery_count) == ("undecodable", 0)
    pids = {int(words[2]) for words in noted(journal)}
    assert os.getpid() not in pids
    assert len(pids) == 1
    assert not any(map(lives, pids))


def test_a_delivery_says_in_a_worker_process_what_it_is_and_cannot_be_settled(
    service: QueueService, tasks: Tasks, journal: Path
) -> None:
    """What the handler does is the verdict."""
    service.consumer(tasks, processes=1, retry=[0])(handle_with_delivery)
    tasks.put(Task(9), headers={"tenant": "acme"})
    run_until_finished(service, "tasks")
    assert noted(journal) == [["9", "0", str(count), "acme", str(count == 3)] for count in (1, 2, 3)]
    (letter,) = tasks.dead.list()
    assert letter.detail.startswith("in a worker process a message is settled by its handler")


@pytest.mark.parametrize(
    ("does", "says"), [("die", "was killed by SIGKILL"), ("exit", "ended with exit code 7")], ids=["signal", "exit"]
)
def test_a_message_that_ends_its_process_each_time_is_a_dead_letter_and_takes_no_other_along(
    service: QueueService, tasks: Tasks, journal: Path, does: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The process is replaced each time, and the letter says how it died."""
    service.consumer(tasks, processes=2)(handle)
    tasks.put_many([Task(number, does if number == 5 else "") for number in range(12)])
    run_until_finished(service, "tasks")
    assert done(journal) == [number for number in range(12) if number != 5]
    assert len(set(begun(journal, 5))) == 3
    (letter,) = tasks.dead.list()
    assert (letter.offset, letter.reason, letter.delivery_count) == (5, "exception", 3)
    assert letter.exception == "holdfast.errors.WorkerDiedError"
    assert letter.detail == f"worker process {begun(journal, 5)[-1]} {says} while it handled offset 5"
    assert caplog.text.count("it is replaced") == 3


def test_a_process_that_dies_with_nothing_to_do_is_replaced_and_nothing_is_counted(
    service: QueueService, tasks: Tasks, journal: Path
) -> None:
    """The next message is its replacement's."""
    service.consumer(tasks, processes=1)(handle)
    with running(service):
        tasks.put(Task(0))
        wait_until(lambda: tasks.stats().depth == 0, SECONDS)
        (pid,) = begun(journal, 0)
        os.kill(pid, signal.SIGKILL)
        tasks.put(Task(1))
        wait_until(lambda: tasks.stats().depth == 0, SECONDS)
    assert done(journal) == [0, 1]
    assert begun(journal, 1) != [pid]


def test_handlers_that_outlast_their_grace_are_killed_and_their_messages_given_back_uncounted(
    service: QueueService, tasks: Tasks, journal: Path
) -> None:
    """A process can be ended, other than a thread."""
    service.consumer(tasks, processes=1)(handle)
    tasks.put(Task(0, "hang"))
    with running(service, grace_seconds=0.01):
        wait_until(lambda: bool(begun(journal, 0)), SECONDS)
    assert not lives(begun(journal, 0)[0])
    assert tasks.receive(timeout=SECONDS).delivery_count == 1


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The service's directory, which the handlers find in the environment, as the journal."""
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal"))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_handler_in_a_worker_process_puts_as_a_client(environment: Path) -> None:
    """Its modules open queues as they do anywhere; taking is refused there, and run() does nothing."""
    journal = environment.parent / "journal"
    with QueueService(environment, mode="shared", catalog=False) as service:
        tasks: Tasks = service.queue("tasks", type=Task, backoff=[], max_deliveries=1)
        results = service.queue("results", type=str)
        service.consumer(tasks, processes=1)(handle)
        tasks.put_many([Task(0, "put"), Task(1, "receive"), Task(2, "run")])
        run_until_finished(service, "tasks")
        assert done(journal) == [0, 2]
        assert results.receive(timeout=5).body == f"from process {begun(journal, 0)[0]}"
        (letter,) = tasks.dead.list()
        assert letter.detail.startswith("a worker process takes nothing from 'tasks' by itself")


def test_worker_processes_put_nothing_beside_a_service_that_owns_its_queues_alone(environment: Path) -> None:
    """They handle messages; the error of a put says what the service needs."""
    with QueueService(environment, mode="exclusive", catalog=False) as service:
        tasks: Tasks = service.queue("tasks", type=Task, backoff=[], max_deliveries=1)
        results = service.queue("results", type=str)
        service.consumer(tasks, processes=1)(handle)
        tasks.put_many([Task(0, "put"), Task(1)])
        run_until_finished(service, "tasks")
        assert done(environment.parent / "journal") == [1]
        (letter,) = tasks.dead.list()
        assert letter.exception == "holdfast.errors.QueueLockedError"
        assert letter.detail.startswith(f"process {os.getpid()} on ")
        assert f"has {results.path} open with mode='exclusive'" in letter.detail
        assert letter.detail.endswith("handle the messages in threads, without processes=")
        assert results.qsize() == 0


def test_several_consumers_share_as_many_processes_as_the_command_line_says(
    service: QueueService, tasks: Tasks, journal: Path
) -> None:
    """Instead of what each of them says."""
    more = service.queue("more", type=Task)
    service.consumer(tasks, concurrency=4)(handle)
    service.consumer(more, processes=3)(handle)
    tasks.put_many([Task(number) for number in range(10)])
    more.put_many([Task(number) for number in range(10, 20)])
    tasks.raw.shutdown()
    more.raw.shutdown()
    service.workers.run(SECONDS, 1)
    assert done(journal) == list(range(20))
    assert len({words[2] for words in noted(journal)}) == 1


def test_no_message_gets_the_answer_to_the_one_before(
    service: QueueService, tasks: Tasks, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that found no memory to read an answer with has left it in the pipe."""
    tasks.put_many([Task(0), Task(1, "raise")])
    first, second = tasks.raw.receive(timeout=0), tasks.raw.receive(timeout=0)
    pool = WorkerPool([Job(tasks.name, handle, False, None, tasks.codec)], 1)
    try:
        with monkeypatch.context() as patched:
            really = WorkerProcess._answer

            def answer(process: WorkerProcess, when: str) -> object:
                if when.startswith("while"):
                    raise MemoryError
                return really(process, when)

            patched.setattr(WorkerProcess, "_answer", answer)
            with pytest.raises(MemoryError):
                pool.handle(0, first)
        settlement = pool.handle(0, second)
        assert settlement is not None
        assert settlement.verb == NACK
    finally:
        pool.kill()
        pool.close()


def test_a_message_that_waits_for_a_process_is_given_back_at_a_stop(
    service: QueueService, tasks: Tasks, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has not begun, and is not begun when a process is idle again."""
    caplog.set_level(logging.INFO)
    more = service.queue("more", type=Task)
    service.consumer(tasks)(handle)
    service.consumer(more)(handle)
    threads = Threads()
    threads.start(lambda: service.workers.run(SECONDS, 1))
    tasks.put(Task(0, "wait"))
    wait_until(lambda: bool(begun(journal, 0)), SECONDS)
    more.put(Task(1))
    wait_until(lambda: more.stats().in_flight == 1, SECONDS)
    service.stop()
    wait_until(lambda: "stopping, what runs has" in caplog.text, SECONDS)
    time.sleep(0.1)
    journal.with_name("go_on").touch()
    threads.join()
    assert done(journal) == [0]
    assert more.receive(timeout=0).delivery_count == 1


def test_a_handler_that_cannot_be_sent_to_a_process_is_refused(service: QueueService, tasks: Tasks) -> None:
    """Before anything is started."""
    service.consumer(tasks, processes=1)(lambda task: None)
    with pytest.raises(ConfigError, match="the types and upcasts of queue 'tasks', at the top of a module"):
        service.run()


def test_a_handler_that_worker_processes_cannot_import_stops_run(
    service: QueueService, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not tried again and again, and the message that it was for is as it was."""
    module = ModuleType("made_up_on_the_spot")
    exec("def handle(task): ...", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    service.consumer(tasks, processes=1)(module.handle)
    tasks.put(Task(0))
    with pytest.raises(ConfigError, match=r"cannot import the handler .*made_up_on_the_spot"):
        service.run()
    service.close()
    with QueueService(service.path, mode="exclusive", catalog=False) as again:
        assert again.queue("tasks", type=Task).receive().delivery_count == 1


def test_processes_that_die_before_they_are_ready_stop_run_after_some(
    service: QueueService,
    tasks: Tasks,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With pauses in between: a machine that starts processes without end is of no use for anything else."""
    (tmp_path / "dies_when_imported.py").write_text(
        "import multiprocessing, os\nif multiprocessing.parent_process():\n    os._exit(3)\ndef handle(task): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("holdfast.service.workers.processes.worker_pool._START_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("holdfast.service.workers.processes.worker_pool.START_FAILURES_MAX", 2)
    from dies_when_imported import handle as deadly  # type: ignore[import-not-found]

    service.consumer(tasks, processes=1)(deadly)
    tasks.put(Task(0))
    with pytest.raises(WorkerDiedError, match=r"2 worker processes in a row ended before .* exit code 3"):
        service.run()
    assert [record.levelno for record in caplog.records].count(logging.CRITICAL) == 1
    service.close()
    with QueueService(service.path, mode="exclusive", catalog=False) as again:
        assert again.queue("tasks", type=Task).receive().delivery_count == 1


def test_a_forked_copy_of_the_owner_leaves_the_worker_processes_alone(tasks: Tasks, journal: Path) -> None:
    """Exit functions are inherited; what they would end is not."""
    pool = WorkerPool([Job("tasks", handle, takes_delivery=False, retry=None, codec=tasks.codec)], 1)
    try:
        with child(pool.kill) as copy:
            assert copy.wait() == 0
        tasks.put(Task(0))
        assert pool.handle(0, tasks.receive()) is None
        assert done(journal) == [0]
    finally:
        pool.close()


def test_a_worker_process_ends_by_itself_though_its_parent_has_forked(tasks: Tasks, journal: Path) -> None:
    """The copy closes its end of the pipe, which would keep the worker waiting until it is killed."""
    job = Job("tasks", handle, takes_delivery=False, retry=None, codec=tasks.codec)
    process = WorkerProcess("holdfast-worker-1", pickle.dumps([job]))
    process.wait_until_ready()
    with child(threading.Event().wait):
        process.dismiss()
        process.wait(SECONDS)
    assert process._process.exitcode == 0


def test_a_worker_process_ends_with_its_parent_though_that_has_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy keeps the sentinel open; the worker looks now and then whose child it is: that of a wrapper, perhaps."""
    reader, writer = os.pipe()
    parents = iter([7, 7, 1])
    monkeypatch.setattr(worker_main, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(worker_main, "parent_process", lambda: SimpleNamespace(pid=6, sentinel=reader))
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        worker_main._end_with_parent(7)
    assert next(parents, None) is None
    os.close(reader)
    os.close(writer)


def test_a_child_that_is_forked_while_a_worker_process_starts_has_no_end_of_its_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread may fork at any time; the worker would never be heard to end."""
    started: list[WorkerProcess] = []
    monkeypatch.setattr(lifecycle, "watch", started.append)

    def fail(_: object) -> None:
        started[0].forget_after_fork()
        assert started[0]._pipe.closed
        assert started[0]._theirs.closed
        raise OSError("no process")

    monkeypatch.setattr(SpawnProcess, "start", fail)
    with pytest.raises(OSError, match="no process"):
        WorkerProcess("holdfast-worker-1", b"")
    WorkerProcess.__new__(WorkerProcess).forget_after_fork()


def test_the_death_of_a_worker_process_is_heard_though_it_has_left_a_copy_of_itself(
    service: QueueService, tasks: Tasks, journal: Path
) -> None:
    """The copy has all that was open in it."""
    service.consumer(tasks, processes=1)(handle)
    tasks.put_many([Task(0, "fork and die"), Task(1)])
    try:
        run_until_finished(service, "tasks")
    finally:
        for word, _, pid in noted(journal):
            if word == "forked":
                os.kill(int(pid), signal.SIGKILL)
    assert done(journal) == [1]
    (letter,) = tasks.dead.list()
    assert "was killed by SIGKILL while it handled offset 0" in letter.detail


def test_a_copy_of_a_worker_process_that_returns_from_the_handler_answers_for_nobody(
    service: QueueService, tasks: Tasks, journal: Path
) -> None:
    """Else the next message would be acknowledged by that answer, whatever becomes of it."""
    service.consumer(tasks, processes=1)(handle)
    tasks.put_many([Task(0, "fork and return"), Task(1, "reject"), Task(2, "reject"), Task(3)])
    run_until_finished(service, "tasks")
    assert [letter.offset for letter in tasks.dead.list()] == [1, 2]
    assert done(journal)[-1] == 3
