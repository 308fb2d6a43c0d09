"""Transactions over several queues: who may do what, and what it comes to."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import (
    ClosedError,
    ConfigError,
    PersistentQueue,
    QueuesTransaction,
    StaleReceiptError,
    TransactionStateError,
    UsageError,
)
from holdfast.queue.transactions.transaction_state import State
from support.builders.clocks import FakeClock
from support.builders.transactions import INVOICES, cut_power, kill, open_queue, waiting
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage

Queues = tuple[PersistentQueue, PersistentQueue]

DEEDS = ("", "p", "a", "pa")
"""What a transaction does to one queue: nothing, put, acknowledge, both."""


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still."""
    return FakeClock()


@pytest.fixture
def queues(storage: SimulatedStorage, clock: FakeClock) -> Iterator[Queues]:
    """Open two queues of two messages each."""
    with open_queue(storage, clock=clock) as first, open_queue(storage, INVOICES, clock=clock) as second:
        for queue in (first, second):
            queue.put_many([b"one", b"two"])
        yield first, second


def work(tx: QueuesTransaction, queue: PersistentQueue, deed: str, put: bytes = b"new") -> None:
    """Do what a deed says."""
    if "a" in deed:
        tx.ack(queue, tx.receive(queue, timeout=0))
    if "p" in deed:
        tx.put(queue, put)


def left(deed: str, put: bytes = b"new") -> list[bytes]:
    """Return what waits behind a committed deed."""
    return [b"one", b"two"]["a" in deed :] + [put] * ("p" in deed)


@pytest.mark.parametrize("crash", [None, kill, cut_power])
@pytest.mark.parametrize(("one", "other"), [*itertools.product(DEEDS, DEEDS)])
def test_puts_and_acknowledgements_happen_in_both_or_in_neither(
    storage: SimulatedStorage, one: str, other: str, crash: type | None
) -> None:
    """Every combination of who puts, receives and acknowledges; a loss of power changes nothing."""
    paths = (Path("/orders"), INVOICES)
    queues = [open_queue(storage, path) for path in paths]
    for queue in queues:
        queue.put_many([b"one", b"two"])
    tx = holdfast.transaction(*queues)
    for queue, deed in zip(queues, (one, other), strict=True):
        work(tx, queue, deed)
        assert waiting(queue) == [b"one", b"two"]["a" in deed :], "visible before commit"
    offsets = tx.commit()
    assert tx.commit() == offsets
    assert [offsets[queue] for queue in queues] == [range(2, 2 + ("p" in deed)) for deed in (one, other)]
    if crash is not None:
        storage = crash(storage, *queues)
        queues = [open_queue(storage, path) for path in paths]
    assert [waiting(queue) for queue in queues] == [left(one), left(other)]
    assert [queue.prepared() for queue in queues] == [[], []]
    for queue in queues:
        queue.close()


@pytest.mark.parametrize("leave", ["abort", "exception", "close", "kill"])
def test_an_aborted_one_leaves_both_as_they_were(
    queues: Queues, storage: SimulatedStorage, clock: FakeClock, leave: str
) -> None:
    """However it ends, also after a restart; after an exception what it took waits, as the back-off says."""
    tx = holdfast.transaction(*queues)
    for queue in queues:
        work(tx, queue, "pa")
    if leave == "abort":
        tx.abort()
        tx.abort()
    elif leave == "exception":
        tx.__exit__(ValueError, ValueError(), None)
    if leave in ("abort", "exception"):
        assert tx.state is State.ABORTED
        delayed = leave == "exception"  # it failed, so it waits
        assert [waiting(queue) for queue in queues] == [[b"one", b"two"][delayed:]] * 2
        assert [queue.stats().delayed for queue in queues] == [delayed] * 2
    elif leave == "close":
        for queue in queues:
            queue.close()
    storage = kill(storage, *queues)
    clock.advance(1)
    for path in (Path("/orders"), INVOICES):
        with open_queue(storage, path, clock=clock) as queue:
            assert waiting(queue) == [b"one", b"two"]
            assert queue.prepared() == []


def test_a_pipeline_in_a_with_block(queues: Queues) -> None:
    """Take in one, put into the other."""
    orders, invoices = queues
    with holdfast.transaction(orders, invoices) as tx:
        with tx.receive(orders, timeout=0) as message:
            tx.put(invoices, b"for " + message.payload, headers={"n": str(message.offset)})
        tx.put_many(invoices, [b"a", b"b"])
        tx.put_stream(invoices, [b"c", b"d"])
        taken_over = orders.receive(timeout=0)
        tx.ack(orders, taken_over)
    assert waiting(orders) == []
    assert waiting(invoices) == [b"one", b"two", b"for one", b"a", b"b", b"cd"]
    assert invoices.peek(3)[2].headers == {"n": "0"}


def test_three_queues_and_one(queues: Queues, storage: SimulatedStorage) -> None:
    """Any number takes part, one alone too."""
    with open_queue(storage, Path("/third")) as third:
        with holdfast.transaction(*queues, third) as tx:
            for queue in queues:
                work(tx, queue, "pa")
            tx.put(third, b"new")
        assert [waiting(queue) for queue in (*queues, third)] == [[b"two", b"new"]] * 2 + [[b"new"]]
        with holdfast.transaction(third) as tx:
            work(tx, third, "pa", b"newer")
        assert waiting(third) == [b"newer"]


def test_large_puts_into_both(queues: Queues, storage: SimulatedStorage) -> None:
    """Files are adopted in either; a loss of power takes nothing."""
    contents = [b"%d" % number * 2000 for number in range(30)]
    with holdfast.transaction(*queues) as tx:
        for queue in queues:
            work(tx, queue, "a")
            tx.put_many(queue, contents)
    storage = cut_power(storage, *queues)
    for path in (INVOICES, Path("/orders")):
        with open_queue(storage, path) as queue:
            assert waiting(queue) == [b"two", *contents]


@pytest.mark.parametrize("modes", [("exclusive", "shared"), ("shared", "exclusive"), ("shared", "shared")])
@pytest.mark.parametrize("acknowledges", ["first", "second"])
def test_a_queue_that_only_acknowledges_takes_part_in_any_mode(
    storage: SimulatedStorage, modes: tuple[str, str], acknowledges: str
) -> None:
    """What was answered survives a loss of power; whose log decides does not depend on the order."""
    with open_queue(storage, mode="exclusive") as queue:
        queue.put_many([b"one", b"two"])
    with machine_links():
        orders, invoices = open_queue(storage, mode=modes[0]), open_queue(storage, INVOICES, mode=modes[1])
        tx = holdfast.transaction(*((orders, invoices) if acknowledges == "first" else (invoices, orders)))
        work(tx, orders, "a")
        work(tx, invoices, "p")
        offsets = tx.commit()
        assert (len(offsets[orders]), offsets[invoices]) == (0, range(1))
        storage = cut_power(storage, orders, invoices)
    with open_queue(storage, mode="exclusive") as queue:
        assert waiting(queue) == [b"two"]
    with open_queue(storage, INVOICES, mode="exclusive") as queue:
        assert waiting(queue) == [b"new"]


def test_a_queue_that_is_looked_at_takes_no_part(queues: Queues, storage: SimulatedStorage) -> None:
    """Nothing is begun at the other one either: its messages are there."""
    with open_queue(storage, INVOICES, mode="read_only") as look, pytest.raises(UsageError, match="read_only"):
        holdfast.transaction(queues[0], look)
    assert waiting(queues[0]) == [b"one", b"two"]
    assert queues[0].prepared() == []


def test_a_queue_that_does_nothing_costs_nothing(queues: Queues, storage: SimulatedStorage) -> None:
    """Nothing is written to it; where it only received, one note, unsynced, that the message is back."""
    orders, invoices = queues
    verbs: list[tuple[str, str]] = []
    storage.before_verb = lambda verb, path: (
        verbs.append((verb, path.suffix)) if path.is_relative_to(INVOICES) else None
    )
    holdfast.transaction(orders, invoices).commit()
    tx = holdfast.transaction(orders, invoices)
    tx.put(orders, b"newer")
    tx.commit()
    assert verbs == []
    tx = holdfast.transaction(orders, invoices)
    tx.receive(invoices, timeout=0)
    tx.put(orders, b"new")
    verbs.clear()
    tx.commit()
    assert verbs == [("write_at", ".position")]
    storage.before_verb = None
    assert waiting(invoices) == [b"one", b"two"]
    assert not storage.tree().keys() & {Path("/orders/prepared"), INVOICES / "prepared"}


def test_naming_queues_that_cannot_take_part(queues: Queues, storage: SimulatedStorage) -> None:
    """None, one twice, a closed one, one that only looks; or another one later."""
    orders, invoices = queues
    for call in (holdfast.transaction, lambda: holdfast.transaction(orders, invoices, orders)):
        with pytest.raises(ConfigError, match="named once"):
            call()
    with open_queue(storage, mode="read_only") as look, pytest.raises(UsageError, match="read_only"):
        holdfast.transaction(invoices, look)
    tx = holdfast.transaction(orders)
    for outside in (lambda: tx.put(invoices, b"x"), lambda: tx.receive(invoices), lambda: tx.ack(invoices, [])):
        with pytest.raises(UsageError, match="takes no part"):
            outside()
    tx.abort()
    invoices.close()
    with pytest.raises(ClosedError):
        holdfast.transaction(orders, invoices)


def test_a_delivery_belongs_to_the_queue_it_came_from(queues: Queues) -> None:
    """Naming the wrong queue is found, though the offsets are alike."""
    orders, invoices = queues
    tx = holdfast.transaction(orders, invoices)
    message = tx.receive(orders, timeout=0)
    tx.receive(invoices, timeout=0)
    with pytest.raises(StaleReceiptError):
        tx.ack(invoices, message)
    with pytest.raises(TransactionStateError):
        message.ack()
    tx.ack(orders, message)
    tx.commit()
    assert [waiting(queue) for queue in queues] == [[b"two"], [b"one", b"two"]]
