"""Threads that commit to one file while a sync of it is under way, and the power is lost at any moment.

Each sync is stopped before it is done. Meanwhile other threads append, and what they appended is no part of it: their
calls may return behind a later sync only. After every call of the storage and behind every call that returned, the
power is lost: what had returned by then has to be there.
"""

from __future__ import annotations

import errno
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, Delivery, PersistentQueue, PoisonedError
from support.builders.takes import states
from support.processes.threads import Threads, wait_until
from support.storages.held_syncs import HeldSyncs, wait_until_still
from support.storages.simulated_storage import SimulatedStorage

QUEUE = Path("/queue")
FILE_BYTES = 16 * 2**10
WAITING_COUNT = 12
State = tuple[str, ...]
GONE: State = ("gone",)
READY: State = ("ready",)
DEAD: State = ("dead",)

Facts = dict[bytes, State]
"""What is known of messages, by payload, once a call has returned: the states that they may be in."""


def open_queue(storage: SimulatedStorage) -> PersistentQueue:
    """Open the queue of these tests: what fails once is a dead letter."""
    return PersistentQueue(
        QUEUE, mode="exclusive", storage=storage, data_file_bytes=FILE_BYTES, max_deliveries=1, backoff=[]
    )


@dataclass
class Moment:
    """A loss of power: what had returned before, and what is left."""

    facts: Facts
    left: SimulatedStorage


@dataclass
class World:
    """A queue with a few messages in each state, the syncs of one of its files held, and its power lost all the time.

    Attributes
    ----------
    in_hand : list of Delivery
        For those who settle some.
    facts : dict
        What the calls that have returned have promised.
    batches : list of sets
        What is there as a whole or not at all.
    moments : list of Moment
        The losses of power so far.
    """

    suffix: str
    storage: SimulatedStorage = field(default_factory=SimulatedStorage)
    facts: Facts = field(default_factory=dict)
    batches: list[set[bytes]] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    writers: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.held = HeldSyncs(lambda path: path.suffix == self.suffix)
        self.queue = open_queue(self.storage)
        self.queue.put_many([b"dead %d" % number for number in range(3)])
        for delivery in self.queue.receive_many(3):
            delivery.reject("to begin with")
        self.queue.put_many([b"waits %d" % number for number in range(WAITING_COUNT)])
        self.in_hand: list[Delivery] = list(self.queue.receive_many(6))
        self.dead = [letter.offset for letter in self.queue.dead.list()]
        self.queue.flush()
        self.facts.update({b"waits %d" % number: READY for number in range(WAITING_COUNT)})
        self.facts.update({b"dead %d" % number: DEAD for number in range(3)})
        self._rng = random.Random(1)
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Lose the power at each call of the storage from here on, and hold syncs."""
        self.storage.before_verb = self._before_verb

    def _before_verb(self, verb: str, path: Path) -> None:
        if verb == "write_at":
            self.writers.add(threading.get_ident())
        self.lose_power()
        self.held.before_verb(verb, path)

    def lose_power(self) -> None:
        """Note what is left of the disk now if the power goes: as little as can be, and some of it by chance."""
        with self._lock:
            facts = self.facts.copy()  # before: what returns from here on promises nothing to this loss
            self.moments.append(Moment(facts, self.storage.crash_dropping_unsynced()))
            self.moments.append(Moment(facts, self.storage.random_crash(self._rng)))

    def returned(self, promised: Facts) -> None:
        """Take note of what a call has promised by returning."""
        with self._lock:
            self.facts.update(promised)
        self.lose_power()

    def about_to(self, *payloads: bytes) -> None:
        """Promise nothing any more about messages that a call is about to change."""
        with self._lock:
            for payload in payloads:
                self.facts.pop(payload, None)

    def judge(self) -> None:
        """Open what each loss has left."""
        judged: set[tuple[bytes, frozenset[tuple[bytes, State]]]] = set()
        for number, moment in enumerate(self.moments):
            case = (moment.left.digest(), frozenset(moment.facts.items()))
            if case in judged:
                continue
            judged.add(case)
            with open_queue(moment.left) as queue:
                there = states(queue)
            found = {payload: there.get(payload, *GONE) for payload in moment.facts}
            broken = [
                f"{each!r} is {found[each]}" for each, allowed in moment.facts.items() if found[each] not in allowed
            ]
            assert not broken, f"loss {number} of {len(self.moments)}: {broken}; returned: {moment.facts}"
            for batch in self.batches:
                assert len(batch & there.keys()) in (0, len(batch)), f"half a batch after loss {number}"


# -- What threads do ---------------------------------------------------------------------------------------------------


Call = Callable[[World, int], Facts]
"""Does something as thread so and so; returns what its return promises."""


def _put(world: World, number: int) -> Facts:
    payload = b"put %d" % number
    world.queue.put(payload)
    return {payload: READY}


def _put_many(world: World, number: int) -> Facts:
    batch = [b"batch %d %d" % (number, index) for index in range(3)]
    world.batches.append(set(batch))
    world.queue.put_many(batch)
    return dict.fromkeys(batch, READY)


def _put_the_same(world: World, number: int) -> Facts:
    world.queue.put(b"the same", dedup_id="the same")
    return {b"the same": READY}


def _commit_puts(world: World, number: int) -> Facts:
    batch = [b"tx %d %d" % (number, index) for index in range(2)]
    world.batches.append(set(batch))
    with world.queue.transaction() as tx:
        tx.put_many(batch)
    return dict.fromkeys(batch, READY)


def _commit_both(world: World, number: int) -> Facts:
    payload, delivery = b"follows %d" % number, world.in_hand.pop()
    world.about_to(delivery.payload)
    with world.queue.transaction() as tx:
        tx.ack(delivery)
        tx.put(payload)
    return {payload: READY, delivery.payload: GONE}


def _get(world: World, number: int) -> Facts:
    world.about_to(*(b"waits %d" % each for each in range(6, WAITING_COUNT)))
    return {world.queue.get(timeout=0): GONE}


def _get_many(world: World, number: int) -> Facts:
    world.about_to(*(b"waits %d" % each for each in range(6, WAITING_COUNT)))
    return dict.fromkeys(world.queue.get_many(2, timeout=0), GONE)


def _settle(settle: Callable[[Delivery], object], state: State) -> Call:
    def call(world: World, number: int) -> Facts:
        delivery = world.in_hand.pop()
        world.about_to(delivery.payload)
        settle(delivery)
        return {delivery.payload: state}

    return call


def _commit_acks(world: World, number: int) -> Facts:
    delivery = world.in_hand.pop()
    world.about_to(delivery.payload)
    with world.queue.transaction() as tx:
        tx.ack(delivery)
    return {delivery.payload: GONE}


def _discard(world: World, number: int) -> Facts:
    world.about_to(b"dead %d" % number)
    world.queue.dead.discard(world.dead[number])
    return {b"dead %d" % number: GONE}


def _retry(world: World, number: int) -> Facts:
    world.about_to(b"dead %d" % number)
    world.queue.dead.retry(world.dead[number])
    return {b"dead %d" % number: (*READY, *GONE)}  # another thread may get it


PUTS: dict[str, Call] = {
    "put": _put,
    "put_many": _put_many,
    "put once": _put_the_same,
    "commit puts": _commit_puts,
    "commit both": _commit_both,
}
TAKES: dict[str, Call] = {
    "get": _get,
    "get_many": _get_many,
    "ack": _settle(lambda delivery: delivery.ack(), GONE),
    "last nack": _settle(lambda delivery: delivery.nack(), DEAD),
    "reject": _settle(lambda delivery: delivery.reject("no"), DEAD),
    "park": _settle(lambda delivery: delivery.park(ValueError("no")), DEAD),
    "commit acks": _commit_acks,
    "discard": _discard,
    "retry": _retry,
}
CALLS = {".data": PUTS, ".position": TAKES}


# -- When they do it ---------------------------------------------------------------------------------------------------


def run(world: World, calls: list[Call], let_go_counts: tuple[int, ...]) -> None:
    """Start the calls one after the other, each once all others wait; let so many syncs be done behind each start."""
    threads, started = Threads(), []

    def work(call: Call, number: int) -> None:
        world.returned(call(world, number))

    world.watch()
    try:
        for number, (call, let_go_count) in enumerate(itertools.zip_longest(calls, let_go_counts, fillvalue=0)):
            world.writers.clear()
            thread = threads.start(lambda call=call, number=number: work(call, number))  # type: ignore[misc]
            started.append(thread)
            wait_until(lambda thread=thread: thread.ident in world.writers or not thread.is_alive() or _waits(thread))  # type: ignore[misc]
            wait_until_still(started)
            for _ in range(let_go_count):
                world.held.let_go()
                wait_until_still(started)
        while any(thread.is_alive() for thread in started):
            world.held.let_go()
            wait_until_still(started)
        threads.join()
    finally:
        world.held.end()
        threads.join()
    world.storage.before_verb = None


def _waits(thread: threading.Thread) -> bool:
    """Whether a thread waits for another one before it has written anything."""
    wait_until_still([thread])
    return True


def cases() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return which calls race: each pair, and for three threads each kind by itself and each with its neighbours."""
    for suffix, calls in CALLS.items():
        names = list(calls)
        yield from ((suffix, pair) for pair in itertools.combinations_with_replacement(names, 2))
        for one, other, third in zip(names, names[1:] + names[:1], names[2:] + names[:2], strict=True):
            yield suffix, (one, one, one)
            yield suffix, (one, other, third)


def let_go_counts(count: int) -> Iterator[tuple[int, ...]]:
    """Return how many syncs are done behind the start of each thread but the last: none, or one."""
    yield from itertools.product((0, 1), repeat=count - 1) if count > 2 else [(0,)]


@pytest.mark.parametrize(("suffix", "names"), list(cases()), ids=str)
def test_what_returned_is_there_whatever_sync_was_under_way(suffix: str, names: tuple[str, ...]) -> None:
    """A commit that was appended while a sync was under way waits for the next one."""
    for counts in let_go_counts(len(names)):
        world = World(suffix)
        run(world, [CALLS[suffix][name] for name in names], counts)
        world.judge()
        world.queue.close()


@pytest.mark.parametrize("suffix", CALLS)
def test_those_who_append_while_a_sync_is_under_way_share_the_next(suffix: str) -> None:
    """Three calls take two syncs, or each would wait for all those before it."""
    world = World(suffix)
    run(world, [next(iter(CALLS[suffix].values()))] * 3, (0, 0))
    assert world.held.begun_count == 2
    world.queue.close()


def test_nobody_is_shown_what_a_sync_under_way_does_not_cover() -> None:
    """Under ``every_commit`` a consumer could act on a message that a loss of power takes."""
    world = World(".data")
    threads = Threads()
    world.watch()
    started = [threads.start(lambda: world.queue.put(b"first"))]
    wait_until(lambda: world.held.held_count == 1)
    started.append(threads.start(lambda: world.queue.put(b"second")))
    wait_until_still(started)
    shown: list[set[bytes]] = [states(world.queue).keys() & {b"first", b"second"}]
    for _ in range(2):
        world.held.let_go()
        wait_until(lambda: world.held.held_count == 1 or not any(thread.is_alive() for thread in started))
        wait_until_still(started)
        shown.append(states(world.queue).keys() & {b"first", b"second"})
        with open_queue(world.storage.crash_dropping_unsynced()) as queue:
            assert shown[-1] <= states(queue).keys()
    threads.join()
    assert shown == [set(), {b"first"}, {b"first", b"second"}]
    world.storage.before_verb = None
    world.queue.close()


@pytest.mark.parametrize("suffix", CALLS)
def test_who_waits_behind_a_sync_that_fails_is_not_told_that_all_is_well(suffix: str) -> None:
    """Neither those whom it would have covered nor those who came while it was under way: there is no later sync."""
    world = World(suffix)
    call = next(iter(CALLS[suffix].values()))
    threads, raised = Threads(), []

    def fail(verb: str, path: Path) -> None:
        world.held.before_verb(verb, path)
        if verb == "sync" and path.suffix == suffix:
            raise OSError(errno.EIO, "the disk fails")

    def work(number: int) -> None:
        with pytest.raises((CommitUnknownError, PoisonedError)) as caught:
            call(world, number)
        raised.append(caught.type)

    world.storage.before_verb = fail
    started = [threads.start(lambda: work(0))]
    wait_until(lambda: world.held.held_count == 1)
    started += [threads.start(lambda number=number: work(number)) for number in (1, 2)]  # type: ignore[misc]
    wait_until_still(started)
    world.held.end()
    threads.join()
    assert len(raised) == 3
    assert world.held.begun_count == 1, "a sync that failed was tried again"
    world.storage.before_verb = None
    world.queue.close()


def _put_large(world: World, number: int) -> Facts:
    payload = (b"put %d" % number).ljust(2000)
    world.queue.put(payload)
    return {payload: READY}


def _receive_and_ack(world: World, number: int) -> Facts:
    world.about_to(*(b"waits %d" % each for each in range(6, WAITING_COUNT)))
    delivery = world.queue.receive(timeout=0)
    delivery.ack()
    return {delivery.payload: GONE}


Filling = tuple[str, Callable[[PersistentQueue, int], object], Call]
FILLINGS: dict[str, Filling] = {
    ".data": ("data", lambda queue, number: queue.put((b"fills %d" % number).ljust(2000)), _put_large),
    ".position": ("groups/default", lambda queue, number: queue.receive(timeout=0).release(), _receive_and_ack),
}
"""Where files are, what fills them, and what is called then."""


@cache
def _fills(suffix: str) -> int:
    """Return how often a file takes in what fills it."""
    world = World(suffix)
    folder, fill, _ = FILLINGS[suffix]
    names = world.storage.list(QUEUE / folder)
    for count in itertools.count():
        fill(world.queue, count)
        if world.storage.list(QUEUE / folder) != names:
            world.queue.close()
            return count
    raise AssertionError("without end")


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("suffix", FILLINGS)
def test_what_returned_is_there_when_the_file_ends_under_a_sync(suffix: str, left: int) -> None:
    """Some of three calls go into the old file, and the others into the next one."""
    folder, fill, call = FILLINGS[suffix]
    for counts in let_go_counts(3):
        world = World(suffix)
        names = world.storage.list(QUEUE / folder)
        for number in range(_fills(suffix) - left):
            fill(world.queue, number)
        world.queue.flush()
        assert world.storage.list(QUEUE / folder) == names
        run(world, [call] * 3, counts)
        assert world.storage.list(QUEUE / folder) != names, "no file has ended"
        world.judge()
        world.queue.close()
