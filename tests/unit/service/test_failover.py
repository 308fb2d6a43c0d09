"""Queues of nodes that died: taken over when their locks are free, finished, and let go of."""

import os
import threading
from pathlib import Path

import pytest

from holdfast import (
    ClosedError,
    ConfigError,
    Empty,
    PersistentQueue,
    QueueLockedError,
    QueueNotFoundError,
    StorageError,
    UsageError,
)
from holdfast.queue.options.queue_options import Mode
from holdfast.service import failover
from holdfast.service.queue_service import QueueService
from holdfast.service.typed_queue import TypedQueue
from support.processes.children import Child


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(failover, "UNFINISHED_SECONDS", 0.01)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The service's directory of another node."""
    return tmp_path / "node-7"


def leave_behind(directory: Path, *bodies: object) -> Path:
    """Have a node put these into its queue of orders, take the first one, and be killed; return the queue's path."""

    def work() -> None:
        node = QueueService(directory, mode="exclusive", catalog=False).queue("orders")
        node.put_many(bodies)
        node.receive(timeout=0)
        os.kill(os.getpid(), 9)

    child = Child(work)
    assert child.wait() == -9
    return directory / "orders"


def bodies_of(queue: TypedQueue[object], count: int) -> list[object]:
    """Take and acknowledge so many messages; return what was put."""
    taken = []
    for _ in range(count):
        with queue.receive(timeout=10) as message:
            taken.append(message.body)
    return taken


def test_what_a_dead_node_left_is_taken_with_ones_own(service: QueueService, elsewhere: Path) -> None:
    """Also what it had in hand when it died, counted; nothing is left there."""
    path = leave_behind(elsewhere, "a", "b", "c")
    orders = service.queue("orders", also_read=[path])
    orders.put("own")
    with orders.receive(timeout=10) as message:
        assert (message.body, message.delivery_count) == ("a", 2)
    assert sorted(map(str, bodies_of(orders, 3))) == ["b", "c", "own"]
    with pytest.raises(Empty):
        orders.receive(timeout=0.05)
    with PersistentQueue(path, mode="read_only") as queue:
        assert queue.stats().depth == 0


def test_batches_and_acknowledgements_know_where_they_came_from(service: QueueService, elsewhere: Path) -> None:
    """Deliveries of both queues are finished in one call."""
    path = leave_behind(elsewhere, "a", "b", "c")
    orders = service.queue("orders", also_read=[path])
    orders.put_many(["own", "own"])
    taken = [each for _ in range(3) for each in orders.receive_many(10, timeout=10)]
    assert len(taken) == 5
    orders.ack(taken)
    assert orders.stats().depth == 0
    with PersistentQueue(path, mode="read_only") as queue:
        assert queue.stats().depth == 0


def test_a_transaction_acknowledges_what_a_dead_node_left(service: QueueService, elsewhere: Path) -> None:
    """The queue that was taken over takes part in it."""
    path = leave_behind(elsewhere, "a")
    orders = service.queue("orders", also_read=[path])
    invoices = service.queue("invoices")
    message = orders.receive(timeout=10)
    with service.transaction() as tx:
        tx.put(invoices, "invoice for a")
        tx.ack(message)
    assert invoices.receive(timeout=0).body == "invoice for a"
    with PersistentQueue(path, mode="read_only") as queue:
        assert queue.stats().depth == 0


def test_a_queue_is_let_go_of_when_it_is_finished_and_taken_over_again(service: QueueService, elsewhere: Path) -> None:
    """The node may come back, and die again."""
    path = leave_behind(elsewhere, "a")
    orders = service.queue("orders", also_read=[path])
    assert bodies_of(orders, 1) == ["a"]
    while len(orders.failover.queues) > 1:
        with pytest.raises(Empty):
            orders.receive(timeout=0.02)
    leave_behind(elsewhere, "b")
    assert bodies_of(orders, 1) == ["b"]


def test_a_disk_that_fails_when_a_finished_queue_is_closed_stops_no_take(
    service: QueueService, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; the messages of the queue itself come as before."""
    path = leave_behind(elsewhere, 1)
    orders = service.queue("orders", type=int)
    service.adopt(path)
    (_, adopted) = orders.failover.queues
    close = adopted.close

    def fail() -> None:
        close()
        raise StorageError("the disk of the dead node is gone")

    monkeypatch.setattr(adopted, "close", fail)
    assert bodies_of(orders, 1) == [1]
    while orders.failover.paths:
        with pytest.raises(Empty):
            orders.receive(timeout=0.02)
    orders.put(2)
    assert bodies_of(orders, 1) == [2]
    assert f"cannot close {path}, which was taken over: the disk of the dead node is gone" in caplog.text


def test_a_node_that_lives_is_left_alone_until_it_dies(service: QueueService, elsewhere: Path) -> None:
    """It holds its locks; when they are free, a consumer that waits already is given what is left."""
    with QueueService(elsewhere, mode="exclusive", catalog=False) as node:
        theirs = node.queue("orders")
        theirs.put("theirs")
        orders = service.queue("orders", also_read=[theirs.path])
        with pytest.raises(Empty):
            orders.receive(timeout=0.05)
        taken: list[object] = []
        waiting = threading.Thread(target=lambda: taken.extend(bodies_of(orders, 1)))
        waiting.start()
    waiting.join(60)
    assert taken == ["theirs"]


def test_what_is_not_there_yet_is_waited_for(service: QueueService, elsewhere: Path) -> None:
    """A node that has never begun has left nothing, and nothing is made in its place."""
    orders = service.queue("orders", also_read=[elsewhere / "orders"])
    orders.put("own")
    assert bodies_of(orders, 1) == ["own"]
    with pytest.raises(Empty):
        orders.receive(timeout=0.05)
    assert not elsewhere.exists()


def test_adopting_takes_over_at_once_and_until_it_is_finished(service: QueueService, elsewhere: Path) -> None:
    """Under the name that it had, or another."""
    path = leave_behind(elsewhere, "a", "b")
    orders = service.adopt(path)
    assert orders is service.queue("orders")
    with pytest.raises(QueueLockedError):
        PersistentQueue(path, mode="exclusive")
    assert sorted(map(str, bodies_of(orders, 2))) == ["a", "b"]
    while orders.failover.paths:
        with pytest.raises(Empty):
            orders.receive(timeout=0.02)
    PersistentQueue(path, mode="exclusive").close()
    leave_behind(elsewhere, "c")
    late = service.adopt(path, name="late")
    assert bodies_of(late, 1) == ["c"]


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_node_that_lives_is_not_adopted(service: QueueService, elsewhere: Path, mode: Mode) -> None:
    """The error names it; once it is dead it can be."""
    with PersistentQueue(elsewhere, mode=mode) as node:
        node.put(b'"a"')
        with pytest.raises(QueueLockedError):
            service.adopt(elsewhere)
    assert bodies_of(service.adopt(elsewhere), 1) == ["a"]


def test_what_cannot_be_adopted_is_refused(service: QueueService, elsewhere: Path) -> None:
    """Nothing is made where nothing is, and no queue is read twice."""
    with pytest.raises(QueueNotFoundError):
        service.adopt(elsewhere / "orders")
    assert not elsewhere.exists()
    path = leave_behind(elsewhere, "a")
    orders = service.adopt(path)
    with pytest.raises(ConfigError, match="takes part"):
        service.adopt(path)
    with pytest.raises(ConfigError, match="takes part"):
        service.adopt(orders.path)
    for name in ("looks", "more-looks"):
        PersistentQueue(service.path / name, mode="exclusive").close()
    service.queue("looks", mode="read_only")
    with pytest.raises(UsageError, match="takes nothing"):
        service.adopt(path, name="looks")
    with pytest.raises(UsageError, match="takes nothing"):
        service.queue("more-looks", mode="read_only", also_read=[path])
    assert "more-looks" not in service.queues


def test_closing_gives_back_what_was_taken_over(service: QueueService, elsewhere: Path) -> None:
    """Its locks are free, and what was in hand is there for the next one, uncounted."""
    path = leave_behind(elsewhere, "a")
    orders = service.adopt(path)
    orders.receive(timeout=10)
    service.close()
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.receive(timeout=10).delivery_count == 2


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_time_that_is_none_is_refused_as_by_the_queue_below(
    service: QueueService, elsewhere: Path, timeout: float
) -> None:
    """Whether dead nodes are watched or not."""
    with pytest.raises(ValueError, match="a timeout is"):
        service.queue("orders", also_read=[elsewhere / "orders"]).receive(timeout=timeout)


def test_nothing_is_taken_over_by_a_queue_that_is_being_closed(service: QueueService, elsewhere: Path) -> None:
    """Nobody would let go of it again; a thread that takes just then may look."""
    path = leave_behind(elsewhere, "a")
    orders = service.queue("orders", also_read=[path])
    orders.close()
    with pytest.raises(ClosedError):
        orders.receive(timeout=0)
    with pytest.raises(ClosedError):
        orders.adopt(elsewhere / "more")
    PersistentQueue(path, mode="exclusive").close()


def test_whoever_sleeps_looks_again_when_a_queue_is_adopted(service: QueueService, elsewhere: Path) -> None:
    """A worker that waited for its own queue alone would sleep on."""
    path = leave_behind(elsewhere, "a")
    orders = service.queue("orders")
    sleeping = threading.Thread(target=lambda: orders.failover.wait_for_more(None, lambda: False), daemon=True)
    sleeping.start()
    service.adopt(path)
    sleeping.join(20)
    assert not sleeping.is_alive()


def test_the_failing_disk_of_a_dead_node_stops_nobody(
    service: QueueService, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again at the next look, and the log says so; the queue's own messages come meanwhile."""
    path = leave_behind(elsewhere, "a")
    orders = service.adopt(path)
    orders.put("own")
    adopted = orders.failover.queues[1]

    def fail(**_: object) -> None:
        raise StorageError("the disk refuses")

    with monkeypatch.context() as patch:
        patch.setattr(adopted, "receive", fail)
        assert bodies_of(orders, 1) == ["own"]
    assert f"cannot take from {path}, which was taken over: the disk refuses" in caplog.messages
    assert bodies_of(orders, 1) == ["a"]
