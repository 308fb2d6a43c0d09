"""Hypothesis drives interleaved transactions over two queues, kills them in the middle of calls, and compares."""

import copy
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast import Empty, TransactionStateError
from support.workloads.transaction_worlds import NAMES, TransactionWorlds

IDS = ("a", "b")
OPEN_MAX = 4
STEPS_BETWEEN_RESTARTS = 5

names = st.sampled_from(NAMES)
sizes = st.sampled_from([0, 10, 10, 3000, 5000])
batches = st.lists(sizes, min_size=1, max_size=3)
orders = st.permutations(NAMES)


class TransactionsAgainstModel(TransactionWorlds, RuleBasedStateMachine):
    """What is done next, and what has to hold."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        TransactionWorlds.__init__(self)
        self.step_count = 0

    @initialize(order=orders)
    def make(self, order: list[str]) -> None:
        """Begin with two new queues."""
        self.open(order)

    def draw_open(self, data: st.DataObject, *, of_one: bool = False) -> int:
        """Choose an open transaction."""
        numbers = [number for number, each in self.model.open.items() if not of_one or len(each.names) == 1]
        return data.draw(st.sampled_from(numbers), "transaction")

    def may_restart(self) -> bool:
        """Whether enough has happened to lose something."""
        return self.step_count > STEPS_BETWEEN_RESTARTS

    def has_open(self) -> bool:
        """Whether there is one."""
        return bool(self.model.open)

    def has_open_of_one(self) -> bool:
        """Whether there is one that can be prepared."""
        return any(len(each.names) == 1 for each in self.model.open.values())

    def has_doubt(self) -> bool:
        """Whether something is prepared."""
        return any(self.model.in_doubt.values())

    # -- Beside the transactions -------------------------------------------------------------------------------------

    @rule(name=names, size=sizes)
    def put(self, name: str, size: int) -> None:
        """Append one message."""
        payload = self.message(size)
        self.queues[name].put(payload)
        self.model.logs[name].append(payload)

    @rule(name=names)
    def get(self, name: str) -> None:
        """Take and acknowledge one message, or find nothing."""
        free = self.model.free(name)
        if free:
            payload = self.queues[name].get(block=False)
            assert payload in free
            self.model.finished[name].add(payload)
        else:
            with pytest.raises(Empty):
                self.queues[name].get(block=False)

    # -- Inside a transaction ----------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.model.open) < OPEN_MAX)
    @rule(data=st.data(), order=orders, count=st.sampled_from([1, 1, 2]), batch=batches)
    def begin_with_puts(self, data: st.DataObject, order: list[str], count: int, batch: list[int]) -> None:
        """Begin one, and put into every queue of it."""
        number = self.begin(order, count)
        for name in self.model.open[number].names:
            self.add(number, name, batch, streams=data.draw(st.booleans(), "streams"))

    @precondition(lambda self: len(self.model.open) < OPEN_MAX)
    @rule(data=st.data(), order=orders, count=st.sampled_from([1, 1, 2]), puts=st.booleans())
    def begin_with_acks(self, data: st.DataObject, order: list[str], count: int, puts: bool) -> None:
        """Begin one, acknowledge in every queue of it, and perhaps put too."""
        number = self.begin(order, count)
        for name in self.model.open[number].names:
            if not self.model.free(name):
                self.put(name, 10)
            self.receive(number, name, inside=data.draw(st.booleans(), "inside"), acks=True)
            if puts:
                self.add(number, name, [10], streams=False)

    @precondition(has_open)
    @rule(data=st.data(), batch=batches, streams=st.booleans())
    def put_inside(self, data: st.DataObject, batch: list[int], streams: bool) -> None:
        """Put more into a transaction that is open."""
        number = self.draw_open(data)
        name = data.draw(st.sampled_from(self.model.open[number].names), "queue")
        self.add(number, name, batch, streams=streams)

    @precondition(has_open)
    @rule(data=st.data(), inside=st.booleans(), acks=st.booleans())
    def take(self, data: st.DataObject, inside: bool, acks: bool) -> None:
        """Take one more into a transaction that is open, or find nothing."""
        number = self.draw_open(data)
        name = data.draw(st.sampled_from(self.model.open[number].names), "queue")
        self.receive(number, name, inside=inside, acks=acks)

    # -- Ending ------------------------------------------------------------------------------------------------------

    @precondition(has_open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Commit an open transaction."""
        self.committing(self.draw_open(data))()

    @precondition(has_open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """Abort an open transaction; what was taken over is its receiver's again."""
        number = self.draw_open(data)
        self.handles[number].abort()
        self.ended([number])

    @precondition(has_open_of_one)
    @rule(data=st.data(), transaction_id=st.sampled_from(IDS))
    def prepare(self, data: st.DataObject, transaction_id: str) -> None:
        """Prepare a transaction, under an id that may be in doubt already."""
        self.preparing(self.draw_open(data, of_one=True), transaction_id)()
        self.tick()

    @precondition(has_doubt)
    @rule(data=st.data(), commits=st.booleans(), by_handle=st.booleans())
    def decide(self, data: st.DataObject, commits: bool, by_handle: bool) -> None:
        """Decide by id, or by the transaction's own handle."""
        name, transaction_id = self.draw_doubt(data)
        self.deciding(name, transaction_id, commits, by_handle)()
        self.tick()

    def draw_doubt(self, data: st.DataObject) -> tuple[str, str]:
        """Choose a prepared transaction."""
        places = [(name, each) for name, found in self.model.in_doubt.items() for each in found]
        return data.draw(st.sampled_from(places), "prepared")

    @rule(name=names, transaction_id=st.sampled_from(IDS))
    def decide_again(self, name: str, transaction_id: str) -> None:
        """What was decided is answered the same, and never otherwise."""
        verdict = self.model.outcome_log[name].get(transaction_id)
        if verdict is None or transaction_id in self.model.in_doubt[name]:
            return
        queue = self.queues[name]
        (queue.commit_prepared if verdict else queue.abort_prepared)(transaction_id)
        with pytest.raises(TransactionStateError):
            (queue.abort_prepared if verdict else queue.commit_prepared)(transaction_id)

    @precondition(has_open)
    @rule(seconds=st.sampled_from([1.0, 31.0, 61.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass: open transactions abort, prepared ones do not."""
        self.clock.advance(seconds)
        expired = self.model.expired(self.clock.monotonic())
        if not any(self.deliveries[number] for number in expired):  # else some are in their receivers' hands
            self.model.abort(expired)
            assert self.seen() == self.model.seen(), "not given back, though the time is over"
        self.ended(expired)

    # -- Restarts ----------------------------------------------------------------------------------------------------

    @precondition(may_restart)
    @rule(name=names)
    def close_and_open(self, name: str) -> None:
        """Close one queue in order, with the transactions that it takes part in, and open it again."""
        self.step_count = 0
        self.queues.pop(name).close()
        self.ended(self.model.taking_part(name))
        self.prepared = {key: handle for key, handle in self.prepared.items() if key[0] != name}
        self.open([name])

    @precondition(may_restart)
    @rule(order=orders, power=st.booleans())
    def crash(self, order: list[str], power: bool) -> None:
        """The process is killed, or the power fails, between two calls: what had returned is there, no more."""
        self.step_count = 0
        self.restart(self.storage.crash_dropping_unsynced() if power else self.storage.crash_keeping_all(), order)
        self.model.crash()

    @precondition(may_restart)
    @rule(data=st.data(), order=orders, at=st.integers(1, 40), seed=st.integers(0, 2**32), power=st.booleans())
    def crash_in_a_call(self, data: st.DataObject, order: list[str], at: int, seed: int, power: bool) -> None:
        """A crash in the middle of a call, before its ``at``-th call of the storage: all of it is there, or nothing."""
        self.step_count = 0
        call = self.draw_call(data)
        storage, countdown, left = self.storage, at, []

        def watch(verb: str, path: Path) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                left.append(storage.random_crash(random.Random(seed)) if power else storage.crash_keeping_all())

        before = copy.deepcopy(self.model)
        storage.before_verb = watch
        call()
        storage.before_verb = None
        self.tick()
        self.restart(left[0] if left else storage.crash_dropping_unsynced(), order)
        before.crash()
        self.model.crash()
        found = self.seen()
        if left and found == before.seen():
            self.model = before
        assert found == self.model.seen(), "neither all of it nor nothing"

    def draw_call(self, data: st.DataObject) -> Callable[[], object]:
        """Choose what is under way at a crash."""
        kinds = ["put"] + ["commit"] * 3 * self.has_open() + ["prepare"] * 2 * self.has_open_of_one()
        kind = data.draw(st.sampled_from(kinds + ["decide"] * 3 * self.has_doubt()), "call")
        if kind == "commit":
            return self.committing(self.draw_open(data))
        if kind == "prepare":
            return self.preparing(self.draw_open(data, of_one=True), data.draw(st.sampled_from(IDS), "id"))
        if kind == "decide":
            return self.deciding(*self.draw_doubt(data), data.draw(st.booleans(), "commits"), False)
        name = data.draw(names, "queue")
        return lambda: self.put(name, 10)

    def teardown(self) -> None:
        """Let go of threads."""
        for queue in self.queues.values():
            queue.close()

    # -- Always ------------------------------------------------------------------------------------------------------

    @invariant()
    def what_is_seen_agrees(self) -> None:
        """What can be taken, what is unfinished, and what is in doubt; nothing is damaged."""
        self.step_count += 1
        if self.queues:
            assert self.seen() == self.model.seen()
            assert all(not queue.recovery.damage for queue in self.queues.values())


TestTransactionsAgainstModel = TransactionsAgainstModel.TestCase
TestTransactionsAgainstModel.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    derandomize=True,  # the same runs everywhere: what fails here fails there
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
