"""The desk of a group's owner, and whoever stands in for one, when the disk refuses or something is at fault."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import FlushPolicy, ForkedError, StorageError
from holdfast.errors import HoldfastError
from holdfast.persistence.exchange.mailbox import TEXT_BYTES_MAX, Answer, Mailbox
from holdfast.persistence.exchange.requests import ASK, RequestName, list_requests, write_verb
from holdfast.persistence.filesystem.locks import SideLock, try_acquire
from holdfast.persistence.format.constants import ANSWER_DONE, ANSWER_ERROR
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.queue_options import Options
from holdfast.queue.prepared.outcome_memory import OutcomeMemory
from holdfast.queue.prepared.own_votes import OwnVotes
from holdfast.queue.server.group_desk import GroupDesk
from holdfast.queue.server.group_visitor import GroupVisitor
from holdfast.queue.threads.keyed_lock import KeyedLock
from holdfast.queue.verbs import group_verbs
from holdfast.queue.verbs.group_verbs import VERBS
from support.builders.clocks import FakeClock
from support.builders.requested import DATA_FILE_BYTES, DIRECTORY, ROOT, queue_in
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

POLICY = FlushPolicy.every_commit()


class Bench:
    """An owner of the default group that serves when it is told to, and a handle that asks."""

    def __init__(self, storage: SimulatedStorage, handle: QueueHandle, desk: GroupDesk) -> None:
        self.storage, self.handle, self.desk = storage, handle, desk
        storage.make_directory(DIRECTORY.requests)
        self.mailbox = Mailbox(storage, DIRECTORY.requests)

    def ask(self, number: int, verb: str = "pause") -> RequestName:
        """Ask for a verb."""
        name = RequestName(self.mailbox.name, number, ASK, "default")
        write_verb(self.storage, name.path(DIRECTORY), {"verb": verb, "until_ns": None, "reason": "why"})
        return name

    def answer(self, number: int) -> Answer:
        """Return the answer."""
        found = self.mailbox.read(number)
        assert found is not None, f"{number} was not answered"
        return found

    def left(self) -> list[str]:
        """Return the requests that are still there."""
        names = map(RequestName.parse, list_requests(self.storage, DIRECTORY.requests))
        return sorted(f"{each.number} {each.kind}" for each in names if each is not None)


@contextmanager
def owning(storage: SimulatedStorage) -> Iterator[Bench]:
    """Own the group."""
    handle = QueueHandle(
        storage, FakeClock(), ROOT, Options("consume", "default", {"flush": POLICY, "data_file_bytes": DATA_FILE_BYTES})
    )
    memory = OutcomeMemory(handle)
    desk = GroupDesk(handle, OwnVotes(handle, memory, KeyedLock()))
    try:
        yield Bench(storage, handle, desk)
    finally:
        desk.close()
        memory.close()
        handle.close()


@pytest.fixture
def bench(storage: SimulatedStorage) -> Iterator[Bench]:
    """One over a queue with a message."""
    with queue_in(storage, POLICY) as queue:
        queue.put(b"a")
    with owning(storage) as opened:
        yield opened


def test_a_request_that_cannot_be_taken_waits_and_holds_nobody_up(bench: Bench) -> None:
    """The next round does it; there was nothing else to do."""
    first = bench.ask(64)
    bench.ask(65)
    with refusing(bench.storage, "rename", str(first)):
        assert bench.desk.serve()
    assert bench.mailbox.read(64) is None
    assert bench.answer(65).verdict == ANSWER_DONE
    assert bench.desk.serve()
    assert bench.answer(64).verdict == ANSWER_DONE
    assert (bench.left(), bench.desk.serve()) == ([], False)


def test_a_request_that_is_withdrawn_when_its_turn_comes_is_not_answered(bench: Bench) -> None:
    """It was listed just before."""
    name = bench.ask(64)
    bench.storage.remove(name.path(DIRECTORY))
    bench.desk.serve([str(name)])
    assert bench.mailbox.read(64) is None


def test_what_does_not_fit_an_answer_is_done_and_said_not_to_fit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """No verb of ours returns so much; one of a later version may."""
    monkeypatch.setitem(VERBS, "pause", lambda *_: {"text": "x" * (TEXT_BYTES_MAX + 1)})
    bench.ask(64)
    assert bench.desk.serve()
    assert bench.answer(64).verdict == ANSWER_ERROR
    assert "does not fit an answer" in bench.answer(64).text
    assert bench.left() == []


def test_an_answer_that_cannot_be_written_gives_the_request_back(bench: Bench) -> None:
    """It is done anew: verbs may be done twice."""
    bench.ask(64)
    with refusing(bench.storage, "write_at", ".answers"):
        assert not bench.desk.serve()
    assert bench.left() == ["64 ask"]
    bench.desk.serve()
    assert (bench.answer(64).verdict, bench.left()) == (ANSWER_DONE, [])


def test_a_request_that_is_answered_and_cannot_be_removed_is_left_to_the_next_owner(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The present one does not come back to it, round after round."""
    bench.ask(64)
    with refusing(bench.storage, "remove", "default"):
        bench.desk.serve()
    assert "cannot be removed" in caplog.text
    assert bench.answer(64).verdict == ANSWER_DONE
    assert not bench.desk.serve()
    assert bench.left() == ["64 taken"]


def test_an_answered_request_that_is_gone_already_is_done(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes over has removed it."""
    name = bench.ask(64)

    def remove(verb: str, path: object) -> None:
        if verb == "remove":
            bench.storage.before_verb = None
            bench.storage.remove(name.as_kind("taken").path(DIRECTORY))

    bench.storage.before_verb = remove
    bench.desk.serve()
    assert bench.storage.before_verb is None
    assert (bench.answer(64).verdict, bench.left()) == (ANSWER_DONE, [])


@pytest.mark.parametrize("fault", [ZeroDivisionError("ours"), HoldfastError("refused")], ids=repr)
def test_whoever_asks_is_told_of_a_fault_of_ours(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    """And does not wait for an answer in vain; what is no refusal is logged with its traceback."""

    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(group_verbs, "perform", fail)
    bench.ask(64)
    bench.desk.serve()
    assert bench.answer(64).verdict == ANSWER_ERROR
    assert ("Traceback" in caplog.text) == isinstance(fault, ZeroDivisionError)


# -- Where nobody owns the group ---------------------------------------------------------------------------------------


@contextmanager
def visiting(storage: SimulatedStorage) -> Iterator[tuple[GroupVisitor, QueueHandle]]:
    """Have a producer's handle, and a visitor for the group that nobody owns."""
    with queue_in(storage, POLICY) as queue:
        queue.put(b"a")
    handle = QueueHandle(
        storage, FakeClock(), ROOT, Options("produce", "default", {"flush": POLICY, "data_file_bytes": DATA_FILE_BYTES})
    )
    try:
        yield GroupVisitor(handle, "default"), handle
    finally:
        handle.close()


def test_a_visitor_that_cannot_open_the_group_says_why(storage: SimulatedStorage) -> None:
    """And where it can, the next time, that is forgotten."""
    with visiting(storage) as (visitor, _):
        with refusing(storage, "open", "queue.json"):
            visitor.call()
        assert isinstance(visitor.failure, StorageError)
        assert not visitor.is_there
        visitor.call()
        assert visitor.is_there
        assert visitor.failure is None


def test_a_visitor_leaves_a_group_alone_that_somebody_owns(storage: SimulatedStorage) -> None:
    """Its owner serves; that is no failure."""
    with visiting(storage) as (visitor, _):
        owner = try_acquire(storage, DIRECTORY.group("default") / "read.lock")
        visitor.call()
        assert (visitor.is_there, visitor.failure) == (False, None)
        assert owner is not None
        owner.release()


def test_one_thread_visits_for_all(storage: SimulatedStorage) -> None:
    """Whoever calls beside it returns at once."""
    with visiting(storage) as (visitor, _):
        with visitor._turn:
            beside = threading.Thread(target=visitor.call)
            beside.start()
            beside.join(10)
            assert not beside.is_alive()
            assert not visitor.is_there
        visitor.call()
        assert visitor.is_there


def test_a_visitor_that_cannot_leave_in_order_says_so(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has done is done."""
    really = QueueHandle.close

    def fail(self: QueueHandle) -> None:
        really(self)
        if self.options.is_visitor:
            raise StorageError("the disk refuses", path="/q")

    with visiting(storage) as (visitor, _):
        monkeypatch.setattr(QueueHandle, "close", fail)
        visitor.call()
        monkeypatch.undo()
        assert "could not leave" in caplog.text
        assert visitor.is_there


def test_in_a_forked_child_a_visit_is_the_parents(storage: SimulatedStorage) -> None:
    """Copies of its handles are closed, and nothing is written."""
    with visiting(storage) as (visitor, asking):
        options = Options("consume", "default", {"flush": POLICY, "data_file_bytes": DATA_FILE_BYTES})
        under_way = QueueHandle(storage, FakeClock(), asking.path, options)
        lock = under_way.require_read_side()._lock
        visitor._handle = under_way
        count = storage.mutation_count
        visitor.forget()
        assert visitor._handle is None
        assert storage.mutation_count == count
        with pytest.raises(ForkedError):
            under_way.require_read_side().receive(1, 0)
        lock.release()  # a child's copy of it is closed by itself
        visitor.forget()
        visitor.call()
        assert visitor.is_there


def test_a_visit_is_made_by_one_thread_for_all(storage: SimulatedStorage) -> None:
    """Whoever comes meanwhile does not wait for it."""
    with visiting(storage) as (visitor, _):
        seen: list[bool] = []

        def come_again(verb: str, path: Path) -> None:
            storage.before_verb = None
            visitor.call()
            seen.append(visitor.is_there)

        storage.before_verb = come_again
        visitor.call()
        assert (seen, visitor.is_there) == ([False], True)


def test_a_visitor_that_somebody_is_faster_than_leaves_again(storage: SimulatedStorage) -> None:
    """The group was free when it looked, and has an owner when it comes in."""
    with visiting(storage) as (visitor, _):
        owners: list[SideLock | None] = []

        def be_faster(verb: str, path: Path) -> None:
            if path.name == "queue.json":
                storage.before_verb = None
                owners.append(try_acquire(storage, DIRECTORY.group("default") / "read.lock"))

        storage.before_verb = be_faster
        visitor.call()
        assert (visitor.is_there, visitor.failure) == (False, None)
        (owner,) = owners
        assert owner is not None
        owner.release()
