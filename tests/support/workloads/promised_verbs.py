"""The table of public verbs: what each does to a queue, and when a loss of power leaves that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import Delivery, PersistentQueue, Put, transaction
from support.workloads.promises import (
    ALWAYS,
    BY_POLICY,
    FILE_BYTES,
    NOT_SYNCED,
    Call,
    Facts,
    Row,
    World,
    message,
    put_facts,
)

ROWS: list[Row] = []

CHANGES = ("exclusive", "shared")
"""The modes of handles that change a queue: each verb does the same in both."""

LOOKS = (*CHANGES, "read_only")


def row(*verbs: str, survives: str, modes: tuple[str, ...] = CHANGES, **options: Any) -> Callable[[Call], Call]:
    """Add a call to the table."""

    def add(call: Call) -> Call:
        ROWS.append(Row(verbs, call, survives, modes, options))
        return call

    return add


def _dead(payload: bytes, reason: str) -> Facts:
    return {**message(payload, "dead"), ("reason", payload): (reason,)}


def _not_dead(payload: bytes, *allowed: str | None) -> Facts:
    return {**message(payload, *allowed), ("reason", payload): (None,)}


# -- Putting -----------------------------------------------------------------------------------------------------------


@row("PersistentQueue.put", survives=BY_POLICY)
def _put(world: World) -> Facts:
    world.queue.put(b"new")
    return put_facts(b"new")


@row("PersistentQueue.put", survives=BY_POLICY)
def _put_with_everything(world: World) -> Facts:
    world.queue.put(b"new", headers={"a": "b"}, delay=3600, ttl=7200, priority=3)
    return put_facts(b"new", state="delayed")


@row("PersistentQueue.put", survives=BY_POLICY)
def _put_with_an_order_key(world: World) -> Facts:
    world.queue.put(b"new", order_key="key")
    return put_facts(b"new")


@row("PersistentQueue.put", survives=BY_POLICY)
def _put_twice_under_one_id(world: World) -> Facts:
    assert world.queue.put(b"new", dedup_id="id") == world.queue.put(b"another", dedup_id="id")
    return put_facts(b"new")


@row("PersistentQueue.put_nowait", survives=BY_POLICY)
def _put_nowait(world: World) -> Facts:
    world.queue.put_nowait(b"new")
    return put_facts(b"new")


@row("PersistentQueue.put_encoded", survives=BY_POLICY)
def _put_encoded(world: World) -> Facts:
    world.queue.put_encoded(b"new", b"", None)
    return put_facts(b"new")


@row("PersistentQueue.put_many", survives=BY_POLICY)
def _put_many(world: World) -> Facts:
    world.queue.put_many([b"new", Put(b"newer", priority=2), b"newest"])
    return put_facts(b"new", b"newer", b"newest")


@row("PersistentQueue.put_many", survives=BY_POLICY)
def _put_none(world: World) -> Facts:
    assert not world.queue.put_many([])
    return {}


# -- Taking ------------------------------------------------------------------------------------------------------------


@row("PersistentQueue.get", survives=BY_POLICY)
def _get(world: World) -> Facts:
    return message(world.queue.get(timeout=0))


@row("PersistentQueue.get_nowait", survives=BY_POLICY)
def _get_nowait(world: World) -> Facts:
    return message(world.queue.get_nowait())


@row("PersistentQueue.get_many", survives=BY_POLICY)
def _get_many(world: World) -> Facts:
    taken = world.queue.get_many(3, timeout=0)
    assert len(taken) == 3
    return {key: value for payload in taken for key, value in message(payload).items()}


@row("PersistentQueue.purge", survives=BY_POLICY)
def _purge(world: World) -> Facts:
    ready = [each.payload for each in world.queue.browse("ready", limit=1000)]
    assert world.queue.purge() == len(ready)
    return {key: value for payload in ready for key, value in message(payload).items()}


@row("PersistentQueue.__iter__", survives=BY_POLICY)
def _iterate(world: World) -> Facts:
    return message(next(iter(world.queue)))


@row("PersistentQueue.consume", survives=BY_POLICY)
def _consume(world: World) -> Facts:
    taken = [each.payload for each in world.queue.consume(timeout=0)]  # one batch: it is finished as one
    assert len(taken) > 2
    return {key: value for payload in taken for key, value in message(payload).items()}


@row("PersistentQueue.receive", "PersistentQueue.receive_many", survives=NOT_SYNCED)
def _receive(world: World) -> Facts:
    delivery = world.queue.receive(timeout=0)
    batch = world.queue.receive_many(2, timeout=0)
    return {key: value for each in (delivery, *batch) for key, value in message(each.payload, "ready").items()}


# -- Settling ----------------------------------------------------------------------------------------------------------


def _settled(settle: Callable[[Delivery], object], promise: Callable[[bytes], Facts]) -> Call:
    def call(world: World) -> Facts:
        delivery = world.queue.receive(timeout=0)
        settle(delivery)
        return promise(delivery.payload)

    return call


Settle = Callable[[Delivery], object]
Promise = Callable[[bytes], Facts]


def _settle(verb: str, name: str, settle: Settle, promise: Promise, survives: str, **options: Any) -> None:
    call = _settled(settle, promise)
    call.__name__ = name
    row(f"Delivery.{verb}", survives=survives, **options)(call)


def _open_and_leave(delivery: Delivery) -> None:
    with delivery:
        pass


def _ready(payload: bytes) -> Facts:
    return message(payload, "ready")


_settle("ack", "ack", lambda each: each.ack(), message, BY_POLICY)
_settle("__exit__", "leave_cleanly", _open_and_leave, message, BY_POLICY)
_settle("reject", "reject", lambda each: each.reject("no"), lambda each: _dead(each, "rejected"), BY_POLICY)
_settle("park", "park", lambda each: each.park(ValueError("?")), lambda each: _dead(each, "undecodable"), BY_POLICY)
_settle("nack", "nack", lambda each: each.nack(), _ready, NOT_SYNCED)
_settle("nack", "delay", lambda each: each.nack(delay=3600), lambda each: message(each, "ready", "delayed"), NOT_SYNCED)
_settle(
    "nack",
    "nack_for_the_last_time",
    lambda each: each.nack(),
    lambda each: _dead(each, "max_deliveries"),
    BY_POLICY,
    max_deliveries=1,
)
_settle("release", "release", lambda each: each.release(), _ready, NOT_SYNCED)
_settle("extend", "extend", lambda each: each.extend(60), _ready, NOT_SYNCED)


def _settle_batch(verb: str, settle: Callable[[Any], object], promise: Callable[[bytes], Facts], survives: str) -> None:
    def call(world: World) -> Facts:
        batch = world.queue.receive_many(3, timeout=0)
        assert len(batch) == 3
        settle(batch)
        return {key: value for each in batch for key, value in promise(each.payload).items()}

    call.__name__ = f"{verb}_a_batch"
    row(f"DeliveryBatch.{verb}", survives=survives)(call)


_settle_batch("ack", lambda batch: batch.ack(), message, BY_POLICY)
_settle_batch("__exit__", lambda batch: batch.__enter__().__exit__(None, None, None), message, BY_POLICY)
_settle_batch("reject", lambda batch: batch.reject("no"), lambda payload: _dead(payload, "rejected"), BY_POLICY)
_settle_batch("nack", lambda batch: batch.nack(), _ready, NOT_SYNCED)
_settle_batch("release", lambda batch: batch.release(), _ready, NOT_SYNCED)
_settle_batch("extend", lambda batch: batch.extend(60), _ready, NOT_SYNCED)


# -- Dead letters ------------------------------------------------------------------------------------------------------


@row("DeadLetters.retry", survives=BY_POLICY)
def _retry(world: World) -> Facts:
    assert world.queue.dead.retry(world.queue.dead.list()[0]) == 1
    return _not_dead(b"dead 0", "ready")


@row("DeadLetters.retry", survives=BY_POLICY)
def _retry_all_of_a_reason(world: World) -> Facts:
    assert world.queue.dead.retry(reason="rejected") == 2
    return {**_not_dead(b"dead 0", "ready"), **_not_dead(b"dead 1", "ready")}


@row("DeadLetters.discard", survives=BY_POLICY)
def _discard(world: World) -> Facts:
    assert world.queue.dead.discard(0) == 1
    return _not_dead(b"dead 0", None)


@row("DeadLetters.discard", survives=BY_POLICY)
def _discard_several(world: World) -> Facts:
    assert world.queue.dead.discard([0, 1]) == 2
    return {**_not_dead(b"dead 0", None), **_not_dead(b"dead 1", None)}


@row("DeadLetters.export", survives=NOT_SYNCED, modes=LOOKS)
def _export(world: World) -> Facts:
    path = world.place / "letters"
    assert world.queue.dead.export(path) == 2
    assert path.read_text(encoding="utf-8").count("\n") == 2
    return {}


# -- The group as a whole ----------------------------------------------------------------------------------------------


@row("PersistentQueue.pause", survives=ALWAYS)
def _pause(world: World) -> Facts:
    world.queue.pause(reason="because")
    return {("paused", ""): ("because",)}


@row("PersistentQueue.pause", survives=ALWAYS)
def _pause_over_there_where_the_group_has_not_begun(world: World) -> Facts:
    world.open_other().pause(reason="because")
    return {("other paused", ""): ("because",)}


@row("PersistentQueue.resume", survives=ALWAYS)
def _resume(world: World) -> Facts:
    world.queue.pause()
    world.queue.resume()
    return {("paused", ""): (None,)}


@row("Groups.create", survives=ALWAYS)
def _create(world: World) -> Facts:
    world.queue.groups.create("new")
    return {("group", "new"): (True,)}


@row("Groups.delete", survives=ALWAYS)
def _delete(world: World) -> Facts:
    world.queue.groups.delete("idle")
    return {("group", "idle"): (None,)}


@row("Groups.seek", survives=ALWAYS)
def _seek(world: World) -> Facts:
    world.queue.groups.seek("audit", 4)
    return {("audit", payload): (None,) for payload in (b"dead 0", b"dead 1", b"held", b"reserved")}


# -- Settings ----------------------------------------------------------------------------------------------------------


@row("PersistentQueue.configure", survives=ALWAYS)
def _configure_the_queue(world: World) -> Facts:
    world.queue.configure(maxsize=99, dedup_window=60)
    assert world.queue.settings["maxsize"] == 99
    return {("setting", "maxsize"): ("99",), ("setting", "dedup_window"): ("60.0",)}


@row("PersistentQueue.configure", survives=ALWAYS)
def _configure_the_group(world: World) -> Facts:
    world.queue.configure(lease_seconds=60)
    return {("setting", "lease_seconds"): ("60.0",)}


@row("PersistentQueue.configure", survives=ALWAYS)
def _configure_and_reset(world: World) -> Facts:
    world.queue.configure(maxsize=99)
    world.queue.configure(reset=["maxsize", "max_deliveries"], lease_seconds=60)
    default: Facts = {("setting", "maxsize"): ("0",), ("setting", "max_deliveries"): ("5",)}
    return {**default, ("setting", "lease_seconds"): ("60.0",)}


# -- Transactions ------------------------------------------------------------------------------------------------------


@row(
    "Transaction.put",
    "Transaction.put_many",
    "Transaction.commit",
    "PersistentQueue.begin",
    survives=BY_POLICY,
)
def _commit_puts(world: World) -> Facts:
    tx = world.queue.begin()
    tx.put(b"new")
    tx.put_many([b"newer", b"newest"])
    assert len(tx.commit()) == 3
    return put_facts(b"new", b"newer", b"newest")


@row("Transaction.put_many", survives=ALWAYS)
def _commit_more_than_memory_holds(world: World) -> Facts:
    payloads = [b"%03d" % number + bytes(1000) for number in range(FILE_BYTES // 2000)]
    with world.queue.transaction() as tx:
        tx.put_many(payloads)
    return put_facts(*payloads)


@row("Transaction.put_stream", survives=ALWAYS)
def _commit_a_stream(world: World) -> Facts:
    with world.queue.transaction() as tx:
        tx.put_stream([b"ne", b"w"])
    return put_facts(b"new")


@row("Transaction.receive", "Transaction.ack", "Transaction.commit", survives=BY_POLICY)
def _commit_acks(world: World) -> Facts:
    with world.queue.transaction() as tx:
        deliveries = [tx.receive(timeout=0), world.queue.receive(timeout=0)]
        tx.ack(deliveries)
    return {**message(deliveries[0].payload), **message(deliveries[1].payload)}


@row("Transaction.commit", "Transaction.__exit__", "PersistentQueue.transaction", survives=ALWAYS)
def _commit_puts_and_acks(world: World) -> Facts:
    with world.queue.transaction() as tx, tx.receive(timeout=0) as delivery:
        tx.put(b"new")
    return {**message(delivery.payload), **put_facts(b"new")}


@row("Transaction.abort", survives=NOT_SYNCED)
def _abort(world: World) -> Facts:
    tx = world.queue.begin()
    tx.put(b"new")
    tx.ack(tx.receive(timeout=0))
    tx.abort()
    return {}


@row("Transaction.call_off", survives=NOT_SYNCED)
def _call_off(world: World) -> Facts:
    tx = world.queue.begin()
    tx.put(b"new")
    tx.ack(tx.receive(timeout=0))
    tx.call_off()
    return {}


@row("Transaction.prepare", survives=ALWAYS)
def _prepare_puts(world: World) -> Facts:
    tx = world.queue.begin()
    tx.put_many([b"new", b"newer"])
    tx.prepare("new")
    return {("prepared", "new"): ((2, 0),)}


@row("Transaction.prepare", survives=ALWAYS)
def _prepare_both(world: World) -> Facts:
    tx = world.queue.begin()
    tx.put(b"new")
    delivery = tx.receive(timeout=0)
    tx.ack(delivery)
    tx.prepare("new")
    return {("prepared", "new"): ((1, 1),), **message(delivery.payload, "leased")}


@row("Transaction.commit", survives=ALWAYS)
def _prepare_and_commit(world: World) -> Facts:
    tx = world.queue.begin()
    tx.put(b"new")
    delivery = tx.receive(timeout=0)
    tx.ack(delivery)
    tx.prepare("new")
    tx.commit()
    return {("prepared", "new"): (None,), **message(delivery.payload), **put_facts(b"new")}


@row("PersistentQueue.commit_prepared", survives=ALWAYS)
def _commit_prepared_puts(world: World) -> Facts:
    assert len(world.queue.commit_prepared("puts")) == 1
    return {("prepared", "puts"): (None,), **put_facts(b"prepared")}


@row("PersistentQueue.commit_prepared", survives=ALWAYS)
def _commit_prepared_acks(world: World) -> Facts:
    world.queue.commit_prepared("acks")
    return {("prepared", "acks"): (None,), **message(b"held")}


@row("PersistentQueue.abort_prepared", survives=ALWAYS)
def _abort_prepared_puts(world: World) -> Facts:
    world.queue.abort_prepared("puts")
    return {("prepared", "puts"): (None,)}


@row("PersistentQueue.abort_prepared", survives=ALWAYS)
def _abort_prepared_acks(world: World) -> Facts:
    world.queue.abort_prepared("acks")
    return {("prepared", "acks"): (None,), **message(b"held", "ready")}


# -- Several queues ----------------------------------------------------------------------------------------------------


def _several(name: str) -> str:
    return f"QueuesTransaction.{name}"


@row(*map(_several, ("put", "put_many", "receive", "ack", "commit")), "holdfast.transaction", survives=ALWAYS)
def _commit_over_two_queues(world: World) -> Facts:
    other = world.open_other()
    tx = transaction(world.queue, other)
    delivery = tx.receive(world.queue, timeout=0)
    tx.ack(world.queue, delivery)
    tx.put(world.queue, b"new")
    tx.put_many(other, [b"newer", b"newest"])
    tx.commit()
    there: Facts = {("other", b"newer"): ("ready",), ("other", b"newest"): ("ready",)}
    return {**message(delivery.payload), **put_facts(b"new"), **there}


@row(*map(_several, ("put_stream", "join", "__exit__")), survives=ALWAYS)
def _commit_a_stream_over_two_queues(world: World) -> Facts:
    with transaction(world.queue) as tx:
        other = world.open_other()
        tx.join(other)
        tx.put_stream(world.queue, [b"n", b"ew"])
        tx.ack(other, tx.receive(other, timeout=0))
    return {**put_facts(b"new"), ("other", b"over there"): (None,)}


@row(_several("commit"), survives=ALWAYS)
def _commit_acks_over_two_queues(world: World) -> Facts:
    other = world.open_other()
    world.queue.put(b"new")
    world.queue.flush()  # the sync of a put behind which nothing is put covers no decision that comes later
    with transaction(world.queue, other) as tx:
        delivery = tx.receive(world.queue, timeout=0)
        tx.ack(world.queue, delivery)
        tx.ack(other, tx.receive(other, timeout=0))
    return {**put_facts(b"new"), **message(delivery.payload), ("other", b"over there"): (None,)}


@row(_several("commit"), survives=BY_POLICY)
def _commit_over_two_queues_of_which_one_has_work(world: World) -> Facts:
    with transaction(world.queue, world.open_other()) as tx:
        tx.put(world.queue, b"new")
    return put_facts(b"new")


@row(_several("abort"), _several("call_off"), survives=NOT_SYNCED)
def _abort_over_two_queues(world: World) -> Facts:
    other = world.open_other()
    for end in ("abort", "call_off"):
        tx = transaction(world.queue, other)
        tx.put(other, b"new")
        tx.ack(world.queue, tx.receive(world.queue, timeout=0))
        getattr(tx, end)()
    return {}


# -- Reservations and joint commits ------------------------------------------------------------------------------------


@row("Reservations.take", survives=ALWAYS)
def _reserve(world: World) -> Facts:
    reservation = world.queue.reservations.take(max_messages=2)
    assert reservation is not None
    return {("prepared", reservation.id): ((0, 2),), **message(b"m0", "leased"), **message(b"m1", "leased")}


@row("Reservations.commit", "Reservations.held", survives=ALWAYS)
def _commit_a_reservation(world: World) -> Facts:
    (held,) = world.queue.reservations.held()
    world.queue.reservations.commit(held)
    return {("prepared", held.id): (None,), **message(b"reserved")}


@row("Reservations.abort", survives=ALWAYS)
def _abort_a_reservation(world: World) -> Facts:
    (held,) = world.queue.reservations.held()
    world.queue.reservations.abort(held)
    return {("prepared", held.id): (None,), **message(b"reserved", "ready")}


@row("JointCommits.commit", "JointCommits.latest", survives=ALWAYS)
def _commit_jointly(world: World) -> Facts:
    world.queue.joint_commits.commit("app", 2, ["part-2"])
    assert world.queue.joint_commits.latest("app") == 2
    return {("prepared", "part-2"): (None,), ("latest", "app"): (2,), **put_facts(b"part 2")}


@row("JointCommits.abort", survives=ALWAYS)
def _abort_jointly(world: World) -> Facts:
    world.queue.joint_commits.abort("app", 2)
    return {("prepared", "part-2"): (None,)}


@row("JointCommits.collect", survives=ALWAYS)
def _collect(world: World) -> Facts:
    world.queue.joint_commits.collect(0)
    return {("prepared", "part-2"): (None,)}


# -- The queue itself --------------------------------------------------------------------------------------------------


def _put_and_take(queue: PersistentQueue) -> Facts:
    queue.put(b"new")
    return {**message(queue.get(timeout=0)), **put_facts(b"new")}


@row("PersistentQueue.flush", survives=ALWAYS)
def _flush(world: World) -> Facts:
    facts = _put_and_take(world.queue)
    world.queue.flush()
    return facts


@row("PersistentQueue.compact", survives=ALWAYS)
def _compact(world: World) -> Facts:
    facts = _put_and_take(world.queue)
    world.queue.flush()
    world.queue.compact()
    return facts


@row("PersistentQueue.close", survives=ALWAYS)
def _close(world: World) -> Facts:
    world.queue.receive(timeout=0)
    facts = _put_and_take(world.queue)
    world.close_others()
    world.queue.close()
    return facts


@row("PersistentQueue.__exit__", survives=ALWAYS)
def _leave_the_block(world: World) -> Facts:
    world.close_others()
    with world.queue:
        return _put_and_take(world.queue)


@row("PersistentQueue.shutdown", "PersistentQueue.join", "PersistentQueue.task_done", survives=NOT_SYNCED)
def _shut_down(world: World) -> Facts:
    world.queue.task_done()
    world.queue.shutdown()
    world.queue.shutdown(immediate=True)
    world.queue.join()
    return {}


@row(
    *(
        f"PersistentQueue.{name}"
        for name in ("peek", "browse", "read", "qsize", "empty", "full", "stats", "prepared", "dead")
    ),
    *(
        f"PersistentQueue.{name}"
        for name in (
            "recovery",
            "has_handed_out",
            "maxsize",
            "settings",
            "is_shutdown",
            "unfinished_tasks",
            "depth",
            "prepared_count",
        )
    ),
    *("DeadLetters.list", "DeadLetters.offsets", "DeadLetters.__len__", "Groups.list", "JointCommits.latest"),
    survives=NOT_SYNCED,
    modes=LOOKS,
)
def _look(world: World) -> Facts:
    queue = world.queue
    assert queue.peek(2)
    assert queue.browse("dead")
    assert [each.payload for each in queue.read(0, 2)] == [b"dead 0", b"dead 1"]
    assert queue.qsize() > 0
    assert not queue.empty()
    assert not queue.full()
    assert queue.stats().dead == len(queue.dead) == len(queue.dead.list()) == len(queue.dead.offsets()) == 2
    assert queue.stats().depth == queue.depth() > 0
    assert len(queue.prepared()) == queue.prepared_count() == 4
    assert not queue.recovery.damage
    assert queue.groups.list() == ["audit", "default", "idle"]
    assert queue.joint_commits.latest("app") == 1
    assert (queue.maxsize, queue.is_shutdown) == (0, False)
    assert queue.unfinished_tasks >= 0
    return {}


@row(
    *(f"Reservations.{name}" for name in ("held", "read", "size_bytes", "delivery_counts", "data_files", "id_prefix")),
    survives=NOT_SYNCED,
)
def _look_at_reservations(world: World) -> Facts:
    reservations = world.queue.reservations
    (held,) = reservations.held()
    assert held.id.startswith(reservations.id_prefix("reserved"))
    assert reservations.size_bytes(held) == len(b"reserved")
    assert len(reservations.delivery_counts(held)) <= 1
    assert len(reservations.data_files(held)) == 1
    assert next(iter(reservations.read(held, lambda damage: None))) is not None
    return {}


ASKED_BY_THE_PACKAGE = ("end_with_queue", "expire", "forget", "leave", "refusal")
INSIDE = {
    "PersistentQueue.forget_after_fork",
    "PersistentQueue.join_transaction",
    *(f"PersistentQueue.{name}" for name in ("consuming", "ending", "wait_for_more", "wake")),
    "Delivery.comes_from",
    *(f"Transaction.{name}" for name in ASKED_BY_THE_PACKAGE),
    *(f"QueuesTransaction.{name}" for name in ASKED_BY_THE_PACKAGE),
}
"""Public names that the package calls, and applications do not."""

FIGURES = {"Delivery.redacted", "DeliveryBatch.count", "DeliveryBatch.index"}
"""What only reads memory; so do properties."""
