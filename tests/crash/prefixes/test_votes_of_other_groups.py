"""A transaction that a handle of another group decides is all or nothing, wherever its process dies, or the owner.

``HOLDFAST_TEST_CRASH_FULL=1`` kills at each change that a process makes to the disk, and not at every fourth.
"""

import logging
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import CommitUnknownError, HoldfastError, PersistentQueue
from holdfast.persistence.filesystem import storage as storage_module
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.prepared.vote_settling import VoteSettling
from support.builders.handles import handle_of
from support.builders.transactions import FILE_BYTES, after, cut_power, open_queue, prepare, waiting
from support.owners.machine_link import machine_links
from support.processes.children import Signal, child
from support.storages.simulated_storage import SimulatedStorage

FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
STRIDE = 1 if FULL else 4  # of three kinds of crashes at each change of a simulated disk: so each kind has its turn
VERDICTS = {"commit": True, "abort": False}
KINDS = ("acks", "both")
CHANGES = ("open", "pwritev", "ftruncate", "posix_fallocate", "fsync", "fdatasync", "rename", "unlink")
HELD = [b"two", b"three"]
LIVES: tuple[tuple[Mode, tuple[str, ...]], ...] = (
    ("exclusive", ("other",)),
    ("shared", ("other",)),
    ("shared", ("default", "other")),
    ("exclusive", ("default",)),
)
"""How a queue is opened: the mode, and the groups; the last one decides."""


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of recoveries say what they did; a failure would drown in it."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def leave_in_doubt(queue: PersistentQueue, kind: str) -> None:
    """Put three messages, prepare a transaction of the default group, and make another group."""
    queue.put_many([b"one", b"two", b"three"])
    prepare(queue, kind, "t")
    queue.groups.create("other")


def decide(queue: PersistentQueue, verdict: str) -> None:
    """Decide the transaction."""
    if verdict == "commit":
        queue.commit_prepared("t")
    else:
        queue.abort_prepared("t")


def shown(storage: SimulatedStorage) -> list[bytes]:
    """Return what waits in the default group, to a handle that changes nothing."""
    with open_queue(storage, mode="read_only") as look:
        return waiting(look)


def judge(found: list[bytes], is_in_doubt: bool, kind: str, verdict: str, *, is_told: bool) -> None:
    """Assert that a transaction is in doubt, or decided as was asked, both halves of it."""
    if is_in_doubt:
        assert not is_told, "it was answered, and is in doubt"
        assert found == HELD
    else:
        assert found == after(kind, committed=VERDICTS[verdict])


# -- Every change of a simulated disk ----------------------------------------------------------------------------------


@contextmanager
def opened(storage: SimulatedStorage, life: tuple[Mode, tuple[str, ...]]) -> Iterator[PersistentQueue]:
    """Open a queue in such a life; yield the handle that decides."""
    mode, groups = life
    with machine_links(), ExitStack() as stack:
        yield [stack.enter_context(open_queue(storage, mode=mode, group=group)) for group in groups][-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("life", LIVES[:3], ids=str)
def test_a_crash_at_any_change_leaves_both_halves_or_neither(
    life: tuple[Mode, tuple[str, ...]], verdict: str, kind: str
) -> None:
    """A kill, and losses of power; then it is decided, perhaps again, in each of the lives, in turn, durably."""
    storage = SimulatedStorage()
    with open_queue(storage, mode="exclusive") as queue:
        leave_in_doubt(queue, kind)
    begun = len(storage.log)
    with opened(storage, life) as queue:
        decide(queue, verdict)
        told = len(storage.log)
    choice, number = random.Random(20240611), 0
    for count, moment in enumerate(storage.replay()):
        if count < begun:
            continue
        crashes = (moment.crash_keeping_all(), moment.crash_dropping_unsynced(), moment.random_crash(choice))
        for crashed in crashes:
            number += 1
            if number % STRIDE:
                continue
            with opened(crashed, LIVES[number // STRIDE % len(LIVES)]) as queue:
                is_in_doubt = bool(queue.prepared())
                judge(shown(crashed), is_in_doubt, kind, verdict, is_told=count >= told)
                decide(queue, verdict)
                assert queue.prepared() == []
                powerless = crashed.crash_dropping_unsynced()
            with open_queue(powerless, mode="exclusive") as queue:
                assert queue.prepared() == []
                assert waiting(queue) == after(kind, committed=VERDICTS[verdict])
    assert number > 40, "hardly anything was written"


def test_a_decision_stays_while_the_group_may_not_have_it_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group has noted the outcome, and not synced it; the log goes through many files, and then the power fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise CommitUnknownError("nobody knows", path="/orders")

    storage = SimulatedStorage()
    with open_queue(storage, mode="exclusive") as queue:
        queue.put_many([b"one", b"two", b"three"])
        nonce = prepare(queue, "both", "t")._nonce
    queue = open_queue(storage, mode="exclusive")
    with monkeypatch.context() as patched:
        patched.setattr(VoteSettling, "follow", refuse)
        assert queue.commit_prepared("t") == range(3, 4)
    assert handle_of(queue).require_read_side().resolve(nonce, is_committed=True, is_durable=False)
    for _ in range(2 * FILE_BYTES // 1000):  # into the next data files, to which what has ended is not carried
        queue.put(b"later".ljust(1000))
    storage = cut_power(storage, queue)
    with open_queue(storage, mode="exclusive") as queue:
        assert queue.prepared() == []
        assert waiting(queue)[:3] == after("both", committed=True)


# -- Real processes ----------------------------------------------------------------------------------------------------


def dies_at(number: int) -> None:
    """Kill this process at its change of the disk of that number, from 1 on."""
    count, os_open = 0, os.open

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += call is not os_open or bool(arguments[1] & os.O_CREAT)
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return change

    for name in CHANGES:
        setattr(storage_module.os, name, counted(getattr(os, name)))


def left_in_doubt(path: Path, kind: str) -> None:
    """Leave a closed queue with one transaction in doubt."""
    with PersistentQueue(path, mode="exclusive") as queue:
        leave_in_doubt(queue, kind)


def settle(path: Path, mode: Mode, kind: str, verdict: str, *, is_told: bool) -> None:
    """Judge what is there with a handle of the other group, decide what is in doubt, and judge what is there then."""
    with PersistentQueue(path, mode=mode, group="other", lock_timeout=5) as queue:
        is_in_doubt = bool(queue.prepared())
        with PersistentQueue(path, mode="read_only") as look:
            judge(waiting(look), is_in_doubt, kind, verdict, is_told=is_told)
        decide(queue, verdict)
        assert queue.prepared() == []
    with PersistentQueue(path, mode="exclusive", lock_timeout=5) as queue:
        assert waiting(queue) == after(kind, committed=VERDICTS[verdict])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_who_decides_is_killed_at_any_change(tmp_path: Path, mode: Mode, verdict: str, kind: str) -> None:
    """The next process finds it in doubt or decided; half of it is never there."""
    number, is_over = 1, False
    while not is_over:
        path, done = tmp_path / str(number), Signal()
        left_in_doubt(path, kind)

        def work(path: Path = path, number: int = number, done: Signal = done) -> None:
            with PersistentQueue(path, mode=mode, group="other") as queue:
                dies_at(number)
                decide(queue, verdict)
                done.send()

        with child(work) as process:
            status = process.wait()
        is_told = False
        with suppress(TimeoutError):
            done.wait(0)
            is_told = True
        done.close()
        assert status in (0, -signal.SIGKILL)
        is_over = status == 0
        settle(path, mode, kind, verdict, is_told=is_told)
        number += STRIDE
    assert number > 1 + STRIDE, "it changed nothing"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_an_owner_that_is_asked_is_killed_at_any_change(tmp_path: Path, verdict: str, kind: str) -> None:
    """The client takes its place, and has the answer; half of it is never there."""
    number, is_over = 1, False
    while not is_over:
        path = tmp_path / str(number)
        left_in_doubt(path, kind)
        ready, go_on = Signal(), Signal()

        def own(path: Path = path, number: int = number, ready: Signal = ready, go_on: Signal = go_on) -> None:
            with PersistentQueue(path, mode="shared"):
                ready.send()
                go_on.wait()
                dies_at(number)
                ready.send()
                go_on.wait()

        with child(own) as owner:
            ready.wait()
            with PersistentQueue(path, mode="shared", group="other") as queue:
                assert not queue.is_owner
                go_on.send()
                ready.wait()
                is_told = False
                with suppress(HoldfastError):
                    decide(queue, verdict)
                    is_told = True
                is_over = not queue.is_owner
                go_on.send()
                owner.wait()
                assert is_told
        ready.close()
        go_on.close()
        settle(path, "shared", kind, verdict, is_told=is_told)
        number += STRIDE
    assert number > 1 + STRIDE, "it changed nothing"
