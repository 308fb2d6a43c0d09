"""Services that share a directory: several in one process, and in several."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ConfigError,
    Empty,
    PersistentQueue,
    QueueLockedError,
    QueueService,
    TypedQueue,
)
from support.processes.children import child
from support.processes.threads import wait_until
from support.service.catalogs import select
from support.service.consumers import SECONDS, running


def shared(path: Path, **options: Any) -> QueueService:
    """Return a service that shares its directory."""
    return QueueService(path, mode="shared", **{"catalog": False, **options})


@contextmanager
def both(path: Path, **settings: Any) -> Iterator[tuple[TypedQueue[Any], TypedQueue[Any]]]:
    """Open the queue "orders" by two services: the owner, and its client."""
    with shared(path) as first, shared(path) as second:
        yield first.queue("orders", **settings), second.queue("orders", **settings)


# -- Opening ---------------------------------------------------------------------------------------------------------


def test_services_share_the_queues_of_a_directory(tmp_path: Path) -> None:
    """Each of them puts and takes objects; each queue has an owner of its own."""
    with shared(tmp_path) as first, shared(tmp_path) as second:
        orders, mail = first.queue("orders", type=int), second.queue("mail", type=str)
        others, mails = second.queue("orders", type=int), first.queue("mail", type=str)
        assert [each.raw.is_owner for each in (orders, others, mail, mails)] == [True, False, True, False]
        assert [orders.put(1), others.put(2), mails.put("a")] == [0, 1, 0]
        assert [others.get(timeout=5), orders.get(timeout=5), mail.get(timeout=5)] == [1, 2, "a"]


def test_a_queue_may_be_opened_in_another_mode_than_its_service_has(tmp_path: Path) -> None:
    """The program says so for that queue; ``can_own`` is for those that are shared."""
    with shared(tmp_path, can_own=False) as service, QueueService(tmp_path, mode="exclusive", catalog=False) as plain:
        assert service.queue("mine", mode="exclusive").raw.mode == "exclusive"
        assert plain.queue("ours", mode="shared").raw.is_owner
        ours = service.queue("ours", mode="shared")
        assert not ours.raw.is_owner
        assert service.queue("ours", can_own=False) is ours
        with pytest.raises(ConfigError, match=r"open with can_own=false \(the service\), not with can_own=true"):
            service.queue("ours", can_own=True)
        with pytest.raises(ConfigError, match=r"open with mode='shared' \(\S+, line \d+\), not with mode='exclusive'"):
            service.queue("ours", mode="exclusive")


@pytest.mark.parametrize("options", [{"mode": "alone"}, {"mode": "exclusive", "can_own": False}])
def test_a_mode_that_cannot_work_is_refused_where_the_service_is_made(tmp_path: Path, options: dict[str, Any]) -> None:
    """And not by the first queue."""
    with pytest.raises(ConfigError, match="mode"):
        QueueService(tmp_path, **options)


def test_a_service_that_has_a_queue_alone_keeps_others_out_and_they_it(tmp_path: Path) -> None:
    """Whichever is first; each error names the mode that would do."""
    with shared(tmp_path) as service, QueueService(tmp_path, mode="exclusive", catalog=False) as alone:
        service.queue("ours")
        alone.queue("mine")
        for refused, name in ((alone, "ours"), (service, "mine")):
            with pytest.raises(QueueLockedError, match="mode='shared'"):
                refused.queue(name)


def test_only_the_program_knows_whether_it_may_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the mode."""
    monkeypatch.setenv("HOLDFAST_CAN_OWN", "false")
    with pytest.raises(ConfigError, match="HOLDFAST_CAN_OWN"):
        QueueService(tmp_path, mode="exclusive")


def test_the_configuration_counts_for_queues_that_are_shared(tmp_path: Path) -> None:
    """The file changes the queue; what a program asks for has to be the queue's."""
    tmp_path.joinpath("holdfast.toml").write_text("[queues.orders]\nmax_deliveries = 2\n")
    with both(tmp_path, lease_seconds=7) as (orders, others):
        assert [each.settings["max_deliveries"] for each in (orders, others)] == [2, 2]
        assert [each.settings["lease_seconds"] for each in (orders, others)] == [7, 7]
        with shared(tmp_path) as third, pytest.raises(ConfigError, match="lease_seconds"):
            third.queue("orders", lease_seconds=8)


def test_consumer_groups_of_a_shared_queue_each_get_all_messages(tmp_path: Path) -> None:
    """One service reads for each."""
    with shared(tmp_path) as first, shared(tmp_path) as second:
        orders = first.queue("orders")
        orders.raw.groups.create("audit")
        audited = second.queue("orders", group="audit")
        orders.put("order")
        assert [audited.get(timeout=5), orders.get(timeout=5)] == ["order", "order"]


def test_a_client_service_serves_on_when_the_owner_is_killed(tmp_path: Path) -> None:
    """What it had in hand stays with it."""
    ready = tmp_path / "ready"

    def own() -> None:
        with shared(tmp_path / "data") as service:
            service.queue("orders").put("first")
            ready.touch()
            signal.pause()

    with child(own) as owner:
        wait_until(ready.exists, SECONDS)
        with shared(tmp_path / "data") as service:
            orders = service.queue("orders")
            delivery = orders.receive(timeout=5)
            owner.kill()
            owner.wait()
            assert orders.put("second") == 1
            assert orders.raw.is_owner
            delivery.ack()
            assert (delivery.body, orders.get(timeout=5), orders.stats().depth) == ("first", "second", 0)


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_transaction_over_queues_of_a_shared_service_is_all_or_nothing(tmp_path: Path, is_owner: bool) -> None:
    """Whether this process owns them or another one."""
    with shared(tmp_path) as first, shared(tmp_path) as second:
        for service in (first, second):
            for name in ("orders", "invoices"):
                service.queue(name, type=int)
        service, other = (first, second) if is_owner else (second, first)
        orders, invoices = service.queue("orders"), service.queue("invoices")
        assert orders.raw.is_owner is is_owner
        orders.put(1)
        tx = service.transaction()
        tx.put(invoices, tx.receive(orders, timeout=5).body)
        tx.abort()
        assert other.queue("invoices").stats().depth == 0
        with service.transaction() as tx:
            order = tx.receive(orders, timeout=5)
            tx.put(invoices, order.body * 10)
            tx.ack(order)
        assert other.queue("invoices").get(timeout=5) == 10
        assert other.queue("orders").stats().depth == 0


# -- Consumers -------------------------------------------------------------------------------------------------------


def test_consumers_of_one_queue_run_in_several_services(tmp_path: Path) -> None:
    """Each message is handled once, and each service handles some."""
    handled: list[tuple[int, int]] = []
    is_enough = threading.Barrier(2)
    with ExitStack() as stack:
        services = [stack.enter_context(shared(tmp_path)) for _ in range(2)]
        for which, service in enumerate(services):

            @service.consumer("orders")
            def handle(number: int, which: int = which) -> None:
                if number < 2:
                    is_enough.wait(SECONDS)  # each has one in hand
                handled.append((number, which))

            stack.enter_context(running(service))
        orders = services[0].queue("orders")
        orders.put_many(range(20))
        wait_until(lambda: orders.stats().depth == 0, SECONDS)
    assert sorted(number for number, _ in handled) == list(range(20))
    assert {which for _, which in handled} == {0, 1}


def test_a_waiting_consumer_stops_at_once_and_leaves_nothing_in_hand(tmp_path: Path) -> None:
    """Its take is called off at the owner; the next message is another one's."""
    with both(tmp_path) as (orders, _):
        with shared(tmp_path) as third:
            third.consumer("orders")(lambda order: None)
            with running(third):
                orders.put("first")
                wait_until(lambda: orders.stats().depth == 0, SECONDS)
        orders.put("second")
        assert orders.get(timeout=5) == "second"


def test_a_consumer_asks_for_a_queue_that_takes(tmp_path: Path) -> None:
    """The error says how to open it."""
    with shared(tmp_path) as service:
        service.queue("orders").close()
    with QueueService(tmp_path, catalog=False, mode="read_only") as service:
        service.consumer("orders")(lambda order: None)
        with pytest.raises(ConfigError, match="which takes nothing: open it with 'shared' or 'exclusive'"):
            service.run()


# -- The catalogue ---------------------------------------------------------------------------------------------------


@pytest.mark.extra("catalog")
def test_the_catalogue_is_kept_by_those_that_own_a_queue(tmp_path: Path) -> None:
    """A client leaves it to them."""
    with shared(tmp_path, catalog=True) as first:
        first.queue("orders").put("order")
        with shared(tmp_path, catalog=True) as second:
            second.queue("orders").put("another")
        assert not (tmp_path / "catalog.db").exists()
    assert [row["name"] for row in select(tmp_path, "select name from queues")] == ["orders"]


@pytest.mark.extra("catalog")
def test_a_service_that_was_made_before_a_fork_keeps_the_catalogue_in_the_child(tmp_path: Path) -> None:
    """As under a server that loads the application first."""
    service = shared(tmp_path, catalog=True)

    def work() -> None:
        with service:
            service.queue("orders").put("order")

    with child(work) as process:
        assert process.wait() == 0
    assert [row["name"] for row in select(tmp_path, "select name from queues")] == ["orders"]


# -- Forks ---------------------------------------------------------------------------------------------------------


def test_a_forked_child_runs_the_consumers_of_its_parent_too(tmp_path: Path) -> None:
    """As under a server that loads the application first; those of the parent run on."""
    data, ledger = tmp_path / "data", tmp_path / "ledger"
    with shared(data) as service:
        orders = service.queue("orders", type=int)

        @service.consumer(orders)
        def handle(number: int) -> None:
            with ledger.open("a") as file:
                file.write(f"{number} {os.getpid()}\n")
            if os.getpid() == service_pid:
                go_on.wait(SECONDS)  # the child has the others

        service_pid, go_on = os.getpid(), threading.Event()

        def work() -> None:
            with running(service):
                wait_until(lambda: orders.stats().depth == 1, SECONDS)
            service.close()

        with running(service):
            orders.put(0)
            wait_until(ledger.exists, SECONDS)
            with child(work) as process:
                orders.put_many(range(1, 5))
                assert process.wait() == 0
                forked = process.pid
            go_on.set()
            wait_until(lambda: orders.stats().depth == 0, SECONDS)
    lines = sorted(tuple(map(int, line.split())) for line in ledger.read_text().splitlines())
    assert lines == [(0, service_pid), *((number, forked) for number in range(1, 5))]


def test_a_forked_child_takes_over_what_it_watches_and_not_what_its_parent_was_told_to(tmp_path: Path) -> None:
    """The parent has its own copies open."""
    with QueueService(tmp_path / "dead", mode="exclusive", catalog=False) as dead:
        dead.queue("orders").put(1)
        dead.queue("mail").put(2)
    with shared(tmp_path / "live") as service:
        orders = service.queue("orders", also_read=[tmp_path / "dead" / "orders"])
        orders.adopt(tmp_path / "dead" / "mail")

        def work() -> None:
            assert orders.failover.paths == [tmp_path / "dead" / "orders"]
            assert orders.get(timeout=SECONDS) == 1

        with child(work) as process:
            assert process.wait() == 0
        assert orders.get(timeout=SECONDS) == 2


# -- Dead nodes ------------------------------------------------------------------------------------------------------


def test_one_of_the_services_takes_over_the_queue_of_a_dead_node(tmp_path: Path) -> None:
    """The others are told who has it, or find it taken; its messages are delivered once."""
    with QueueService(tmp_path / "dead", mode="exclusive", catalog=False) as dead:
        dead.queue("orders").put_many([1, 2])
    with shared(tmp_path / "live") as first, shared(tmp_path / "live") as second:
        orders = first.adopt(tmp_path / "dead" / "orders")
        with pytest.raises(QueueLockedError):
            second.adopt(tmp_path / "dead" / "orders")
        orders.put(3)
        assert sorted(orders.get(timeout=5) for _ in range(3)) == [1, 2, 3]
        with pytest.raises(Empty):
            second.queue("orders").get(timeout=0)


def test_queues_of_dead_nodes_that_are_watched_are_read_by_one_service(tmp_path: Path) -> None:
    """Whichever asks first, until they are finished."""
    with PersistentQueue(tmp_path / "dead" / "orders", mode="exclusive") as dead:
        dead.put(b"1")
    settings = {"also_read": [tmp_path / "dead" / "orders"]}
    with both(tmp_path / "live", **settings) as (orders, others):
        others.put(2)
        with orders.receive(timeout=5) as delivery:
            assert delivery.body == 1
            assert others.get(timeout=5) == 2
            with pytest.raises(Empty):
                others.get(timeout=0)
