"""Random histories: calls of a real queue chosen from a seed, with restarts, kills and losses of power in between.

Nothing is compared here: whoever watches judges each answer. ``IDS``, ``KEYS`` and times are few, so that they meet.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from holdfast import (
    Backoff,
    Delivery,
    DeliveryBatch,
    Empty,
    Full,
    HoldfastError,
    PersistentQueue,
    Put,
    ShutDown,
    Transaction,
)
from holdfast.queue.inspect.browse import State
from holdfast.queue.options.log_start import Start
from holdfast.queue.options.queue_options import Mode
from proof.second_model.expressions import EXPRESSIONS, REFUSED
from support.builders.clocks import FakeClock
from support.builders.handles import move_entries, pass_over
from support.owners.machine_link import Machines
from support.storages.simulated_storage import SimulatedStorage

ROOT = "/q"
IDS = ("a", "b", "c", "d")
KEYS = ("x", "y")
GROUPS = ("default", "other")
DATA_FILE_BYTES = 16 * 2**10
OWN_FILE_COUNT, OWN_FILE_BYTES = 13, 2 * DATA_FILE_BYTES
"""Of a batch that is merged if one of its messages lives: more than a data file has."""

OF_QUEUE: dict[str, tuple[Any, ...]] = {
    "maxsize": (0, 0, 6, 20),
    "max_bytes": (None, None, 2 * DATA_FILE_BYTES, 4 * DATA_FILE_BYTES),
    "record_bytes_max": (2**24, 2**24, 3002, 100),
    "dedup_window": (10, 300),
    "data_file_max_age": (None, 2, 2),
    "retain_age": (None, None, 5, 3600),
    "retain_bytes": (None, None, None, 1, 2**30),
    "retain_messages": (None, None, 3, 1000),
}
OF_GROUP: dict[str, tuple[Any, ...]] = {
    "max_deliveries": (1, 2, 3, None),
    "backoff": ([], [1, 8], Backoff(1, 8, jitter=False), Backoff(2, 16)),
    "lease_seconds": (4, 30),
    "dead_letter_seconds": (60, 1_209_600),
    "expired": ("drop", "dead"),
    "max_lag_bytes": (None, None, 1),
    "max_lag_age": (None, None, 3),
}
"""What the settings may be that count at once."""

STARTS: tuple[Start, ...] = ("earliest", "latest", 0, 3, -1, -4, timedelta(0), timedelta(seconds=5), timedelta(hours=1))
OPEN_MAX = 3
VISIT_MAX = 20
EXPECTED = (Empty, Full, ShutDown, HoldfastError)  # what a call may raise: whether it may here is for the judge to say


class BlockError(Exception):
    """What goes wrong inside a block."""


class Player:
    """A queue in use, and what its user has in hand.

    Parameters
    ----------
    seed : int
        What decides everything.
    machines : Machines
        The owners of the queue while it is shared.
    """

    def __init__(self, seed: int, machines: Machines) -> None:
        self.rng = rng = random.Random(seed)
        self.machines = machines
        self.clock = FakeClock()
        self.storage = SimulatedStorage()
        self.payload_count = self.restart_count = self.crash_count = self.merged_count = 0
        self.uses_priorities = rng.random() < 0.5
        of_group: dict[str, Any] = {name: rng.choice(values) for name, values in OF_GROUP.items()}
        self.of_queue: dict[str, Any] = {
            **{name: rng.choice(values) for name, values in OF_QUEUE.items()},
            "dedup_max": rng.choice([2, 100]),
            "data_file_bytes": DATA_FILE_BYTES,
        }
        self.of_groups = {group: dict(of_group) for group in GROUPS}
        self.changed: dict[str, Any] = {}
        self.group = "default"
        self.open()
        if rng.random() < 0.4:
            expression = rng.choice([*EXPRESSIONS])
            self.make(lambda: self.queue.groups.create("other", filter=expression))

    def open(self, mode: Mode = "exclusive") -> None:
        """Open the queue, and forget what was in hand."""
        self.deliveries: list[Delivery] = []
        self.blocks: list[Delivery | DeliveryBatch] = []
        self.batches: list[DeliveryBatch] = []
        self.transactions: list[Transaction] = []
        self.has_succeeded, self.given_from = False, 0
        self.queue = PersistentQueue(
            ROOT,
            storage=self.storage,
            clock=self.clock,
            group=self.group,
            mode=mode,
            **self.of_queue,
            **self.of_groups[self.group],
        )

    def play(self, call_count: int) -> None:
        """Make so many steps, and look at everything at the end."""
        kinds = [self.puts, self.takes, self.takes, self.settles, self.settles, self.transacts, self.transacts]
        kinds += [self.looks, self.rules, self.wait]
        kinds = [*kinds * 2, self.configures, self.configures, self.passes, self.passes, self.replays, self.merges]
        for _ in range(call_count):
            self.step(self.rng.choice(kinds)())
            if self.rng.random() < 0.4:
                self.make(self.looks())
            if self.rng.random() < 0.03:
                self.step(lambda: move_entries(self.queue))
            if self.rng.random() < 0.03:
                self.restart()
        self.restart()
        self.look_at_all()
        self.queue.close()

    def step(self, verb: Callable[[], object]) -> None:
        """Make one call, sometimes with a crash in the middle of it."""
        if self.rng.random() < 0.02:
            self.crash_inside(verb)
        else:
            self.make(verb)

    def make(self, verb: Callable[[], object]) -> None:
        """Make one call."""
        try:
            verb()
        except EXPECTED:
            return

    # -- Verbs -------------------------------------------------------------------------------------------------------

    def payload(self) -> bytes:
        """Return a payload that no other message has; a large one now and then, so that data files end."""
        self.payload_count += 1
        return b"%d " % self.payload_count + b"." * self.rng.choice([0, 0, 0, 3000])

    def wish(self) -> dict[str, Any]:
        """Choose what to ask for a message."""
        rng = self.rng
        wish: dict[str, Any] = {}
        if rng.random() < 0.2:
            wish["delay"] = rng.choice([0, 1, 5, 40])
        elif rng.random() < 0.05:
            wish["not_before"] = self.clock.time_ns() // 10**9 + rng.choice([-5, 3])
        if self.uses_priorities and rng.random() < 0.3:
            wish["priority"] = rng.choice([3, 9])
        elif rng.random() < 0.3:
            wish["order_key"] = rng.choice(KEYS)
        if rng.random() < 0.15:
            wish["ttl"] = rng.choice([2, 10, 100])
        if rng.random() < 0.5:
            wish["headers"] = {"kind": rng.choice("ab")}
        return wish

    def puts(self) -> Callable[[], object]:
        """Choose a put."""
        rng, queue = self.rng, self.queue
        if rng.random() < 0.3:
            batch = [Put(self.payload(), **self.wish()) for _ in range(rng.randint(0, 4))]
            return lambda: queue.put_many(batch, timeout=0)
        payload, wish = self.payload(), self.wish()
        dedup_id = rng.choice([None, None, *IDS])
        return lambda: queue.put(payload, block=False, dedup_id=dedup_id, **wish)

    def takes(self) -> Callable[[], object]:
        """Choose a take."""
        rng, queue, count = self.rng, self.queue, self.rng.randint(1, 5)
        lease = rng.choice([None, None, 2, 50])

        def receive() -> None:
            self.deliveries.append(queue.receive(timeout=0, lease_seconds=lease))

        def receive_many() -> None:
            batch = queue.receive_many(count, timeout=0, lease_seconds=lease)
            self.deliveries += batch
            self.batches.append(batch)

        verbs = [lambda: queue.get(block=False), lambda: queue.get_many(count, timeout=0), receive, receive_many]
        return rng.choice(verbs)

    def takes_ahead(self) -> Callable[[], object]:
        """Choose who takes what has come while a thread only waited: a consumer, or a transaction."""
        rng, queue = self.rng, self.queue
        lease, timeout = rng.choice([None, 2, 50]), rng.choice([5, 60])
        is_for_transaction = len(self.transactions) < OPEN_MAX and rng.random() < 0.6

        def take() -> None:
            tx = queue.begin(timeout=timeout) if is_for_transaction else None
            if tx is not None:
                self.transactions.append(tx)
            queue.wait_for_more(0)
            self.deliveries.append(
                queue.receive(timeout=0, lease_seconds=lease) if tx is None else tx.receive(timeout=0)
            )

        return take

    def give_to_transaction(self) -> None:
        """Give a transaction of its own what is in hand, some of it inside of a block; then end blocks and transaction.

        What cannot be committed is aborted. What was given back is in hand again, and may be given to the next one.
        What a seek has taken away is not given: the handle hears of that only from the owner.
        """
        rng, given = self.rng, self.deliveries[self.given_from :][-6:]
        given = [each for each in given if not (each.is_settled or each.holder)]
        given = rng.sample(given, rng.randint(0, len(given)))
        if not given:
            return
        tx, batch = self.queue.begin(), [Put(self.payload()) for _ in range(rng.choice([0, 1]))]
        entered = [each for each in given if each not in self.blocks and rng.random() < 0.5]
        error = rng.choice([None, None, BlockError("it went wrong")])
        steps: list[Callable[[], object]] = [each.__enter__ for each in entered]
        steps += [lambda: tx.put_many(batch), lambda: tx.ack(given)]
        steps += [partial(each.__exit__, type(error) if error else None, error, None) for each in entered]
        steps += [rng.choice([tx.commit, tx.abort, tx.abort, lambda: tx.__exit__(BlockError, BlockError("-"), None)])]
        for step in [*steps, tx.abort]:
            self.make(step)

    def settles(self) -> Callable[[], object]:
        """Choose a verb of a delivery or of a batch, of those in hand or of those that were."""
        rng = self.rng
        if self.blocks and rng.random() < 0.3:
            block = self.blocks.pop(rng.randrange(len(self.blocks)))
            error = rng.choice([None, BlockError("it went wrong")])
            return lambda: block.__exit__(type(error) if error else None, error, None)
        several = self.batches if self.batches and rng.random() < 0.3 else self.deliveries
        if not several:
            return self.takes()
        thing: Any = rng.choice(several[-6:])
        delay, seconds = rng.choice([None, 0, 3]), rng.choice([None, 1, 40])
        if rng.random() < 0.15:
            self.blocks.append(thing)
            return thing.__enter__  # type: ignore[no-any-return]
        if isinstance(thing, DeliveryBatch) and rng.random() < 0.5:
            some = rng.sample(list(thing), rng.randint(1, len(thing)))
            return rng.choice([lambda: thing.ack(some), lambda: thing.nack(some), lambda: thing.release(some)])
        verbs = [thing.ack, thing.ack, thing.release, lambda: thing.reject("no"), lambda: thing.extend(seconds)]
        chosen: Callable[[], object] = rng.choice([*verbs, lambda: thing.nack(delay=delay), thing.nack])
        return chosen

    def transacts(self) -> Callable[[], object]:
        """Choose a verb of a transaction."""
        rng = self.rng
        if rng.random() < 0.2:
            return self.decides()
        if not self.transactions or (len(self.transactions) < OPEN_MAX and rng.random() < 0.3):
            timeout = rng.choice([5, 60])
            return lambda: self.transactions.append(self.queue.begin(timeout=timeout))
        tx = rng.choice(self.transactions)
        kind = rng.choice(["put", "receive", "receive", "ack", "ack", "commit", "commit", "abort", "fail", "prepare"])
        batch = [Put(self.payload(), **self.wish()) for _ in range(rng.randint(1, 3))]
        chosen = rng.sample(self.deliveries[-6:], min(len(self.deliveries[-6:]), rng.choice([1, 1, 2])))
        name = rng.choice(IDS)
        verbs: dict[str, Callable[[], object]] = {
            "put": lambda: tx.put_many(batch),
            "receive": lambda: self.deliveries.append(tx.receive(timeout=0)),
            "ack": lambda: tx.ack(chosen),
            "commit": tx.commit,
            "abort": tx.abort,
            "fail": lambda: tx.__exit__(BlockError, BlockError("-"), None),
            "prepare": lambda: tx.prepare(name),
        }
        if kind in ("commit", "abort", "fail") and rng.random() < 0.8:
            self.transactions.remove(tx)
        return verbs[kind]

    def decides(self) -> Callable[[], object]:
        """Choose a verdict by id."""
        name, queue = self.rng.choice(IDS), self.queue
        return self.rng.choice(
            [queue.prepared, lambda: queue.commit_prepared(name), lambda: queue.abort_prepared(name)]
        )

    def looks(self) -> Callable[[], object]:
        """Choose a look."""
        rng, queue = self.rng, self.queue
        states: list[State] = ["ready", "leased", "delayed", "dead"]
        state, limit = rng.choice(states), rng.choice([2, 100])
        after, count = rng.choice([None, 3]), rng.choice([1, 4])
        looks: list[Callable[[], object]] = [queue.qsize, queue.empty, queue.full]
        looks += [queue.dead.list, lambda: len(queue.dead)]
        if not self.has_succeeded:
            looks.append(queue.stats)
        looks += [
            lambda: queue.settings,
            lambda: queue.browse(state, limit=limit, after=after),
            lambda: queue.peek(count),
        ]
        return rng.choice(looks)

    def rules(self) -> Callable[[], object]:
        """Choose a verb on dead letters, on the group, or on groups."""
        rng, queue = self.rng, self.queue
        offsets = rng.sample(range(self.payload_count + 1), min(self.payload_count, 4))
        reason = rng.choice(["rejected", "max_deliveries", "expired", "lease_expired", "exception"])
        until = self.clock.time_ns() // 10**9 + rng.choice([2, 20])
        name, start = rng.choice(["other", "third"]), self.start()
        expression = rng.choice([*EXPRESSIONS, REFUSED])
        verbs: list[Callable[[], object]] = [
            lambda: queue.dead.retry(offsets),
            lambda: queue.dead.retry(reason=reason),
            lambda: queue.dead.discard(offsets),
            lambda: queue.pause(until=until, reason="a while"),
            queue.resume,
            queue.resume,
            lambda: queue.groups.create(name, start),
            lambda: queue.groups.create(name, start, filter=expression),
            self.creates_with_settings(name, start),
            lambda: queue.groups.delete("third"),
            queue.groups.list,
            queue.purge,
            queue.purge,
        ]
        return rng.choice(verbs)

    def configures(self) -> Callable[[], object]:
        """Choose settings to change, of the queue and of the group; later openings say them, or leave them out."""
        rng, queue = self.rng, self.queue
        known = OF_QUEUE if self.group not in self.groups() else OF_QUEUE | OF_GROUP  # else its first handle sets them
        names = rng.sample(sorted(known), rng.choice([1, 1, 1, 2, 4]))
        changed = {name: rng.choice(known[name]) for name in names}
        reset = [name for name in names if rng.random() < 0.2]
        if rng.random() < 0.05:
            changed["max_bytes"] = DATA_FILE_BYTES  # less than two data files
        elif rng.random() < 0.95:  # else some are to be set and to be reset
            changed = {name: value for name, value in changed.items() if name not in reset}
        are_said = rng.random() < 0.5

        def configure() -> None:
            self.changed = {**changed, **dict.fromkeys(reset)}
            queue.configure(reset=reset, **changed)
            self.note(changed if are_said else {}, self.changed)

        return configure

    def passes(self) -> Callable[[], object]:
        """Choose a pass of retention, once the group has begun."""
        return (lambda: pass_over(self.queue)) if self.group in self.groups() else self.takes()

    def merges(self) -> Callable[[], object]:
        """Choose a merge, most times of a batch with a data file of its own, with one message in hand."""
        queue = self.queue

        def compact() -> None:
            self.merged_count += queue.compact().merged_count

        if self.rng.random() < 0.7 and queue.settings["max_bytes"] is None:  # else there may be no room for it
            for count in (OWN_FILE_COUNT, 1):
                batch = [self.payload() + b"." * (OWN_FILE_BYTES // OWN_FILE_COUNT) for _ in range(count)]
                self.make(partial(queue.put_many, batch, timeout=0))
            self.make(lambda: self.deliveries.append(queue.receive(timeout=0)))
            self.make(queue.purge)
        return compact

    def start(self) -> Start:
        """Choose where a group, or a reading of the log, begins."""
        rng = self.rng
        if rng.random() < 0.2:
            return datetime.fromtimestamp(self.clock.time_ns() // 10**9 - rng.choice([0, 3, 30]), UTC)
        return rng.randint(0, self.payload_count) if rng.random() < 0.2 else rng.choice(STARTS)

    def replays(self) -> Callable[[], object]:
        """Choose a seek, or a read without a group."""
        rng, queue, start = self.rng, self.queue, self.start()
        stop = rng.choice([None, None, self.start()])
        name = rng.choice([self.group, self.group, "other", "third", "default"])

        def seek() -> None:
            self.given_from = len(self.deliveries)
            queue.groups.seek(name, start)

        return rng.choice([lambda: queue.read(start, stop), seek])

    def creates_with_settings(self, name: str, start: Start) -> Callable[[], object]:
        """Choose the settings of a group to make."""
        rng, queue, is_there = self.rng, self.queue, name in self.groups()
        given = {each: rng.choice(OF_GROUP[each]) for each in rng.sample(sorted(OF_GROUP), 2)}
        expression = rng.choice([None, *EXPRESSIONS])

        def create() -> None:
            if not is_there:
                self.note({}, given, name)
            queue.groups.create(name, start, filter=expression, **given)

        return create

    def note(self, said: dict[str, Any], changed: dict[str, Any], group: str | None = None) -> None:
        """Have later openings say some settings, and leave out the others that were changed."""
        for name in changed:
            known = self.of_queue if name in OF_QUEUE else self.of_groups.setdefault(group or self.group, {})
            known.pop(name, None)
            if name in said:
                known[name] = said[name]

    def wait(self) -> Callable[[], object]:
        """Choose how long to wait: also to just before, just at and just behind the end of a lease."""
        seconds = self.rng.choice([0.01, 0.015, 0.5, 1, 1, 2, 4, 4, 10, 31, 70])
        return lambda: self.clock.advance(seconds)

    # -- Restarts ----------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Close in order, be killed, or lose the power; and open again, perhaps for another group."""
        self.restart_count += 1
        if self.rng.random() < 0.2:
            self.queue.shutdown(immediate=self.rng.choice([True, False]))
            self.make(self.queue.purge)
        self.end()
        names = [name for name in GROUPS if name in self.groups()]
        self.group = self.rng.choice(names or ["default"])
        if self.rng.random() < 0.5:
            self.visit()
        if self.rng.random() < 0.3:
            self.make(self.opens_otherwise)
        self.open()

    def opens_otherwise(self) -> None:
        """Ask for settings that may be others than the queue's; what was never set is set then."""
        rng, known = self.rng, OF_QUEUE | OF_GROUP
        asked = {name: rng.choice(known[name]) for name in rng.sample(sorted(known), 2)}
        with PersistentQueue(ROOT, mode="exclusive", storage=self.storage, clock=self.clock, group=self.group, **asked):
            self.note({}, asked)

    def end(self) -> None:
        """Close the handle in order, be killed, or lose the power."""
        how = self.rng.choice(["close", "kill", "power"])
        if how == "close":
            self.queue.close()
            self.make(self.queue.purge)
        else:
            self.go_on_with(self.left_by(how))

    def visit(self) -> None:
        """Open the queue in another mode: share it, as its owner or as a client, or change nothing.

        While it is shared, no time passes while a block or a transaction is open: a client extends their leases by the
        time of the system, which is another one. Nor does it behind a succession, which begins leases anew. Behind one
        no figures are asked for: some are those of the present owner.
        """
        if self.rng.random() < 0.25:
            self.open(mode="read_only")
            self.make(self.queue.purge)
            self.make(lambda: self.queue.read(self.start()))
            self.queue.close()
            return
        self.machines.are_own = self.rng.random() < 0.6
        self.open(mode="shared")
        kinds = [self.puts, self.takes, self.takes, self.settles, self.settles, self.transacts, self.transacts]
        kinds += [
            self.rules,
            self.configures,
            lambda: self.queue.purge,
            lambda: self.queue.prepared,
            self.looks,
            self.looks,
            self.replays,
            self.merges,
        ]
        for _ in range(self.rng.randint(2, VISIT_MAX)):
            self.step(self.rng.choice(kinds)())
            if self.rng.random() < 0.1:
                self.make(self.takes_ahead())
            gives = self.rng.random() < 0.3
            for _ in range(self.rng.randint(1, 3) if gives else 0):
                self.give_to_transaction()
            if self.rng.random() < 0.05:
                self.has_succeeded = True
                self.machines.succeed(are_own=self.rng.random() < 0.6)
            is_idle = not (self.blocks or self.transactions or self.has_succeeded)
            if is_idle and (gives or self.rng.random() < 0.1):
                self.make(self.wait())
                self.step(self.takes())  # which notices the leases that have ended
        self.end()

    def groups(self) -> list[str]:
        """Return the groups on the disk."""
        prefix = f"{ROOT}/groups/"
        tails = [str(path).removeprefix(prefix) for path in self.storage.tree() if str(path).startswith(prefix)]
        return [tail.removesuffix("/group.json") for tail in tails if tail.endswith("/group.json")]

    def left_by(self, how: str) -> SimulatedStorage:
        """Return what a crash now leaves."""
        return self.storage.crash_keeping_all() if how == "kill" else self.storage.random_crash(self.rng)

    def go_on_with(self, storage: SimulatedStorage) -> None:
        """Let the process be dead: what it does from now on is on a disk that nobody looks at."""
        old, self.storage = self.queue, storage
        self.crash_count += 1
        old.close()

    def crash_inside(self, verb: Callable[[], object]) -> None:
        """Make one call, with a crash before one of its calls of the storage; then open what that leaves."""
        how, countdown, left = self.rng.choice(["kill", "power"]), self.rng.randint(1, 12), list[SimulatedStorage]()

        def watch(*_: object) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                left.append(self.left_by(how))

        self.storage.before_verb = watch
        self.changed = {}
        self.make(verb)
        self.storage.before_verb = None
        if left:  # what a change was cut off from is on the disk, or not: then openings leave it out
            self.note({}, self.changed)
        if left:
            self.go_on_with(left[0])
            self.open()
            self.look_at_all()

    def look_at_all(self) -> None:
        """Show everything there is."""
        queue = self.queue
        for look in (queue.prepared, queue.dead.list, queue.groups.list, queue.stats, lambda: queue.peek(1)):
            self.make(look)
        for state in ("ready", "leased", "delayed", "dead"):
            queue.browse(state)
