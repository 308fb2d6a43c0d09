"""A witness stands beside every queue on simulated storage, and tells the judge what was called and answered.

While :func:`watching` is open the public classes report their calls: so any test's histories can be judged as they are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import ConfigError, DeadLetters, Delivery, DeliveryBatch, PersistentQueue, Transaction
from holdfast.queue.transactions.transaction import TransactionBase
from proof.second_model.facts import SECOND_NS, DisagreementError, Now
from proof.second_model.history import Answer, Call
from proof.second_model.judge import Judge
from proof.second_model.translation import settings
from proof.second_model.verbs import FAILING, READERS, Reader, Reading
from support.builders.clocks import FakeClock
from support.owners.machine_link import Machine
from support.storages.simulated_storage import SimulatedStorage

BOUNDED = frozenset({"put", "put_many", "tx_commit", "tx_prepare", "full"})
"""Verbs that ask whether there is space: the judge of a queue with ``max_bytes`` is told which data files there are."""


OF_FILES = frozenset({"stats", "peek", "browse", "qsize", "empty"})
"""Verbs that show what is in the files, and not what an owner has in memory, to a handle that shares the queue."""

RECEIVED = frozenset({"get", "get_many"})
"""Verbs that a handle that shares the queue does in two steps: it receives, and acknowledges."""

ASKED_LATER = frozenset({"tx_ack", "leave"})
"""Verbs that tell a handle which shares the queue late, by its owner, that a message is not its any more."""


@dataclass
class DurabilityCheck:
    """What is known of one disk: its judge, and who has which number."""

    clock: FakeClock
    judge: Judge | None
    storage: SimulatedStorage
    numbers: dict[int, tuple[int, Any]] = field(default_factory=dict)
    is_open: bool = True
    is_shared: bool = False

    def number(self, thing: Any) -> int:
        """Return the number of a delivery or of a transaction; it is kept alive, so that no other one gets it."""
        known = self.numbers.setdefault(id(thing), (len(self.numbers) + 1, thing))
        return known[0]

    def now(self) -> Now:
        """Return both clocks."""
        return Now(self.clock.time_ns(), round(self.clock.monotonic() * SECOND_NS))

    def data_files(self) -> list[tuple[int, int]]:
        """Return the first offset and the size of each data file that is there; their names have both (format.md)."""
        found = [(path.stem, len(content or b"")) for path, content in self.storage.tree().items() if is_data(path)]
        return [(int(stem.split("-")[-1]), size) for stem, size in sorted(found)]

    def groups(self) -> list[str]:
        """Return the groups that have begun: each has a document (format.md)."""
        return [path.parent.name for path in self.storage.tree() if path.name == "group.json"]

    def told(self, verb: str, arguments: dict[str, Any], answer: Answer) -> Call:
        """Tell the judge."""
        call = Call(verb, self.now(), arguments)
        if self.judge is not None:
            self.judge.told(call, answer)
        return call


class Watch:
    """All witnesses, by the objects that they stand beside."""

    def __init__(self) -> None:
        self.by_storage: dict[int, tuple[SimulatedStorage, DurabilityCheck]] = {}
        self.by_object: dict[int, tuple[Any, DurabilityCheck]] = {}
        self.without_takes: set[int] = set()  # handles of modes that take nothing
        self.sharing: set[int] = set()  # handles that look at the files only
        self.disagreements: list[str] = []
        self.call_count = 0
        self.lost_count = 0
        self.under_way: list[tuple[DurabilityCheck, str]] = []
        self.depth = threading.local()
        self.calls_under_way = 0
        self.lock = threading.RLock()  # a crash may come from a thread of the queue's own, in the middle of a call

    def of(self, thing: Any) -> DurabilityCheck | None:
        """Return who stands beside an object."""
        known = self.by_object.get(id(thing))
        return None if known is None else known[1]

    def remember(self, thing: Any, witness: DurabilityCheck) -> None:
        """Have a witness stand beside an object, for as long as this watch runs."""
        self.by_object[id(thing)] = (thing, witness)

    def opened(self, queue: PersistentQueue, given: dict[str, Any]) -> None:
        """Take note of a handle: those that take, on simulated storage, are followed; of others their refusals."""
        storage, clock = given.get("storage"), given.get("clock")
        if not isinstance(storage, SimulatedStorage) or not isinstance(clock, FakeClock):
            return
        known = self.by_storage.get(id(storage))
        mode = given.get("mode", "exclusive")
        if known is not None and mode == "read_only":
            self.without_takes.add(id(queue))
            self.remember(queue, known[1])
            return
        is_followed = mode in ("exclusive", "shared")
        group = given.get("group", "default")
        if known is None:
            judge = Judge(settings(given), group) if is_followed and is_new(storage) else None
            witness = DurabilityCheck(clock, judge, storage)
            self.by_storage[id(storage)] = (storage, witness)
        else:
            witness = known[1]
            witness.clock, witness.is_open = clock, True
            witness.judge = witness.judge if is_followed else None
            witness.told("open", {"given": settings(given), "group": group}, Answer())
        witness.is_shared = mode == "shared"
        if witness.is_shared:
            self.sharing.add(id(queue))
        self.remember(queue, witness)
        self.remember(queue.groups, witness)
        idle_handles = getattr(queue._engine, "idle_handles", None)  # of a handle that owns the queue
        if idle_handles is not None:
            self.remember(idle_handles.retention, witness)

    def refused(self, given: dict[str, Any], error: ConfigError) -> None:
        """Take note of a handle that was not opened, as its settings are not the queue's."""
        known = self.by_storage.get(id(given.get("storage")))
        if (
            known is not None
            and given.get("mode", "exclusive") in ("exclusive", "shared")
            and known[1].judge is not None
        ):
            asked = {"given": settings(given), "group": given.get("group", "default")}
            self.tell(known[1], "open", asked, Answer(error=type(error).__name__))

    def fork(self, old: SimulatedStorage, new: SimulatedStorage, verb: str) -> None:
        """Follow what a kill or a loss of power leaves: the disk continues as another one."""
        with self.lock:
            known = self.by_storage.get(id(old))
            if known is None:
                return
            witness = DurabilityCheck(known[1].clock, None, new)
            judge = known[1].judge
            if judge is not None:
                witness.judge = judge.copy()
                if self.calls_under_way:  # which may have happened by then, or not
                    self.under_way.append((witness, verb))
                elif known[1].is_open:
                    witness.told(verb, {}, Answer())
            self.by_storage[id(new)] = (new, witness)

    def judged(self, reader: Reader, thing: Any, call: Callable[[], Any], given: dict[str, Any]) -> Any:
        """Make one call, and tell the judge of it; calls inside of calls are not told."""
        witness = self.of(thing)
        if witness is None or witness.judge is None or getattr(self.depth, "inside", False):
            return call()
        reading = Reading(thing, given, witness.number)
        verb = reader.verb(reading)
        if id(thing) in self.sharing and verb in OF_FILES:
            verb = f"{verb}_files"
        if id(thing) in self.without_takes:
            if verb == "close":
                return call()
            verb = {"purge": "purge_beside", "read": "read_beside"}.get(verb or "")
        self.depth.inside = True
        try:
            arguments = reader.arguments(reading)
            if verb == "pass_over":
                arguments["before"] = witness.data_files()
            if id(thing) in self.sharing and verb in RECEIVED:
                arguments["is_received"] = True
            with self.lock:
                self.calls_under_way += 1
            try:
                result = call()
            except BaseException as error:
                with self.lock:
                    self.calls_under_way -= 1
                    if isinstance(error, Exception):
                        self.tell(witness, verb, arguments, Answer(error=type(error).__name__))
                raise
            if isinstance(result, Delivery | DeliveryBatch | Transaction | DeadLetters):
                for each in (result, *(result if isinstance(result, DeliveryBatch) else ())):
                    self.remember(each, witness)
            with self.lock:
                self.calls_under_way -= 1
                self.tell(witness, verb, arguments, Answer(reader.answer(reading, result)))
            return result
        finally:
            self.depth.inside = False

    def tell(self, witness: DurabilityCheck, verb: str | None, arguments: dict[str, Any], answer: Answer) -> None:
        """Tell one call; one that the model has no rule for ends what it can follow."""
        self.call_count += 1
        if verb is None:
            self.lost_count += 1
            witness.judge = None
            return
        if verb == "close":
            if not witness.is_open:
                return
            witness.is_open = False
        if verb in BOUNDED and witness.judge is not None and witness.judge.has_bytes_bound:
            arguments["files"] = witness.data_files()
        if verb in ASKED_LATER and witness.is_shared:
            arguments["is_shared"] = True
        if verb == "pass_over":
            arguments |= {"files": witness.data_files(), "begun": witness.groups()}
        try:
            call = witness.told(verb, arguments, answer)
            for crashed, how in self.under_way:
                if crashed.judge is not None:
                    crashed.judge.may_be_before_or_after([(call, answer)])
                    crashed.told(how, {}, Answer())
            self.under_way.clear()
        except DisagreementError as error:
            trace = witness.judge.trace() if witness.judge is not None else ""
            self.disagreements.append(f"{error}\n{trace}")
            witness.judge = None
            raise


def is_data(path: Path) -> bool:
    """Whether a path is that of a data file."""
    return path.suffix == ".data" and path.parent.name == "data"


def is_new(storage: SimulatedStorage) -> bool:
    """Whether a queue that has just been opened is empty: one that a test has built otherwise is not followed."""
    return not any(is_data(path) for path in storage.tree())


@contextmanager
def watching() -> Iterator[Watch]:
    """Have all queues on simulated storage judged while the block is open."""
    watch, undo = Watch(), list[Callable[[], None]]()
    try:
        for (owner, name), reader in READERS.items():
            undo.append(replaced(owner, name, wrapper(watch, getattr(owner, name), reader)))
        undo.append(replaced(TransactionBase, "__exit__", failing(watch, TransactionBase.__exit__)))
        undo.append(replaced(PersistentQueue, "__init__", opening(watch, PersistentQueue.__init__)))
        undo.append(replaced(PersistentQueue, "dead", dead_letters(watch)))
        undo.append(replaced(PersistentQueue, "settings", shown_settings(watch)))
        for name, verb in (("crash_keeping_all", "kill"), ("crash", "power_loss")):
            undo.append(replaced(SimulatedStorage, name, crashing(watch, getattr(SimulatedStorage, name), verb)))
        undo.append(replaced(Machine, "succeed", succeeding(watch, Machine.succeed)))
        yield watch
    finally:
        for each in reversed(undo):
            each()


def replaced(owner: type, name: str, new: Any) -> Callable[[], None]:
    """Put something in a method's place; return what puts it back."""
    old = owner.__dict__.get(name)
    setattr(owner, name, new)
    return (lambda: delattr(owner, name)) if old is None else (lambda: setattr(owner, name, old))


def wrapper(watch: Watch, original: Callable[..., Any], reader: Reader) -> Callable[..., Any]:
    """Return a method that tells of its calls."""
    signature = reader.signature(original)

    @functools.wraps(original)
    def told(thing: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.of(thing) is None:
            return original(thing, *args, **kwargs)
        bound = signature.bind(thing, *args, **kwargs)
        given = dict(list(bound.arguments.items())[1:])
        for name, value in given.items():
            if name in ("payloads", "which") and not isinstance(value, int | str) and hasattr(value, "__iter__"):
                given[name] = bound.arguments[name] = list(value)
        return watch.judged(reader, thing, lambda: original(*bound.args, **bound.kwargs), given)

    return told


def failing(watch: Watch, original: Callable[..., None]) -> Callable[..., None]:
    """Return the end of a transaction's block: after an exception it is one verb."""

    @functools.wraps(original)
    def told(thing: Any, kind: Any, error: Any, trace: Any) -> None:
        if error is None or thing.state.value not in ("open", "prepared"):
            original(thing, kind, error, trace)
        else:
            watch.judged(FAILING, thing, lambda: original(thing, kind, error, trace), {"error": error})

    return told


def succeeding(watch: Watch, original: Callable[[Machine], None]) -> Callable[[Machine], None]:
    """Return a succession of owners that is told."""

    @functools.wraps(original)
    def told(machine: Machine) -> None:
        original(machine)
        known = watch.by_storage.get(id(machine.served.storage))
        if known is not None:
            known[1].told("succession", {}, Answer())

    return told


def opening(watch: Watch, original: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that tells of the handle."""

    @functools.wraps(original)
    def told(queue: PersistentQueue, path: Any, **given: Any) -> None:
        try:
            original(queue, path, **given)
        except ConfigError as error:
            watch.refused(given, error)
            raise
        watch.opened(queue, given)

    return told


def dead_letters(watch: Watch) -> property:
    """Return the property of dead letters, whose verbs are told of."""
    original: Any = PersistentQueue.dead

    def told(queue: PersistentQueue) -> DeadLetters:
        letters: DeadLetters = original.fget(queue)
        witness = watch.of(queue)
        if witness is not None:
            watch.remember(letters, witness)
        return letters

    return property(told)


def shown_settings(watch: Watch) -> property:
    """Return the property of settings, which is a look."""
    original: Any = PersistentQueue.settings
    reader = Reader("settings", answer=lambda call, result: settings(result))

    def told(queue: PersistentQueue) -> Any:
        return watch.judged(reader, queue, lambda: original.fget(queue), {})

    return property(told)


def crashing(watch: Watch, original: Callable[..., SimulatedStorage], verb: str) -> Callable[..., SimulatedStorage]:
    """Return a crash of the storage that the judge goes along with."""

    @functools.wraps(original)
    def told(storage: SimulatedStorage, *args: Any) -> SimulatedStorage:
        left = original(storage, *args)
        watch.fork(storage, left, verb)
        return left

    return told
