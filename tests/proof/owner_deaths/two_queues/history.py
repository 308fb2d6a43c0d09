"""A random history of two queues, and the same again with each of its processes killed at each of its events."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from unittest.mock import patch

from holdfast import (
    CommitUnknownError,
    Delivery,
    Empty,
    FlushPolicy,
    HoldfastError,
    PersistentQueue,
    transaction,
)
from holdfast.queue.client.shared_engine import SharedEngine
from holdfast.queue.client.upkeep import Upkeep
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from holdfast.queue.queues_transaction import QueuesTransaction
from proof.faults.world import begin_life, repeatable_bytes
from proof.owner_deaths.books import BrokenPromiseError, expect
from proof.owner_deaths.two_queues.books import Books, Left, Payloads, Step
from proof.owner_deaths.two_queues.mortality import OF_CLIENTS, DeathError, Mortality, MortalMachine, release_locks
from support.builders.clocks import FakeClock
from support.builders.handles import no_passes
from support.builders.joint import file_part
from support.owners.machine_link import Machines, machine_links
from support.storages.simulated_storage import SimulatedStorage

QUEUES = ("a", "b")
ROOT = Path("/")
APPLICATION = "app"
PART = "p"
VERSION_MAX = 10**6
ROUNDS = 4
SIZES = (40, 300, 5000)
"""Of payloads, in bytes: a transaction that puts the largest goes through a file."""

POLICIES = (FlushPolicy.every_commit(), FlushPolicy.never())
DATA_FILE_BYTES = 16 * 2**10
DEDUP_MAX = 64
SECOND_KILL = 0.3
"""In how many of the runs a second process dies."""

SECOND_KILL_WITHIN = 40
"""Events behind the first one: often in the recovery by the successor."""


@dataclass
class Tally:
    """What was tried."""

    runs: int = 0
    deaths_of_owners: int = 0
    deaths_of_clients: int = 0
    power_cuts: int = 0

    def add(self, other: Tally) -> None:
        """Add what another one counts."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Prepared:
    """A transaction of one queue that waits to be decided, by whichever client."""

    queue: str
    id: str
    step: Step


@dataclass
class Joint:
    """Parts in both queues that wait for a commit as one."""

    version: int
    parts: list[str]
    step: Step


class ClientProcess:
    """A process with a handle of each queue."""

    def __init__(self, storage: SimulatedStorage, clock: FakeClock, policy: FlushPolicy) -> None:
        self.queues = {
            name: PersistentQueue(
                ROOT / name,
                mode="shared",
                flush=policy,
                data_file_bytes=DATA_FILE_BYTES,
                dedup_max=DEDUP_MAX,
                backoff=[],
                max_deliveries=None,
                storage=storage,
                clock=clock,
            )
            for name in QUEUES
        }
        self.joint = QueuesJointCommits(ROOT, storage, clock)
        self.in_hand: list[tuple[str, Delivery]] = []

    def close(self) -> None:
        """Close its handles in order."""
        for queue in self.queues.values():
            queue.close()

    def die(self) -> None:
        """Leave its sessions without a word."""
        for queue in self.queues.values():
            engine = queue._engine
            assert isinstance(engine, SharedEngine)
            engine.call_off()
            engine.membership.leave()


class World:
    """One run of a history.

    Parameters
    ----------
    seed : int
        Of all that is drawn.
    kills : tuple of int
        As of :class:`Mortality`.
    machines : Machines
        The owners.
    """

    def __init__(self, seed: int, mortality: Mortality, storage: SimulatedStorage, machines: Machines) -> None:
        self.tally = Tally(runs=1)
        self.storage, self.clock = storage, FakeClock()
        self._mortality = mortality
        self._machines = machines
        self._rng = random.Random(seed)
        self._policy = self._rng.choice(POLICIES)
        self.books = Books()
        self._numbers = count()
        self._versions = count(1)
        self._prepared: list[Prepared] = []
        self._joint: list[Joint] = []
        self._clients = [ClientProcess(storage, self.clock, self._policy) for _ in range(2)]
        self._clients[0].joint.create()
        for name, queue in self._clients[0].queues.items():
            step = self.books.begin("the first puts", self._payloads(name, 3))
            queue.put_many(step.puts[name])
            queue.flush()
            step.happened({name: 0})
        mortality.is_on = True

    # -- Rounds ------------------------------------------------------------------------------------------------------

    def play(self, rounds: int) -> None:
        """Do so many things, each by one of two clients."""
        verbs: Sequence[Callable[[ClientProcess], object]] = (
            self._put,
            self._ack,
            self._over_two,
            self._over_two,
            self._over_two,
            self._abort_over_two,
            self._prepare,
            self._decide,
            self._part_jointly,
            self._decide_jointly,
            self._decide_jointly,
            self._hold,
        )
        for _ in range(rounds):
            self._do(self._rng.randrange(len(self._clients)), self._rng.choice(verbs))

    def _do(self, number: int, verb: Callable[[ClientProcess], object]) -> None:
        client = self._clients[number]
        try:
            with self._mortality.working(client):
                verb(client)
        except DeathError:
            with self._mortality.working(None):
                client.die()
                release_locks(self.storage, lambda path: path.parent.name in OF_CLIENTS)
                for machine in self._owners():
                    machine.notice_deaths()
                self._clients[number] = ClientProcess(self.storage, self.clock, self._policy)
            self.tally.deaths_of_clients += 1

    def _owners(self) -> list[MortalMachine]:
        return [each for each in self._machines.by_path.values() if isinstance(each, MortalMachine)]

    def _payloads(self, name: str, many: int) -> Payloads:
        sizes = [self._rng.choice(SIZES) for _ in range(many)]
        return {name: [b"%s%02d " % (name.encode(), next(self._numbers)) + b"x" * size for size in sizes]}

    def _name(self) -> str:
        return self._rng.choice(QUEUES)

    @contextmanager
    def _doing(self, step: Step) -> Iterator[None]:
        """Note what a call tells of a step, by its return and by its error."""
        try:
            yield
        except CommitUnknownError:
            pass
        except HoldfastError:
            step.never_happened()

    # -- Calls -------------------------------------------------------------------------------------------------------

    def _put(self, client: ClientProcess) -> None:
        name = self._name()
        step = self.books.begin("put", self._payloads(name, self._rng.choice((1, 3))))
        step.is_durable = self._policy.syncs_every_commit
        with self._doing(step):
            step.happened({name: client.queues[name].put_many(step.puts[name]).start})

    def _hold(self, client: ClientProcess) -> None:
        name = self._name()
        with suppress(Empty):
            client.in_hand.append((name, client.queues[name].receive(timeout=0)))

    def _ack(self, client: ClientProcess) -> None:
        if not client.in_hand:
            self._hold(client)
        if client.in_hand:
            name, delivery = client.in_hand.pop(0)
            step = self.books.begin("ack", takes={name: [delivery.payload]})
            step.is_durable = self._policy.syncs_every_commit
            with self._doing(step):
                delivery.ack()
                step.happened()

    def _filled(self, client: ClientProcess, what: str) -> tuple[QueuesTransaction, Step]:
        """Return a transaction over both queues that puts and finishes messages, at least one of them."""
        tx, step = transaction(*client.queues.values(), timeout=1000), self.books.begin(what)
        for name, queue in client.queues.items():
            for _ in range(self._rng.choice((0, 1, 2))):
                with suppress(Empty):
                    tx.ack(queue, delivery := tx.receive(queue, timeout=0))
                    step.takes.setdefault(name, []).append(delivery.payload)
        for held in client.in_hand[: self._rng.choice((0, 1))]:
            name, delivery = held
            tx.ack(client.queues[name], delivery)
            client.in_hand.remove(held)
            step.takes.setdefault(name, []).append(delivery.payload)
        for name in self._rng.choice((("a",), ("b",), QUEUES)):
            payloads = self._payloads(name, self._rng.choice((1, 2)))
            tx.put_many(client.queues[name], payloads[name])
            step.puts |= payloads
        return tx, step

    def _over_two(self, client: ClientProcess) -> None:
        tx, step = self._filled(client, "transaction")
        working = {name for name in QUEUES if step.puts.get(name) or step.takes.get(name)}
        step.is_durable = len(working) == 2 or self._policy.syncs_every_commit
        with self._doing(step):
            offsets = tx.commit()  # none of a queue that follows later
            told = {name: offsets[client.queues[name]] for name in step.puts}
            step.happened({name: each.start for name, each in told.items() if each})

    def _abort_over_two(self, client: ClientProcess) -> None:
        tx, step = self._filled(client, "aborted transaction")
        step.never_happened()
        tx.abort()

    # -- Prepared ----------------------------------------------------------------------------------------------------

    def _prepare(self, client: ClientProcess) -> None:
        name = self._name()
        tx, step = client.queues[name].begin(timeout=1000), self.books.begin("prepared")
        with suppress(Empty):
            tx.ack(delivery := tx.receive(timeout=0))
            step.takes[name] = [delivery.payload]
        if self._rng.random() < 0.7 or not step.takes:
            step.puts = self._payloads(name, 1)
            tx.put_many(step.puts[name])
        transaction_id = f"t{next(self._numbers)}"
        with self._doing(step):
            tx.prepare(transaction_id)
            step.happened()  # it is committed at the end, unless it is decided before
            self._prepared.append(Prepared(name, transaction_id, step))

    def _decide(self, client: ClientProcess) -> None:
        if not self._prepared:
            self._prepare(client)
        if self._prepared:
            waiting = self._prepared.pop(0)
            queue, step = client.queues[waiting.queue], waiting.step
            if self._rng.random() < 0.5:
                queue.commit_prepared(waiting.id)
            else:
                step.fates = {False, True}
                queue.abort_prepared(waiting.id)
                step.never_happened()

    # -- Joint commits -----------------------------------------------------------------------------------------------

    def _part_jointly(self, client: ClientProcess) -> None:
        version = next(self._versions)
        step = self.books.begin("joint commit")
        step.never_happened()
        part_of, parts = client.joint.part_of(APPLICATION, version), []
        for name in QUEUES:
            payloads = self._payloads(name, 1)
            part = f"{PART}{next(self._numbers)}"
            parts.append(file_part(self.storage, ROOT / name, part, part_of, payloads[name]))
            step.puts |= payloads
        self._joint.append(Joint(version, parts, step))

    def _decide_jointly(self, client: ClientProcess) -> None:
        if not self._joint:
            self._part_jointly(client)
        waiting = self._joint.pop(0)
        if self._rng.random() < 0.8:
            waiting.step.fates = {False, True}
            client.joint.commit(APPLICATION, waiting.version, waiting.parts)
            waiting.step.happened()
        else:
            client.joint.abort(APPLICATION, waiting.version, id_prefix=PART)

    # -- The end -----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Judge what the owners that live hand out, what a kill of all leaves, and what a loss of power leaves."""
        self._mortality.is_on = False
        killed, cut = self.storage.crash_keeping_all(), self.storage.crash_dropping_unsynced()
        self.tally.deaths_of_owners = sum(each.death_count for each in self._owners())
        fresh = ClientProcess(self.storage, self.clock, self._policy)
        for each in self._clients:
            each.close()
        self._judge_left(fresh, "handed out")
        for what, disk in (("killed", killed), ("power lost", cut)):
            self._judge_left(ClientProcess(disk, FakeClock(), self._policy), what)
        self.tally.power_cuts += 1

    def _judge_left(self, client: ClientProcess, when: str) -> None:
        self.books.judge(left(client), when, lost_power=when == "power lost")
        client.close()


def left(client: ClientProcess) -> Left:
    """Decide what is in doubt, take all that is left, and return it."""
    for queue in client.queues.values():
        queue.prepared()  # which follows what was decided
    client.joint.abort(APPLICATION, VERSION_MAX, id_prefix=PART)
    found: Left = {}
    for name, queue in client.queues.items():
        for each in queue.prepared():
            queue.commit_prepared(each.id)
        report = queue.recovery
        expect(not report.damage and not report.progress_damage, f"{name} is damaged: {report}")
        found[name] = messages = {}
        with suppress(Empty):
            while True:
                for delivery in queue.receive_many(100, timeout=0):
                    expect(delivery.payload not in messages, f"{delivery.payload[:4]!r} of {name} comes twice")
                    messages[delivery.payload] = delivery.offset
        depth = queue.stats().depth
        expect(depth == len(messages), f"{depth} messages are left in {name}, and {len(messages)} come")
    return found


def played(seed: int, kills: Collection[int], rounds: int) -> tuple[Tally, int]:
    """Play a history with these kills and judge it; return what was tried, and how many events there were."""
    storage = SimulatedStorage()
    mortality = Mortality(storage, kills)
    begin_life(f"two queues {seed}")
    with machine_links(partial(MortalMachine, mortality)) as machines:
        world = World(seed, mortality, storage, machines)
        world.play(rounds)
        world.judge()
    return world.tally, mortality.count


def judged_history(seed: int, rounds: int = ROUNDS, stride: int = 1) -> tuple[Tally, str]:
    """Play a history with a kill at each of its events; return what was tried, and the promise that was broken, if any.

    ``stride``: at one of so many events.
    """
    tally, rng = Tally(), random.Random(f"kills {seed}")
    with repeatable_bytes(), no_passes(), without_threads():
        events = range(0, played(seed, (), rounds)[1] + 1, stride)
        for first in events:
            kills = [first] if rng.random() > SECOND_KILL else [first, first + rng.randint(1, SECOND_KILL_WITHIN)]
            try:
                tally.add(played(seed, kills, rounds)[0])
            except (BrokenPromiseError, HoldfastError) as broken:
                return tally, f"killed at {kills}: {type(broken).__name__}: {broken}"
    return tally, ""


@contextmanager
def without_threads() -> Iterator[None]:
    """Have all that happens happen in one thread, the same each time: no clock moves by itself."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(Upkeep, "wake", lambda upkeep: None))
        stack.enter_context(patch("holdfast.queue.threads.flusher.Flusher.kick", lambda flusher: None))
        stack.enter_context(patch("holdfast.persistence.log.log_files.close_in_background", lambda file: file.close()))
        for verb in ("watch", "unwatch"):
            stack.enter_context(patch(f"holdfast.queue.engine.idle_handles.{verb}", lambda watched, clock: None))
        yield
