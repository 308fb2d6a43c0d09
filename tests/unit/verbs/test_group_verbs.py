"""Verbs on a consumer group: done by who owns its read side, in whichever process, or by who asks if nobody does."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ClosedError,
    CorruptionError,
    FlushPolicy,
    GroupNotFoundError,
    HoldfastError,
    PersistentQueue,
    QueueLockedError,
    RetryableError,
    StaleReceiptError,
    UsageError,
)
from holdfast.persistence.exchange.mailbox import Answer, Answers, Mailbox
from holdfast.persistence.exchange.requests import ASK, TAKEN, RequestName, write_verb
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import ANSWER_DONE
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.queue_options import Options
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.own_votes import OwnVotes
from holdfast.queue.remote import requester
from holdfast.queue.server.group_desk import GroupDesk
from holdfast.queue.threads.keyed_lock import KeyedLock
from holdfast.queue.verbs.group_verbs import VERBS, perform
from support.builders.clocks import FakeClock
from support.builders.requested import DATA_FILE_BYTES, DIRECTORY, ROOT, answer_in, queue_in
from support.processes.children import Child, Signal, child, run_script
from support.processes.threads import Threads, wait_until
from support.storages.simulated_storage import SimulatedStorage

ASKERS = ["read_only", "produce", "submit"]  # the modes that own no read side


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with three messages, and two groups that nobody owns."""
    path = tmp_path / "orders"
    with PersistentQueue(path) as queue:
        queue.put_many([b"a", b"b", b"c"])
        queue.groups.create("other")
    return path


@pytest.fixture
def done(tmp_path: Path) -> "Journal":
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

    def note(controls: Any, fields: dict[str, Any]) -> dict[str, Any]:
        done.note(fields.get("text"))
        return {"pid": os.getpid(), "end": controls.end, "count": len(fields.get("offsets", ()))}

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

    def tell_much(_: Any, fields: dict[str, Any]) -> dict[str, Any]:
        return {"text": "ä" * int(fields["count"])}

    def interrupt(_: Any, __: dict[str, Any]) -> dict[str, Any]:
        done.note("interrupted")
        raise KeyboardInterrupt

    for verb in (interrupt, note, refuse, sleep, die, fail, tell_much):
        monkeypatch.setitem(VERBS, verb.__name__, verb)


@contextmanager
def owning(path: Path, mode: str = "exclusive", group: str = "default") -> Iterator[Child]:
    """Own the queue in another process."""
    opened = Signal()

    def own() -> None:
        with PersistentQueue(path, mode=mode, group=group, lock_timeout=5):
            opened.send()
            time.sleep(60)

    with child(own) as process:
        opened.wait()
        opened.close()
        yield process


def stop(process: Child) -> None:
    """Have a process stand still, until SIGCONT."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)  # it may run on for a little


def asking(queue: PersistentQueue, verb: str, *, timeout: float = 20, **fields: Any) -> dict[str, Any]:
    """Ask for the queue's group."""
    return queue._engine.group_asker.do({"verb": verb, **fields}, timeout=timeout)


def requests_of(path: Path) -> list[str]:
    """Return the names of the requests that are there, those of living mailboxes and those of dead ones."""
    return [name for name in os.listdir(path / "requests") if not name.endswith(".answers")]


# -- Whoever owns the group does it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["read_only", "submit"])
def test_the_owner_of_both_sides_does_what_another_process_asks(path: Path, done: Journal, mode: str) -> None:
    """Once for each request, and none of them is left."""
    with owning(path) as owner, PersistentQueue(path, mode=mode) as queue:
        for number in range(5):
            assert asking(queue, "note", text=number) == {"pid": owner.pid, "end": 3, "count": 0}
        wait_until(lambda: not requests_of(path))  # answered first, then removed
    assert done.lines() == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("mode", ASKERS)
def test_an_owner_that_only_consumes_does_it_too(path: Path, mode: str) -> None:
    """Whether another process owns the write side, or nobody."""
    with owning(path, "consume") as owner, PersistentQueue(path, mode=mode) as queue:
        assert asking(queue, "note")["pid"] == owner.pid
    with owning(path, "produce"), owning(path, "consume") as owner, PersistentQueue(path, mode="read_only") as queue:
        assert asking(queue, "note")["pid"] == owner.pid


def test_two_groups_are_served_by_their_two_owners(path: Path) -> None:
    """Each passes by what is for the other one; so does who owns the write side, and a third group."""
    with (
        owning(path, "exclusive", "default") as first,
        owning(path, "consume", "other") as second,
        PersistentQueue(path, mode="read_only") as of_first,
        PersistentQueue(path, mode="read_only", group="other") as of_second,
    ):
        for _ in range(3):
            assert asking(of_first, "note")["pid"] == first.pid
            assert asking(of_second, "note")["pid"] == second.pid


@pytest.mark.parametrize("mode", ["exclusive", "consume"])
def test_a_handle_that_owns_the_group_does_it_itself_and_asks_nobody(path: Path, mode: str) -> None:
    """There is no request, and no mailbox."""
    with PersistentQueue(path, mode=mode) as queue:
        assert asking(queue, "note")["pid"] == os.getpid()
        assert not (path / "requests").exists()
        with pytest.raises(UsageError, match="knows no verb 'dance'"):
            asking(queue, "dance")
    with pytest.raises(ClosedError):
        asking(queue, "note")


def test_a_handle_that_never_asks_makes_no_mailbox(path: Path) -> None:
    """And one that asked removes it when it is closed."""
    with PersistentQueue(path, mode="read_only") as queue:
        assert not (path / "requests").exists()
        asking(queue, "note")
        assert len(os.listdir(path / "requests")) == 1
    assert os.listdir(path / "requests") == []


def test_many_offsets_go_there_and_a_short_answer_comes_back(path: Path) -> None:
    """The request is a file of its own; the answer is a slot of the mailbox."""
    with owning(path), PersistentQueue(path, mode="read_only") as queue:
        assert asking(queue, "note", offsets=list(range(200_000)))["count"] == 200_000
        assert asking(queue, "tell_much", count=200) == {"text": "ä" * 200}
        with pytest.raises(HoldfastError, match="does not fit"):
            asking(queue, "tell_much", count=300)
        with pytest.raises(UsageError, match="JSON"):
            asking(queue, "note", text=b"bytes")


# -- Errors come back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "free"])
def test_errors_of_the_owner_come_back(path: Path, owned: bool, caplog: pytest.LogCaptureFixture) -> None:
    """As their classes, with their context; an unknown verb; and a fault of the owner's, which serves on."""
    with ExitStack() as stack:
        if owned:
            stack.enter_context(owning(path))
        queue = stack.enter_context(PersistentQueue(path, mode="read_only"))
        with pytest.raises(StaleReceiptError, match="stale") as stale:
            asking(queue, "refuse", offset=7)
        assert stale.value.offset == 7
        with pytest.raises(UsageError, match="knows no verb 'dance' on a group"):
            asking(queue, "dance")
        with pytest.raises(UsageError, match="until_ns"):
            asking(queue, "pause", until_ns="soon")
        with pytest.raises(HoldfastError, match="unheard of"):
            asking(queue, "fail")
        assert asking(queue, "note")["end"] == 3
        wait_until(lambda: not requests_of(path))


def test_a_damaged_request_is_refused(path: Path) -> None:
    """Somebody has changed it: nothing is done."""
    with owning(path) as owner, PersistentQueue(path, mode="read_only") as queue:
        stop(owner)
        threads = Threads()

        def ask() -> None:
            with pytest.raises(CorruptionError, match="damaged"):
                asking(queue, "note")

        threads.start(ask)
        wait_until(lambda: (path / "requests").exists() and any(".ask." in name for name in requests_of(path)))
        (name,) = requests_of(path)
        (path / "requests" / name).write_bytes(b"00000000\n{}\n")
        os.kill(owner.pid, signal.SIGCONT)
        threads.join()


def test_a_group_that_does_not_exist_cannot_be_asked_for(path: Path) -> None:
    """Not even by who may write: nobody owns it, and nobody can."""
    with PersistentQueue(path, mode="produce", group="nobody") as queue:
        with pytest.raises(GroupNotFoundError) as unknown:
            asking(queue, "note")
        assert unknown.value.group == "nobody"
        wait_until(lambda: not requests_of(path))


# -- Nobody owns the group ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ASKERS)
def test_without_an_owner_who_asks_does_it_and_lets_go(path: Path, done: Journal, mode: str) -> None:
    """On an open read side. The next owner is not refused, and finds nothing left to do."""
    with PersistentQueue(path, mode=mode) as queue:
        for _ in range(3):
            assert asking(queue, "note", text="x") == {"pid": os.getpid(), "end": 3, "count": 0}
        with PersistentQueue(path, mode="consume") as owner:
            assert owner.recovery.clean
            assert owner.get() == b"a"
            assert asking(queue, "note", text="x")["pid"] == os.getpid()
        assert requests_of(path) == []
    assert done.lines() == ["x"] * 4


def test_an_owner_that_comes_during_a_visit_waits_for_it(path: Path, done: Journal) -> None:
    """``lock_timeout=0`` fails because of another owner, never because of somebody who asks."""
    threads = Threads()
    with PersistentQueue(path, mode="read_only") as queue:
        threads.start(partial(asking, queue, "sleep", seconds=0.3))
        wait_until(lambda: done.lines() == ["begun"])
        with PersistentQueue(path, mode="consume") as owner:
            assert len(done.lines()) == 2, "it was done before"
            assert owner.get() == b"a"
            with pytest.raises(QueueLockedError):
                PersistentQueue(path, mode="consume")
        threads.join()


# -- Who dies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exclusive", "consume"])
def test_an_owner_killed_between_request_and_answer_leaves_it_to_who_asked(
    path: Path, done: Journal, mode: str
) -> None:
    """It has taken the request; whoever asked finds the group free, and does it."""
    with owning(path, mode) as owner, PersistentQueue(path, mode="read_only") as queue:
        assert asking(queue, "die", text="done") == {"pid": os.getpid(), "end": 3, "count": 0}
        assert owner.wait() == -signal.SIGKILL
        assert requests_of(path) == []
    assert done.lines() == ["done"]


def test_an_interrupted_visit_leaves_nothing_to_be_done_later(path: Path, done: Journal) -> None:
    """Whoever pressed the key has given up what was asked."""
    with PersistentQueue(path, mode="read_only") as queue:
        with pytest.raises(KeyboardInterrupt):
            asking(queue, "interrupt")
        assert requests_of(path) == []
        assert asking(queue, "note", text="behind")["end"] == 3
    assert done.lines() == ["interrupted", "behind"]


@pytest.mark.parametrize("policy", [FlushPolicy.every_commit(), FlushPolicy.never()], ids=["every_commit", "never"])
def test_an_owner_killed_at_any_call_leaves_each_request_to_the_next_one(done: Journal, policy: FlushPolicy) -> None:
    """Who asked is alive, and is answered; nothing is left, and nothing that was answered is done again."""
    storage = SimulatedStorage()
    queue_in(storage, policy).close()
    storage.make_directory(DIRECTORY.requests)
    mailbox, numbers = Mailbox(storage, DIRECTORY.requests), range(64, 67)
    for number in numbers:
        write_verb(
            storage,
            RequestName(mailbox.name, number, ASK, "default").path(DIRECTORY),
            {"verb": "note", "text": number},
        )

    def serve(storage: SimulatedStorage) -> None:
        handle = QueueHandle(
            storage,
            FakeClock(),
            ROOT,
            Options("consume", "default", {"flush": policy, "data_file_bytes": DATA_FILE_BYTES}),
        )
        desk = GroupDesk(handle, OwnVotes(handle, OutcomeMemory(handle), KeyedLock()))
        while desk.serve():
            pass
        desk.close()
        handle.close()

    begun = len(storage.log)
    serve(storage)
    assert done.lines() == [str(number) for number in numbers]
    assert len(storage.log) >= begun + 9, "renamed, answered and removed"
    for operation_count, is_kept, crashed in storage.prefix_crashes():
        if operation_count < begun or not is_kept:
            continue
        answered = [number for number in numbers if answer_in(crashed, mailbox.name, number) is not None]
        before = len(done.lines())
        serve(crashed)
        for number in numbers:
            answer = answer_in(crashed, mailbox.name, number)
            assert answer is not None, f"request {number} was not answered after {operation_count} operations"
            assert answer.verdict == ANSWER_DONE
        assert done.lines()[before:] == [str(number) for number in numbers if number not in answered]
        assert [name for name in crashed.list(DIRECTORY.requests) if not name.endswith(".answers")] == []


def test_what_was_answered_before_a_crash_is_not_done_again(path: Path, done: Journal) -> None:
    """The owner died between its answer and the removal: who asked has gone on, and may have asked the opposite."""
    directory, storage = QueueDirectory(path), OsStorage()
    storage.make_directory(directory.requests)
    mailbox, answers = Mailbox(storage, directory.requests), Answers(storage, directory.requests)
    for number in (64, 65):
        name = RequestName(mailbox.name, number, TAKEN, "default")
        write_verb(storage, name.path(directory), {"verb": "note", "text": number})
    assert answers.write(mailbox.name, Answer(64, ANSWER_DONE, text="{}"))
    with PersistentQueue(path, mode="consume"):
        wait_until(lambda: not requests_of(path))
    assert done.lines() == ["65"]
    answer = mailbox.read(65)
    assert answer is not None
    assert answer.verdict == ANSWER_DONE
    answers.close()
    mailbox.close()


@pytest.mark.parametrize("mode", ["exclusive", "consume"])
def test_what_dead_askers_left_is_not_done_and_only_who_owns_the_write_side_clears_it_all(
    path: Path, done: Journal, mode: str
) -> None:
    """A consumer removes requests for its own group, since it is the one to pass by them for ever."""
    directory, storage = QueueDirectory(path), OsStorage()
    storage.make_directory(directory.requests)
    dead = "0123456789abcdef"
    own = RequestName(dead, 64, ASK, "default")
    write_verb(storage, own.path(directory), {"verb": "note", "text": "of the dead"})
    left = {str(RequestName(dead, 65, ASK, "other")), f"{dead}-0000000066.staging", f"{dead}-0000000067.batch"}
    left |= {f"{dead}.answers"}
    for each in left:
        (directory.requests / each).touch()
    (directory.requests / "not ours").touch()
    with PersistentQueue(path, mode=mode):
        kept = {"not ours"} if mode == "exclusive" else {"not ours", *left}
        wait_until(lambda: set(os.listdir(directory.requests)) == kept)
    assert done.lines() == []


def test_an_asker_that_is_killed_leaves_nothing_behind(path: Path, done: Journal) -> None:
    """Its request waits in front of an owner that is stopped, and is dropped once that continues."""
    with owning(path) as owner:
        stop(owner)

        def ask() -> None:
            with PersistentQueue(path, mode="read_only") as queue:
                asking(queue, "note", text="of the dead", timeout=60)

        with child(ask):
            wait_until(lambda: (path / "requests").exists() and any(".ask." in name for name in requests_of(path)))
        os.kill(owner.pid, signal.SIGCONT)
        wait_until(lambda: not requests_of(path))
    with PersistentQueue(path):
        wait_until(lambda: os.listdir(path / "requests") == [])
    assert done.lines() == []


# -- Who is busy -------------------------------------------------------------------------------------------------------


def test_an_owner_that_is_busy_is_waited_for(path: Path, done: Journal, threads: Threads) -> None:
    """Requests wait while it does another one, and are done in their order."""
    with owning(path) as owner, PersistentQueue(path, mode="read_only") as queue:
        threads.start(partial(asking, queue, "sleep", seconds=0.6, text="slow"))
        wait_until(lambda: done.lines() == ["begun"])
        assert asking(queue, "note", text="next", timeout=0.01)["pid"] == owner.pid
        threads.join()
    assert done.lines() == ["begun", "slow", "next"]


def test_an_owner_that_is_stopped_costs_the_timeout_and_does_it_never(
    path: Path, done: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is taken back, so that nothing happens when the process continues."""
    monkeypatch.setattr(requester, "ANSWER_SECONDS_MIN", 0.1)
    with owning(path, "consume") as owner, PersistentQueue(path, mode="read_only") as queue:
        stop(owner)
        with pytest.raises(RetryableError, match="does not answer") as silent:
            asking(queue, "note", text="late", timeout=0.2)
        assert silent.value.pid == owner.pid
        os.kill(owner.pid, signal.SIGCONT)
        assert asking(queue, "note", text="in time")["pid"] == owner.pid
        assert requests_of(path) == []
    assert done.lines() == ["in time"]


def test_closing_ends_those_who_wait(path: Path, done: Journal, threads: Threads) -> None:
    """They raise ClosedError, and it is never done."""
    with owning(path) as owner:
        stop(owner)
        queue = PersistentQueue(path, mode="read_only")

        def ask() -> None:
            with pytest.raises(ClosedError):
                asking(queue, "note", text="late")

        threads.start(ask)
        wait_until(lambda: (path / "requests").exists() and any(".ask." in name for name in requests_of(path)))
        queue.close()
        threads.join()
        assert os.listdir(path / "requests") == []
        os.kill(owner.pid, signal.SIGCONT)
    assert done.lines() == []


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "free"])
def test_of_many_askers_each_gets_its_own_answer_once(path: Path, done: Journal, threads: Threads, owned: bool) -> None:
    """Processes and threads; with an owner, or each of them for all."""
    with ExitStack() as stack:
        if owned:
            stack.enter_context(owning(path, "consume"))

        def ask(key: str) -> None:
            with PersistentQueue(path, mode="read_only") as queue:
                each_asks(queue, key)

        def each_asks(queue: PersistentQueue, key: str) -> None:
            for number in range(4):
                count = len(key) + number
                assert asking(queue, "note", text=f"{key} {number}", offsets=[0] * count)["count"] == count

        processes = [stack.enter_context(child(partial(ask, "p" * number))) for number in range(1, 4)]
        queue = stack.enter_context(PersistentQueue(path, mode="submit"))
        for number in range(1, 6):
            threads.start(partial(each_asks, queue, "t" * number))
        threads.join()
        assert [process.wait() for process in processes] == [0, 0, 0]
    keys = ["p" * number for number in range(1, 4)] + ["t" * number for number in range(1, 6)]
    assert sorted(done.lines()) == sorted(f"{key} {number}" for key in keys for number in range(4))


def test_owners_come_and_go_and_every_asker_is_answered(path: Path, done: Journal, threads: Threads) -> None:
    """By SIGKILL: what is asked is done at least once, and no owner is refused because of a visitor."""
    stopped = threading.Event()
    counts = [0, 0]

    def ask(which: int) -> None:
        with PersistentQueue(path, mode="read_only") as queue:
            while not stopped.is_set():
                asking(queue, "note", text=f"{which} {counts[which]}")
                counts[which] += 1

    for which in range(2):
        threads.start(partial(ask, which))
    for _ in range(6):
        with owning(path, "consume"):
            time.sleep(0.1)
        time.sleep(0.05)
    stopped.set()
    threads.join()
    assert min(counts) > 5
    expected = {f"{which} {number}" for which in range(2) for number in range(counts[which])}
    assert set(done.lines()) == expected


def test_a_forked_child_leaves_asking_to_its_parent(tmp_path: Path) -> None:
    """Its copy raises ForkedError and keeps no mailbox locked; the parent asks on."""
    run_script(
        """
import os, sys, warnings
from holdfast import *
from holdfast.queue.verbs.group_verbs import VERBS

warnings.filterwarnings("ignore", category=DeprecationWarning)
VERBS["note"] = lambda controls, fields: {"pid": os.getpid()}
path = sys.argv[1] + "/orders"
PersistentQueue(path).close()
queue = PersistentQueue(path, mode="read_only")
ask = lambda: queue._engine.group_asker.do({"verb": "note"})
assert ask() == {"pid": os.getpid()}
reader, writer = os.pipe()
if (pid := os.fork()) == 0:
    status = 1
    try:
        try:
            ask()
        except ForkedError:
            status = 0
        os.read(reader, 1)
    finally:
        os._exit(status)
assert ask() == {"pid": os.getpid()}
queue.close()
assert os.listdir(path + "/requests") == []
os.write(writer, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
""",
        tmp_path,
    )


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
    """It may come from another version, or from anybody who can write a file."""
    controls = Controls()
    with pytest.raises(UsageError):
        perform(controls, fields)
    assert controls.calls == []
