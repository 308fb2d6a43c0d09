"""A call that is refused changes nothing, also where a loss of power keeps any part of what was not synced.

Each call is made on a queue that has something of everything, behind puts and acknowledgements that have returned, once
under the policy that syncs each of them and once under the one that syncs none. What had returned stays what it was;
what the call wanted is nowhere; and what returns behind it is as durable as ever.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ClosedError,
    CommitUnknownError,
    ConfigError,
    Delivery,
    DiskFullError,
    Empty,
    ForkedError,
    Full,
    GroupNotFoundError,
    LeaseExpiredError,
    PersistentQueue,
    PoisonedError,
    QueueLockedError,
    RecordTooLargeError,
    ShutDown,
    StaleReceiptError,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
    transaction,
)
from support.builders.clocks import FakeClock
from support.builders.settings import set_first
from support.builders.takes import taken
from support.storages.faults import FaultPlan
from support.workloads.promises import FILE_BYTES, QUEUE, World, losses, open_queue, view_of

Refused = Callable[[World], object]


@dataclass(frozen=True)
class Case:
    """A call that is refused.

    Attributes
    ----------
    call : callable
        Gets all ready, and returns the call that will be refused.
    error : exception type or tuple of those
        What it raises.
    options : dict
        What the queue is opened with.
    ends_puts : bool
        Whether nothing can be put behind it.
    """

    call: Callable[[World], Callable[[], object]]
    error: type[BaseException] | tuple[type[BaseException], ...]
    mode: str = "exclusive"
    options: dict[str, Any] = field(default_factory=dict)
    ends_puts: bool = False


CASES: dict[str, Case] = {}

UNKNOWN = b"nobody knows"
"""What a sync has failed on."""


def case(
    name: str, error: type[BaseException] | tuple[type[BaseException], ...], call: Refused, mode: str = "exclusive",
    *, ends_puts: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Add a call that needs nothing to be got ready."""
    CASES[name] = Case(lambda world: lambda: call(world), error, mode, options, ends_puts)


def prepared_case(
    name: str, error: type[BaseException], call: Callable[[World], Callable[[], object]], *, ends_puts: bool = False,
    **options: Any,
) -> None:  # fmt: skip
    """Add a call that something is got ready for."""
    CASES[name] = Case(call, error, "exclusive", options, ends_puts)


# -- Puts --------------------------------------------------------------------------------------------------------------

FULL = {"maxsize": 11}
"""One message less than there are when the call is made: see ``returned_before``."""

case("put: full", Full, lambda world: world.queue.put(b"no", block=False), **FULL)
case("put once: full", Full, lambda world: world.queue.put(b"no", timeout=0.001, dedup_id="new"), **FULL)
case("put_many: full", Full, lambda world: world.queue.put_many([b"no", b"no"], timeout=0), **FULL)
case("put_many: never fits", RecordTooLargeError, lambda world: world.queue.put_many([b"no"] * 99, timeout=0), **FULL)
case("put: no bytes", TypeError, lambda world: world.queue.put("no"))  # type: ignore[arg-type]
case("put_many: one no bytes", TypeError, lambda world: world.queue.put_many([b"no", 1]))  # type: ignore[list-item]
case("put: too large", RecordTooLargeError, lambda world: world.queue.put(bytes(9000)), record_bytes_max=4000)
case("put_many: one too large", RecordTooLargeError, lambda world: world.queue.put_many([b"no", bytes(9000)]),
     record_bytes_max=4000)  # fmt: skip
case("put: headers are no text", TypeError, lambda world: world.queue.put(b"no", headers={"a": 1}))  # type: ignore[dict-item]
case("put: both kinds of order", UsageError, lambda world: world.queue.put(b"no", priority=1, order_key="a"))
case("put: in read_only", UsageError, lambda world: world.queue.put(b"no"), "read_only")


def _shut_down(verb: Callable[[PersistentQueue], object], *, immediate: bool = False) -> Any:
    def call(world: World) -> Callable[[], object]:
        world.queue.shutdown(immediate=immediate)
        return lambda: verb(world.queue)

    return call


prepared_case("put: shut down", ShutDown, _shut_down(lambda queue: queue.put(b"no")), ends_puts=True)
prepared_case("put_many: shut down", ShutDown, _shut_down(lambda queue: queue.put_many([b"no"])), ends_puts=True)
prepared_case("get: shut down at once", ShutDown, _shut_down(PersistentQueue.get, immediate=True), ends_puts=True)


def _closed(verb: Callable[[PersistentQueue], object]) -> Any:
    def call(world: World) -> Callable[[], object]:
        world.queue.close()
        return lambda: verb(world.queue)

    return call


CLOSED: dict[str, Callable[[PersistentQueue], object]] = {
    "put": lambda queue: queue.put(b"no"),
    "put_many": lambda queue: queue.put_many([b"no"]),
    "get": lambda queue: queue.get(timeout=0),
    "receive": lambda queue: queue.receive(timeout=0),
    "begin": lambda queue: queue.begin(),
    "flush": lambda queue: queue.flush(),
    "pause": lambda queue: queue.pause(),
    "groups.create": lambda queue: queue.groups.create("no"),
    "commit_prepared": lambda queue: queue.commit_prepared("puts"),
    "joint commit": lambda queue: queue.joint_commits.commit("app", 2, ["part-2"]),
    "reserve": lambda queue: queue.reservations.take(),
}
for _name, _verb in CLOSED.items():
    prepared_case(f"{_name}: closed", ClosedError, _closed(_verb), ends_puts=True)


def _forked(world: World) -> Callable[[], object]:
    fork = world.queue.forget_after_fork  # what a forked child does to its copy
    fork()
    return lambda: world.queue.put(b"no")


prepared_case("put: forked", ForkedError, _forked, ends_puts=True)


# -- A disk that refuses -----------------------------------------------------------------------------------------------


def _failing(verb: Callable[[World], object], fault: Callable[[], FaultPlan]) -> Any:
    def call(world: World) -> Callable[[], object]:
        def fail() -> None:
            world.storage.faults = plan = fault()
            try:
                verb(world)
            finally:
                world.storage.faults = None
                assert plan.fired_count, "the disk never refused"

        return fail

    return call


def _put_a_large_one(world: World) -> None:
    world.queue.put(b"no".ljust(40_000))


def _prepare_a_large_one(world: World) -> None:
    tx = world.queue.begin()
    tx.put_many([bytes(9000)] * 4)
    tx.prepare("no")


WRITES, RESERVES = frozenset({"write_at"}), frozenset({"allocate", "open"})


def _full(verb: Callable[[World], object], *, forever: bool = False, verbs: Any = WRITES) -> Any:
    return _failing(verb, lambda: FaultPlan(1, errno.ENOSPC, forever=forever, verbs=verbs))


def _full_in_the_middle(verb: Callable[[World], object]) -> Any:
    return _failing(verb, lambda: FaultPlan(1, errno.ENOSPC, short_write=True, forever=True))


DISK_FULL = {
    "put": _full(lambda world: world.queue.put(b"no")),
    "put, in the middle": _full_in_the_middle(_put_a_large_one),
    "put_many, in the middle": _full_in_the_middle(lambda world: world.queue.put_many([b"no".ljust(9000)] * 3)),
    "put, the next file": _full(lambda world: world.queue.put(bytes(60_000)), forever=True, verbs=RESERVES),
    "commit": _full(lambda world: _commit(world, b"no")),
    "prepare": _full(_prepare_a_large_one),
    "ack": lambda world: _ack_failing(world, world.queue.receive(timeout=0)),
}
for _name, _call in DISK_FULL.items():
    prepared_case(f"{_name}: disk full", DiskFullError, _call)


def _ack_failing(world: World, delivery: Delivery) -> Callable[[], object]:
    plan = FaultPlan(1, errno.ENOSPC, verbs=WRITES)

    def fail() -> None:
        world.storage.faults = plan
        try:
            delivery.ack()
        finally:
            world.storage.faults = None

    return fail


def _commit(world: World, payload: bytes) -> None:
    with world.queue.transaction() as tx:
        tx.put_many([payload, payload])


def _put_and_flush(queue: PersistentQueue) -> None:
    queue.put(UNKNOWN)
    queue.flush()


def _poisoned(world: World) -> Callable[[], object]:
    world.storage.faults = FaultPlan(1, errno.EIO, verbs=frozenset({"sync"}))
    with pytest.raises(CommitUnknownError):
        _put_and_flush(world.queue)
    world.storage.faults = None
    return lambda: world.queue.put(b"no")


prepared_case("put: poisoned", PoisonedError, _poisoned, ends_puts=True)


# -- Takes and deliveries ----------------------------------------------------------------------------------------------


def _take_all(world: World) -> Callable[[], object]:
    assert taken(world.queue)
    return lambda: world.queue.get(timeout=0)


prepared_case("get: empty", Empty, _take_all)
case("get: in read_only", UsageError, lambda world: world.queue.get(timeout=0), "read_only")
case("receive: in read_only", UsageError, lambda world: world.queue.receive(timeout=0), "read_only")

SETTLE: dict[str, Callable[[Delivery], object]] = {
    "ack": lambda each: each.ack(),
    "nack": lambda each: each.nack(),
    "reject": lambda each: each.reject("no"),
    "park": lambda each: each.park(ValueError("no")),
    "release": lambda each: each.release(),
    "extend": lambda each: each.extend(9),
}


def _stale(settle: Callable[[Delivery], object]) -> Any:
    def call(world: World) -> Callable[[], object]:
        delivery = world.queue.receive(timeout=0)
        delivery.release()
        held = world.queue.receive(timeout=0)
        assert held.offset == delivery.offset
        return lambda: settle(delivery)

    return call


def _expired(settle: Callable[[Delivery], object]) -> Any:
    def call(world: World) -> Callable[[], object]:
        assert isinstance(world.clock, FakeClock)
        delivery = world.queue.receive(timeout=0)
        world.clock.advance(31)
        return lambda: settle(delivery)

    return call


def _in_a_transaction(settle: Callable[[Delivery], object]) -> Any:
    def call(world: World) -> Callable[[], object]:
        delivery = world.queue.receive(timeout=0)
        world.queue.begin(timeout=3600).ack(delivery)
        return lambda: settle(delivery)

    return call


for _name, _settle in SETTLE.items():
    prepared_case(f"{_name}: stale", StaleReceiptError, _stale(_settle))
    prepared_case(f"{_name}: lease expired", LeaseExpiredError, _expired(_settle))
    if _name != "park":  # which works past the transaction
        prepared_case(f"{_name}: of a transaction", TransactionStateError, _in_a_transaction(_settle))


def _one_of_a_batch_is_stale(world: World) -> Callable[[], object]:
    batch = world.queue.receive_many(3, timeout=0)
    batch[1].release()
    return lambda: batch.ack(list(batch))


prepared_case("ack of a batch: one is stale", StaleReceiptError, _one_of_a_batch_is_stale)


# -- Transactions ------------------------------------------------------------------------------------------------------


def _ended(end: str, verb: Callable[[Any], object]) -> Any:
    def call(world: World) -> Callable[[], object]:
        tx = world.queue.begin()
        tx.ack(tx.receive(timeout=0))
        getattr(tx, end)()
        return lambda: verb(tx)

    return call


prepared_case("tx.commit: aborted", TransactionStateError, _ended("abort", lambda tx: tx.commit()))
prepared_case("tx.put: aborted", TransactionStateError, _ended("abort", lambda tx: tx.put(b"no")))
prepared_case("tx.put: committed", TransactionStateError, _ended("commit", lambda tx: tx.put(b"no")))
prepared_case("tx.abort: committed", TransactionStateError, _ended("commit", lambda tx: tx.abort()))
prepared_case("tx.prepare: committed", TransactionStateError, _ended("commit", lambda tx: tx.prepare("no")))


def _begun(verb: Callable[[Any], object]) -> Any:
    def call(world: World) -> Callable[[], object]:
        tx = world.queue.begin(timeout=0.05)  # of real time where it waits for room; else the clock stands still
        tx.put(b"no")
        return lambda: verb(tx)

    return call


prepared_case("tx.commit: full", Full, _begun(lambda tx: tx.commit()), **FULL)
prepared_case("tx.prepare: full", Full, _begun(lambda tx: tx.prepare("no")), **FULL)
prepared_case("tx.prepare: id in doubt", TransactionStateError, _begun(lambda tx: tx.prepare("puts")))
prepared_case("tx.prepare: no name", ConfigError, _begun(lambda tx: tx.prepare("a/b")))
prepared_case("tx.prepare: version committed", TransactionStateError,
              _begun(lambda tx: tx.prepare("no", part_of=("app", 1))))  # fmt: skip
prepared_case("tx.put: too large", RecordTooLargeError, _begun(lambda tx: tx.put(bytes(9000))), record_bytes_max=4000)


def _stale_in_a_transaction(world: World) -> Callable[[], object]:
    delivery = world.queue.receive(timeout=0)
    delivery.ack()
    tx = world.queue.begin(timeout=3600)
    tx.put(b"no")
    return lambda: tx.ack(delivery)


prepared_case("tx.ack: stale", StaleReceiptError, _stale_in_a_transaction)


def _times_out(world: World) -> Callable[[], object]:
    assert isinstance(world.clock, FakeClock)
    tx = world.queue.begin(timeout=1)
    tx.put(b"no")
    tx.ack(tx.receive(timeout=0))
    world.clock.advance(2)
    return tx.commit


prepared_case("tx.commit: its time is over", TransactionStateError, _times_out)
case("commit_prepared: not found", TransactionNotFoundError, lambda world: world.queue.commit_prepared("nobody"))
case("abort_prepared: not found", TransactionNotFoundError, lambda world: world.queue.abort_prepared("nobody"))
case("begin: in read_only", UsageError, lambda world: world.queue.begin(), "read_only")
case("joint commit: not found", TransactionNotFoundError,
     lambda world: world.queue.joint_commits.commit("app", 2, ["part-2", "nobody"]))  # fmt: skip
case("joint commit: no part", TransactionStateError, lambda world: world.queue.joint_commits.commit("app", 2, ["puts"]))
case("several: one twice", ConfigError, lambda world: transaction(world.queue, world.queue))
for _name, _refused in {
    "commit_prepared": lambda queue: queue.commit_prepared("puts"),
    "abort_prepared": lambda queue: queue.abort_prepared("acks"),
    "joint commit": lambda queue: queue.joint_commits.commit("app", 2, ["part-2"]),
    "joint abort": lambda queue: queue.joint_commits.abort("app", 2),
    "collect": lambda queue: queue.joint_commits.collect(0),
    "pause": lambda queue: queue.pause(),
    "resume": lambda queue: queue.resume(),
    "dead.retry": lambda queue: queue.dead.retry(0),
    "dead.discard": lambda queue: queue.dead.discard(0),
    "groups.delete": lambda queue: queue.groups.delete("idle"),
    "reserve": lambda queue: queue.reservations.take(),
    "purge": lambda queue: queue.purge(),
}.items():
    case(f"{_name}: in read_only", UsageError, lambda world, refused=_refused: refused(world.queue), "read_only")  # type: ignore[misc]


def _one_is_closed(world: World) -> Callable[[], object]:
    other = world.open_other()
    tx = transaction(world.queue, other)
    tx.put(world.queue, b"no")
    tx.put(other, b"no")
    other.close()
    return tx.commit


prepared_case("several: one is closed", TransactionStateError, _one_is_closed)


def _reservation_decided(world: World) -> Callable[[], object]:
    (held,) = world.queue.reservations.held()
    world.queue.reservations.abort(held)
    return lambda: world.queue.reservations.commit(held)


prepared_case("reservations.commit: given back", TransactionStateError, _reservation_decided)


# -- Groups, dead letters, openings ------------------------------------------------------------------------------------

case("groups.create: no name", ConfigError, lambda world: world.queue.groups.create("a/b"))
case("groups.create: no start", ConfigError, lambda world: world.queue.groups.create("no", start=10**6))
case("groups.create: in read_only", UsageError, lambda world: world.queue.groups.create("no"), "read_only")
case("groups.delete: not found", GroupNotFoundError, lambda world: world.queue.groups.delete("nobody"))
case("groups.delete: in use", QueueLockedError, lambda world: world.queue.groups.delete("default"))
case("dead.retry: none named", UsageError, lambda world: world.queue.dead.retry())
case("dead.discard: none named", UsageError, lambda world: world.queue.dead.discard())
case("pause: no text", TypeError, lambda world: world.queue.pause(reason=1))  # type: ignore[arg-type]
case("open: owned", QueueLockedError, lambda world: open_queue(world.storage))
case("open: no option", ConfigError, lambda world: open_queue(world.storage, data_file_bytes=1))
case("open: another setting", ConfigError,
     lambda world: open_queue(world.storage, mode="shared", data_file_bytes=2 * FILE_BYTES), "shared")  # fmt: skip


# -- Settings ----------------------------------------------------------------------------------------------------------

case("configure: no value", ConfigError, lambda world: world.queue.configure(lease_seconds=60, maxsize=-1))
case("configure: no option", TypeError, lambda world: world.queue.configure(lease=60))  # type: ignore[call-arg]
case("configure: reset what is no option", TypeError, lambda world: world.queue.configure(reset=["lease"]))
case("configure: not together", ConfigError, lambda world: world.queue.configure(lease_seconds=9, max_bytes=FILE_BYTES))
case("configure: in read_only", UsageError, lambda world: world.queue.configure(maxsize=99), "read_only")
case("configure closed: owned", QueueLockedError, lambda world: set_first(QUEUE, storage=world.storage, maxsize=99))
case("configure closed: the group is owned", QueueLockedError,
     lambda world: set_first(QUEUE, storage=world.storage, lease_seconds=60))  # fmt: skip


def _configured(verb: Callable[[World], object]) -> Any:
    def call(world: World) -> Callable[[], object]:
        world.queue.close()
        world.queue = open_queue(world.storage, mode=world.mode, configured={"maxsize": 99}, clock=world.clock)
        return lambda: verb(world)

    return call


prepared_case("configure: the operator's", ConfigError, _configured(lambda world: world.queue.configure(maxsize=98)))
prepared_case("configure: reset the operator's", ConfigError,
              _configured(lambda world: world.queue.configure(lease_seconds=9, reset=["maxsize"])))  # fmt: skip


# -- The test ----------------------------------------------------------------------------------------------------------


def returned_before(world: World) -> None:
    """Make calls that return: what they did stays, as the policy says, whatever is refused then."""
    if world.mode != "read_only":
        for number in range(11, 16):
            if not world.queue.full():
                assert world.queue.put(b"returned %d" % number) == number
        if not world.queue.full():
            world.queue.get(timeout=0)


ONLY_EXCLUSIVE = {
    "put: forked": "a copy of a shared handle opens the queue at its first use",
    "put: poisoned": "the owner of a shared queue gives it up, and the next one does it",
    **dict.fromkeys(
        ("put once: full", "tx.commit: full", "tx.prepare: full"), "an owner waits by the clock, which stands still"
    ),
}
"""What another mode refuses in another way, or not at all."""

TRIED = [
    pytest.param(name, mode, id=f"{name}-{mode}")
    for name, refused in CASES.items()
    for mode in {
        refused.mode: 1,
        **({"shared": 1} if refused.mode == "exclusive" and name not in ONLY_EXCLUSIVE else {}),
    }
]


@pytest.mark.parametrize("policy", ["every_commit", "never"])
@pytest.mark.parametrize(("name", "mode"), TRIED)
def test_a_refused_call_changes_nothing(name: str, mode: str, policy: str, tmp_path: Path) -> None:
    """What was acknowledged is there, and nothing of the call, whichever pieces a loss of power keeps."""
    refused = CASES[name]
    world = World(policy, mode, tmp_path, refused.options, FakeClock())
    durable = view_of(world.start, is_other_used=True)
    try:
        returned_before(world)
        call = refused.call(world)
        known = view_of(world.storage.crash_keeping_all(), is_other_used=True)
        with pytest.raises(refused.error):
            call()
        after = world.storage.crash_keeping_all()
        lost = list(losses(world.storage))
        if not refused.ends_puts and not refused.options.get("maxsize") and mode != "read_only":
            world.queue.put(b"behind it")
            world.queue.flush()
            behind = list(losses(world.storage, drawn_count=6))
        else:
            behind = []
    finally:
        world.close()
    assert view_of(after, is_other_used=True) == known
    for number, left in enumerate(lost):
        view = view_of(left, is_other_used=True)
        for key in {*view, *known, *durable}:
            allowed = {known.get(key)} if policy == "every_commit" else {known.get(key), durable.get(key)}
            if policy == "never" and str(key[1]).startswith("b'returned"):
                allowed.add("ready")  # put and taken, and the latter is lost
            if key[1] == UNKNOWN:
                allowed = {"ready", None}
            assert view.get(key) in allowed, f"loss {number}: {key}: {view.get(key)}, and not {allowed}"
    for number, left in enumerate(behind):
        view = dict(view_of(left, is_other_used=True))
        there = [view.pop((group, b"behind it"), None) for group in ("default", "audit")]
        assert there == ["ready", "ready"], f"loss {number} behind it"
        assert view == known, f"loss {number} behind it"
