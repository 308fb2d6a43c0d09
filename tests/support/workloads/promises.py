"""What a public verb promises by returning, and what losses of power leave: for a table of all of them.

Docs/durability.md says which promise each verb makes. A row of the table makes one call on a queue that has something
of everything, and says what its return promises. Rows are in ``promised_verbs.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from holdfast import FlushPolicy, PersistentQueue
from holdfast.clock import Clock
from support.builders.settings import set_first
from support.builders.takes import states
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage

QUEUE, OTHER = Path("/queue"), Path("/other")
FILE_BYTES = 64 * 2**10
DRAWN_COUNT = 20

POLICIES = {
    "every_commit": FlushPolicy.every_commit(),
    "every": FlushPolicy.every(commits=2, seconds=3600),
    "never": FlushPolicy.never(),
}

BY_POLICY, ALWAYS, NOT_SYNCED = "as the flush policy says", "under every policy", "not synced for its own sake"
"""When a loss of power leaves what a call promised: docs/durability.md, and docs/transactions.md for transactions."""

Key = tuple[str, Any]
View = Mapping[Key, Any]
"""What is there: a state, a reason, a figure by what it is of; what is not there is not in it."""

Facts = dict[Key, tuple[Any, ...]]
"""What may be there of each key, None for nothing."""


def put_facts(*payloads: bytes, state: str = "ready") -> Facts:
    """Return that messages are there, in both groups."""
    return {(group, payload): (state,) for payload in payloads for group in ("default", "audit")}


def message(payload: bytes, *allowed: str | None) -> Facts:
    """Return in what state a message is in the group that these calls take from; None: it is finished."""
    return {("default", payload): allowed or (None,)}


def open_queue(storage: SimulatedStorage, path: Path = QUEUE, **options: Any) -> PersistentQueue:
    """Open a queue of the table, with the settings that it has."""
    return PersistentQueue(path, storage=storage, **{"mode": "exclusive", **options})


def _look_around(storage: SimulatedStorage, *, is_other_used: bool) -> Iterator[tuple[Key, Any]]:
    """Yield all that is there, as the public face shows it; the storage is one that a crash has left."""
    with open_queue(storage, mode="exclusive") as queue:
        for payload, state in states(queue).items():
            yield ("default", payload), state
        for letter in queue.dead.list():
            yield ("reason", letter.payload), letter.reason
        for each in queue.prepared():
            assert not each.damage, each
            yield ("prepared", each.id), (each.put_count, each.ack_count)
        for name in queue.groups.list():
            yield ("group", name), True
        yield ("paused", ""), queue.stats().paused
        for setting, value in queue.settings.items():
            yield ("setting", setting), str(value)
        yield ("latest", "app"), queue.joint_commits.latest("app")
        damage = [*queue.recovery.damage, *queue.recovery.progress_damage]
        assert all(each.verdict == "unsynced or damaged" for each in damage), damage
    with open_queue(storage, mode="read_only", group="audit") as queue:
        for payload, state in states(queue).items():
            yield ("audit", payload), state
    if is_other_used:
        with open_queue(storage, OTHER, mode="exclusive") as queue:
            for payload, state in states(queue).items():
                yield ("other", payload), state
            yield ("other paused", ""), queue.stats().paused


_views: dict[tuple[bytes, bool], View] = {}


def view_of(storage: SimulatedStorage, *, is_other_used: bool = False) -> View:
    """Return all that is there once a crash has left this storage; of the other queue only where it is used."""
    case = (storage.digest(), is_other_used)
    if case not in _views:
        shown = _look_around(storage, is_other_used=is_other_used)
        _views[case] = {key: value for key, value in shown if value is not None}
    return _views[case]


@cache
def base(policy: str = "every_commit") -> SimulatedStorage:
    """Return a storage with a queue that has something of everything, all of it durable; the policy is the queue's."""
    storage = SimulatedStorage()
    settings: dict[str, Any] = {"data_file_bytes": FILE_BYTES, "backoff": [], "max_deliveries": 3}
    settings["flush"] = POLICIES[policy]
    with open_queue(storage, OTHER, mode="exclusive", **settings) as other:
        other.put(b"over there")
    with open_queue(storage, mode="exclusive", **settings) as queue:
        queue.groups.create("audit")
        queue.groups.create("idle")
        queue.put_many([b"dead 0", b"dead 1", b"held", b"reserved"])
        for delivery in queue.receive_many(2):
            delivery.reject("to begin with")
        tx = queue.begin()
        tx.ack(tx.receive(timeout=0))
        tx.prepare("acks")
        assert queue.reservations.take(max_messages=1) is not None
        tx = queue.begin()
        tx.put(b"prepared")
        tx.prepare("puts")
        for version in (1, 2):
            tx = queue.begin()
            tx.put(b"part %d" % version)
            tx.prepare(f"part-{version}", part_of=("app", version))
        queue.joint_commits.commit("app", 1, ["part-1"])
        queue.put_many([b"m%d" % number for number in range(6)])
        assert queue.get() == b"part 1"
    return storage


def losses(storage: SimulatedStorage, *, drawn_count: int = DRAWN_COUNT) -> Iterator[SimulatedStorage]:
    """Yield what losses of power leave: as little as can be, all of it, and what chance says, with either bias."""
    yield storage.crash_dropping_unsynced()
    rng = random.Random(7)
    for number in range(drawn_count):
        yield storage.random_crash(rng, keep=(0.5, 0.85)[number % 2])


@dataclass
class World:
    """A handle on a copy of :func:`base`, in some mode and under some policy; ``options`` are settings of the queue.

    In the mode "shared" another handle of the same owner has another group open.

    Attributes
    ----------
    start : SimulatedStorage
        What there was before.
    others : list of PersistentQueue
        What else is open.
    place : Path
        A real directory, for what goes outside of the queue.
    """

    policy: str
    mode: str
    place: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    clock: Clock | None = None

    def __post_init__(self) -> None:
        self.storage = base(self.policy).crash_keeping_all()
        if self.options:
            set_first(QUEUE, storage=self.storage, **self.options)
        self.start = self.storage.crash_keeping_all()
        self._links = ExitStack()
        self._links.enter_context(machine_links())
        of_all: dict[str, Any] = {"mode": self.mode, "flush": POLICIES[self.policy], "clock": self.clock}
        self.queue = open_queue(self.storage, **of_all, **self.options)
        self.others: list[PersistentQueue] = []
        if self.mode == "shared":
            self.others.append(open_queue(self.storage, group="audit", **of_all))
            assert self.others[0].qsize() == len(self.others[0].peek(1000))

    def open_other(self) -> PersistentQueue:
        """Open the other queue, in the same mode."""
        self.others.append(open_queue(self.storage, OTHER, mode=self.mode, flush=POLICIES[self.policy]))
        return self.others[-1]

    def close_others(self) -> None:
        """Close all but the handle under test, which closes the owner with it then."""
        while self.others:
            self.others.pop().close()

    def close(self) -> None:
        """Close everything."""
        try:
            self.close_others()
            self.queue.close()
        finally:
            self._links.close()


def check(view: View, before: View, facts: Facts, *, promised: bool, when: str) -> None:
    """Check what a loss of power has left: all of what was promised, or else all of it or nothing; and all the rest."""
    for key in {*before, *view} - facts.keys():
        assert view.get(key) == before.get(key), f"{when}: {key} was {before.get(key)}, and is {view.get(key)}"
    if promised or any(view.get(key) != before.get(key) for key in facts):
        check_facts(view, facts, when)


def check_facts(view: View, facts: Facts, when: str) -> None:
    """Check that what a call promised is there."""
    broken = {key: view.get(key) for key, allowed in facts.items() if view.get(key) not in allowed}
    assert not broken, f"{when}: {broken}, and not {facts}"


Call = Callable[[World], Facts]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    verbs : tuple of str
        What it tries, as ``Class.verb``.
    call : callable
        Makes the call; returns what that promises.
    survives : str
        When a loss of power leaves that.
    modes : tuple of str
        Of the handle.
    options : dict
        What else the queue is opened with.
    """

    verbs: tuple[str, ...]
    call: Call
    survives: str
    modes: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """How tests call it."""
        return self.call.__name__.lstrip("_")

    @property
    def policies(self) -> list[str]:
        """Under which it is tried: where these make no difference, the strictest and the weakest."""
        return list(POLICIES) if self.survives == BY_POLICY else ["every_commit", "never"]

    def view(self, storage: SimulatedStorage) -> View:
        """Return what is there, of whatever it uses."""
        return view_of(storage, is_other_used="over" in self.name.split("_"))

    def is_promised(self, policy: str) -> bool:
        """Whether its return promises that a loss of power leaves it."""
        return self.survives == ALWAYS or (self.survives == BY_POLICY and policy == "every_commit")
