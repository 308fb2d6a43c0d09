"""A verdict that passes from one owner to another is all or nothing, whichever of them dies, and wherever.

One handle owns the log, the other the group; either is asked. ``HOLDFAST_TEST_CRASH_FULL=1`` kills at each change that
a process makes to the disk, and not at every fourth.
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
from holdfast.queue.prepared.own_votes import OwnVotes
from support.builders.handles import handle_of
from support.builders.transactions import FILE_BYTES, after, cut_power, open_queue, prepare, waiting
from support.processes.children import Signal, child
from support.processes.threads import wait_until
from support.storages.simulated_storage import SimulatedStorage

FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
STRIDE = 1 if FULL else 4  # of three kinds of crashes at each change of a simulated disk: so each kind has its turn
VERDICTS = {"commit": True, "abort": False}
SIDES = ("produce", "consume")
KINDS = ("acks", "both")
CHANGES = ("open", "pwritev", "ftruncate", "posix_fallocate", "fsync", "fdatasync", "rename", "unlink")
HELD = [b"two", b"three"]


@pytest.fixture(autouse=True)
def _silence(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of recoveries say what they did; a failure would drown in it."""
    caplog.set_level(logging.CRITICAL, "holdfast")


def decide(queue: PersistentQueue, verdict: str) -> None:
    """Decide the transaction."""
    if verdict == "commit":
        queue.commit_prepared("t")
    else:
        queue.abort_prepared("t")


def judge(shown: list[bytes], is_in_doubt: bool, kind: str, verdict: str, *, is_told: bool) -> None:
    """Assert that a transaction is in doubt, or decided as was asked, both halves of it."""
    decided = after(kind, committed=VERDICTS[verdict])
    if is_in_doubt:
        assert not is_told, "it was answered, and is in doubt"
        assert shown == HELD
    else:
        assert shown == decided


# -- Every change of a simulated disk ----------------------------------------------------------------------------------


@contextmanager
def reopened(storage: SimulatedStorage, order: tuple[str, ...]) -> Iterator[tuple[PersistentQueue, PersistentQueue]]:
    """Open the sides anew, in an order; yield who decides, and who takes."""
    with ExitStack() as stack:
        queues = {mode: stack.enter_context(open_queue(storage, mode=mode)) for mode in order}
        yield queues[order[-1]], queues.get("consume", queues[order[-1]])


ORDERS_OF_OPENING = (("exclusive",), ("produce", "consume"), ("consume", "produce"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("asked", SIDES)
def test_a_crash_at_any_change_leaves_both_halves_or_neither(asked: str, verdict: str, kind: str) -> None:
    """A kill, and losses of power; then it is decided by either side, whichever is opened first."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two", b"three"])
        prepare(queue, kind, "t")
    begun = len(storage.log)
    with open_queue(storage, mode="produce") as producer, open_queue(storage, mode="consume") as consumer:
        decide({"produce": producer, "consume": consumer}[asked], verdict)
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
            with reopened(crashed, ORDERS_OF_OPENING[number // STRIDE % 3]) as (decider, taker):
                is_in_doubt = bool(decider.prepared())
                judge(waiting(taker), is_in_doubt, kind, verdict, is_told=count >= told)
                if is_in_doubt:
                    decide(decider, verdict)
                assert decider.prepared() == taker.prepared() == []
                wait_until(lambda taker=taker: waiting(taker) == after(kind, committed=VERDICTS[verdict]))  # type: ignore[misc]
            with open_queue(crashed.crash_dropping_unsynced()) as queue:
                assert waiting(queue) == after(kind, committed=VERDICTS[verdict])
    assert number > 40, "hardly anything was written"


def test_a_decision_stays_while_the_group_may_not_have_it_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner has noted the outcome, and not synced it; the log is opened anew, and then the power fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise CommitUnknownError("nobody knows", path="/orders")

    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two", b"three"])
        nonce = prepare(queue, "both", "t")._nonce
    consumer = open_queue(storage, mode="consume")
    monkeypatch.setattr(OwnVotes, "settle_vote", refuse)
    with open_queue(storage, mode="produce") as producer:
        assert producer.commit_prepared("t") == range(3, 4)
    assert handle_of(consumer).require_read_side().resolve(nonce, is_committed=True, is_durable=False)
    with open_queue(storage, mode="produce") as producer:
        for _ in range(2 * FILE_BYTES // 1000):  # into the next data files, to which what has ended is not carried
            producer.put(b"later".ljust(1000))
    storage = cut_power(storage, consumer)
    with open_queue(storage) as queue:
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
    """Make a queue of three messages with one transaction in doubt, which nobody owns."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put_many([b"one", b"two", b"three"])
        prepare(queue, kind, "t")


def survives(path: Path, mode: str, verdict: str, number: int) -> bool:
    """Have a process decide that owns one side, and dies at that change; return whether it came to the end."""
    done = Signal()

    def work() -> None:
        with PersistentQueue(path, mode=mode, lock_timeout=5) as queue:
            dies_at(number)
            decide(queue, verdict)
            done.send()

    with child(work) as process:
        status = process.wait()
    done.close()
    assert status in (0, -signal.SIGKILL)
    return status == 0


def settle(queue: PersistentQueue, kind: str, verdict: str, path: Path, *, is_told: bool) -> None:
    """Judge what is there with the handle that lives, decide what is in doubt, and judge what a later life sees."""
    is_in_doubt = bool(queue.prepared())
    assert not (is_told and is_in_doubt)
    decide(queue, verdict)
    assert queue.prepared() == []
    queue.close()
    with PersistentQueue(path, mode="exclusive") as both:
        assert waiting(both) == after(kind, committed=VERDICTS[verdict])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("asked", SIDES)
def test_who_asks_is_killed_at_any_change(tmp_path: Path, asked: str, verdict: str, kind: str) -> None:
    """The owner of the other side lives on, and decides; half of it is never there."""
    number, is_over = 1, False
    while not is_over:
        path = tmp_path / str(number)
        left_in_doubt(path, kind)
        with PersistentQueue(path, mode=SIDES[1 - SIDES.index(asked)]) as owner:
            is_over = survives(path, asked, verdict, number)
            settle(owner, kind, verdict, path, is_told=is_over)
        number += STRIDE
    assert number > 1 + STRIDE, "it changed nothing"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("asked", SIDES)
def test_who_is_asked_is_killed_at_any_change(tmp_path: Path, asked: str, verdict: str, kind: str) -> None:
    """Who asks takes its place, or tries again; half of it is never there."""
    number, is_over = 1, False
    while not is_over:
        path = tmp_path / str(number)
        left_in_doubt(path, kind)
        opened, go_on = Signal(), Signal()

        def work(path: Path = path, number: int = number, opened: Signal = opened, go_on: Signal = go_on) -> None:
            with PersistentQueue(path, mode=SIDES[1 - SIDES.index(asked)], lock_timeout=5):
                dies_at(number)
                opened.send()
                go_on.wait()

        with child(work) as owner:
            opened.wait()
            with PersistentQueue(path, mode=asked) as queue:
                is_told = False
                with suppress(HoldfastError):
                    decide(queue, verdict)
                    is_told = True
                go_on.send()
                is_over = owner.wait() == 0
                settle(queue, kind, verdict, path, is_told=is_told)
        opened.close()
        go_on.close()
        number += STRIDE
    assert (asked == "consume" and kind == "acks") or number > 1 + STRIDE, "it changed nothing"
