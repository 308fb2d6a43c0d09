"""What a crash leaves of a transaction over two queues: whoever prepared asks whoever decides, in any order."""

import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import holdfast
from holdfast import HoldfastError, PersistentQueue
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.commit_record import Participant
from holdfast.queue.engine.coordinators import Coordinator, Outcome
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.prepared.other_queues import asking
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from support.builders.handles import end_commit_records, handle_of
from support.builders.transactions import cut_power, kill, open_queue, waiting
from support.owners.machine_link import machine_links
from support.processes.threads import Threads
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.half_commits import ASIDE, BOTH, HUB, OUTCOMES, crash_in_commit, decided, writes_log


def found(hub: PersistentQueue, aside: PersistentQueue) -> tuple[list[bytes], list[bytes]]:
    """Return what waits in the two, where nothing is in doubt."""
    assert [queue.prepared() for queue in (hub, aside)] == [[], []]
    return waiting(hub), waiting(aside)


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("order", ["hub first", "aside first", "one by one", "aside alone"])
def test_they_agree_in_whatever_order_they_are_opened(name: str, order: str) -> None:
    """Who asks first finds the other one closed, open, or recovers it himself."""
    crash, outcome = OUTCOMES[name]
    storage = crash()
    if order == "aside alone":
        with open_queue(storage, ASIDE) as aside:
            assert (aside.prepared(), waiting(aside)) == ([], outcome[1])
        storage = storage.crash_dropping_unsynced()
    if order == "one by one":
        for path, left in zip((HUB, ASIDE), outcome, strict=True):
            with open_queue(storage, path) as queue:
                assert (queue.prepared(), waiting(queue)) == ([], left)
    with ExitStack() as stack:
        paths = [ASIDE, HUB] if order == "aside first" else [HUB, ASIDE]
        opened = {path: stack.enter_context(open_queue(storage, path)) for path in paths}
        assert found(opened[HUB], opened[ASIDE]) == outcome
        assert opened[HUB].put(b"after") == len(outcome[0])


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("order", [(HUB, ASIDE), (ASIDE, HUB)], ids=["hub first", "aside first"])
def test_owners_of_shared_queues_agree_in_either_order(name: str, order: tuple[Path, Path]) -> None:
    """A client that looks has its owner settle what is left; which of the two comes first does not matter."""
    crash, outcome = OUTCOMES[name]
    storage = crash()
    with machine_links(), ExitStack() as stack:
        opened = {path: stack.enter_context(open_queue(storage, path, mode="shared")) for path in order}
        assert found(opened[HUB], opened[ASIDE]) == outcome
    storage = storage.crash_dropping_unsynced()
    with open_queue(storage, HUB, mode="exclusive") as hub, open_queue(storage, ASIDE, mode="exclusive") as aside:
        assert found(hub, aside) == outcome


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_commit_over_two_queues_survives_a_loss_of_power_before_the_second_one_follows(mode: Mode) -> None:
    """What a client has prepared is in a directory that it has just made, whose name is durable before the commit."""
    with machine_links():
        left = crash_in_commit(lambda verb, path: writes_log(ASIDE, verb, path), mode=mode, is_power_lost=True)
    with open_queue(left, HUB, mode="exclusive") as hub, open_queue(left, ASIDE, mode="exclusive") as aside:
        assert found(hub, aside) == BOTH


def with_another_group(storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make group b in the queue that has prepared, and settle nothing."""
    with monkeypatch.context() as unseen:
        unseen.setattr(PreparedResolver, "resolve", lambda _: True)
        with open_queue(storage, ASIDE, mode="exclusive") as aside:
            aside.groups.create("b")


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("name", OUTCOMES)
def test_a_handle_of_another_group_has_the_puts_follow(monkeypatch: pytest.MonkeyPatch, name: str, mode: str) -> None:
    """Its own group is not the one that holds the messages; they agree once that one is opened, too."""
    crash, outcome = OUTCOMES[name]
    storage = crash()
    with_another_group(storage, monkeypatch)
    with machine_links(), open_queue(storage, ASIDE, mode=mode, group="b") as other:
        other.prepared()
        assert waiting(other) == [b"one", b"two"] + [b"new"] * (name == "decided")
    with open_queue(storage, HUB, mode="exclusive") as hub, open_queue(storage, ASIDE, mode="exclusive") as aside:
        assert found(hub, aside) == outcome


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_decision_outlives_the_file_it_stands_in(name: str) -> None:
    """It is carried from file to file until everybody has followed, over restarts and losses of power."""
    crash, outcome = OUTCOMES[name]
    storage = crash()
    for _ in range(3):
        hub = open_queue(storage, HUB)
        hub.put_many([bytes(1000)] * 150)
        hub.get_many(1000)
        storage = cut_power(storage, hub)
    with open_queue(storage, ASIDE) as aside:
        assert (aside.prepared(), waiting(aside)) == ([], outcome[1])


def test_a_decision_ends_once_everybody_has_followed() -> None:
    """Then nothing of it is carried any more."""
    storage = decided()
    with open_queue(storage, HUB) as hub:
        assert handle_of(hub).write_side is not None
        assert len(handle_of(hub).write_side.pending_commit_records) == 1
        with open_queue(storage, ASIDE):
            pass
        end_commit_records(handle_of(hub).write_side)
        assert len(handle_of(hub).write_side.pending_commit_records) == 0


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_group_that_was_deleted_waits_for_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its votes have gone with it; the puts beside them follow all the same, and the decision can end."""
    crash, outcome = OUTCOMES[name]
    storage = crash()
    with_another_group(storage, monkeypatch)
    with monkeypatch.context() as unseen:
        unseen.setattr(PreparedResolver, "resolve", lambda _: True)
        with open_queue(storage, ASIDE, mode="exclusive", group="b") as aside:
            aside.groups.delete("default")
    with (
        open_queue(storage, HUB, mode="exclusive") as hub,
        open_queue(storage, ASIDE, mode="exclusive", group="b") as aside,
    ):
        assert found(hub, aside) == (outcome[0], [b"one", b"two", *outcome[1][-1:]][: 2 + (name == "decided")])
        assert handle_of(hub).write_side is not None
        end_commit_records(handle_of(hub).write_side)
        assert len(handle_of(hub).write_side.pending_commit_records) == 0


def test_while_a_commit_is_under_way_nobody_takes_it_for_aborted() -> None:
    """Looking at the queue that has prepared, in the middle of the commit, settles nothing."""
    storage = SimulatedStorage()
    with open_queue(storage, HUB) as hub, open_queue(storage, ASIDE) as aside:
        aside.put(b"one")
        tx = holdfast.transaction(hub, aside)
        tx.put(hub, b"new")
        tx.put(aside, b"new")
        tx.ack(aside, tx.receive(aside, timeout=0))
        seen: list[int] = []

        def look(verb: str, path: Path) -> None:
            if writes_log(HUB, verb, path):
                storage.before_verb = None
                seen.append(len(aside.prepared()))

        storage.before_verb = look
        tx.commit()
        assert seen == [1]
        assert found(hub, aside) == ([b"new"], [b"new"])


def test_a_participant_that_cannot_follow_now_follows_later() -> None:
    """The commit stands, and returns; the other queue is in step once it is opened again."""
    storage = SimulatedStorage()
    hub, aside = open_queue(storage, HUB), open_queue(storage, ASIDE)
    tx = holdfast.transaction(hub, aside)
    tx.put(hub, b"new")
    tx.put(aside, b"new")

    def fail(verb: str, path: Path) -> None:
        if writes_log(ASIDE, verb, path):
            raise OSError(5, "I/O error")

    storage.before_verb = fail
    assert tx.commit()[hub] == range(1)
    storage.before_verb = None
    assert waiting(hub) == [b"new"]
    with suppress(HoldfastError):
        aside.close()
    storage = kill(storage, hub)
    with open_queue(storage, ASIDE) as aside, open_queue(storage, HUB) as hub:
        assert found(hub, aside) == ([b"new"], [b"new"])


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_queue_is_opened_while_another_one_asks_it_for_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: Threads, mode: Mode
) -> None:
    """That has its lock for a moment, and is waited for: no program fails because another one has just died."""
    with PersistentQueue(tmp_path / "hub") as hub:
        participant = Participant("../hub", hub.queue_id)
    outcome, asked, answers = Coordinator.outcome, threading.Event(), list[Outcome]()

    def slow_outcome(coordinator: Coordinator, nonce: bytes) -> Outcome:
        asked.set()
        time.sleep(0.3)  # so that the other one meets the lock
        return outcome(coordinator, nonce)

    monkeypatch.setattr(Coordinator, "outcome", slow_outcome)
    ask = asking(OsStorage(), SystemClock(), tmp_path / "aside")
    threads.start(lambda: answers.append(ask(participant, b"n" * 16)))
    assert asked.wait(5)
    with PersistentQueue(tmp_path / "hub", mode=mode) as hub:
        assert hub.put(b"a") == 0
    threads.join()
    assert answers == [Outcome.ABORTED]
