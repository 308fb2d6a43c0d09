"""What recovery shows of a disk, as a mapping that can be compared key by key.

A *hard* view is what a kill leaves: offsets and counts are exact. A *soft* one leaves out what a loss of power may take
by what docs/durability.md promises: how often a message was handed out, the wait of one that failed, and, where
messages before it were not synced, its offset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from holdfast import FlushPolicy, PersistentQueue
from holdfast.persistence.groups.group_files import progress_reader, require_group
from holdfast.queue.engine import coordinators as live_queues
from holdfast.queue.inspect.browse import State
from holdfast.queue.prepared.prepared_transactions import find_prepared
from proof.faults.world import GROUPS, World, begin_life
from support.builders.handles import handle_of
from support.storages.simulated_storage import SimulatedStorage

Key = tuple[str, ...]
View = Mapping[Key, str]

ALL = 1000
LEFT_OUT = "left out"
"""How messages begin that the filter of a group leaves out."""

MESSAGE_STATES: tuple[State, ...] = ("ready", "leased", "delayed", "dead")


class ViolationError(AssertionError):
    """Something that must not be."""


def name_of(payload: bytes) -> str:
    """Return what a message is called in a view."""
    return f"{payload[:16].rstrip(bytes(1)).decode()} of {len(payload)}"


def look(world: World, *, is_settling: bool = True) -> dict[Key, str]:
    """Return what the open queues show; unless ``is_settling``, nothing that was decided is done before."""
    seen: dict[Key, str] = {}
    for path, queue in world.queues.items():
        place = str(path)
        for state in MESSAGE_STATES:
            for each in queue.browse(state, limit=ALL):
                key = (place, "message", name_of(each.payload))
                if key in seen:
                    raise ViolationError(f"{key} is there twice")
                seen[key] = f"{state} @{each.offset} #{each.delivery_count}"
        for waiting in queue.prepared() if is_settling else ():
            seen[place, "prepared", waiting.id] = f"in doubt, {waiting.put_count} puts, {waiting.ack_count} acks"
            if waiting.damage:
                raise ViolationError(f"{waiting} is damaged")
        for found in () if is_settling else find_prepared(handle_of(queue)):
            seen[place, "prepared", found.id] = "in doubt"
        for name in queue.groups.list():
            seen[place, "group", name] = (
                "is there" if name in ("default", GROUPS.get(path)) else _begin(world, path, name)
            )
        stats = queue.stats()
        if stats.paused is not None:
            seen[place, "paused"] = stats.paused
        latest = queue.joint_commits.latest("app")
        if latest is not None:
            seen[place, "joint commit"] = str(latest)
        for setting, value in queue.settings.items():
            seen[place, "setting", setting] = str(value)
        seen[place, "next offset"] = str(stats.next_offset)
        _check_report(queue, world.policy)
    return seen


def _begin(world: World, path: Path, group: str) -> str:
    clock, storage = world.clock, world.storage
    with PersistentQueue(path, mode="read_only", group=group, storage=storage, clock=clock) as handle:
        _check_report(handle, world.policy)
        inner = handle_of(handle)
        info = require_group(storage, inner.directory, group)
        return f"from {progress_reader(storage, inner.directory, inner.queue_id, info).refresh().floor}"


def _check_report(queue: PersistentQueue, policy: FlushPolicy) -> None:
    """Faults damage nothing that is on the disk; only lower policies may have offsets given and lost."""
    report = queue.recovery
    if report.progress_damage:
        raise ViolationError(f"recovery invents damage: {report}")
    if policy.syncs_every_commit and (queue.stats().lost or any(each.offsets for each in report.damage)):
        raise ViolationError(f"recovery has lost something: {report}")


def soft(view: View) -> dict[Key, str]:
    """Return a view without what a loss of power may take."""
    return {key: _soft(state) for key, state in view.items() if key[1] != "next offset"}


def _soft(state: str) -> str:
    kind, at, rest = state.partition(" @")
    if not at:
        return state
    is_put_so = kind == "delayed" and rest.endswith("#0")
    return {"dead": "dead", "leased": "held"}.get(kind, "delayed" if is_put_so else "there")


def takeable(view: View, place: str) -> set[str]:
    """Return what is handed out sooner or later, or is dead: all but what a decision holds, or a filter ends."""
    states = {key[2]: state for key, state in view.items() if key[:2] == (place, "message")}
    found = {name for name, state in states.items() if not state.startswith("leased")}
    return {name for name in found if not name.startswith(LEFT_OUT)}


def differences(found: View, expected: View) -> list[str]:
    """Return where two views differ, for people."""
    keys = sorted(found.keys() | expected.keys())
    return [
        f"{key}: {found.get(key)} instead of {expected.get(key)}" for key in keys if found.get(key) != expected.get(key)
    ]


class Viewer:
    """Recovers disks and looks; equal disks are looked at once.

    Attributes
    ----------
    recovered_count : int
        How many different disks it has recovered.
    """

    def __init__(self) -> None:
        self._views: dict[bytes, tuple[dict[Key, str], int]] = {}
        self.recovered_count = 0

    def view(self, disk: SimulatedStorage, policy: FlushPolicy, paths: tuple[Path, ...]) -> dict[Key, str]:
        """Return what recovery shows of a disk, which is left as it is."""
        return self._recover(disk, policy, paths)[0]

    def torn_bytes(self, disk: SimulatedStorage, policy: FlushPolicy, paths: tuple[Path, ...]) -> int:
        """Return how much recovery drops behind the ends of the logs of a disk, which is left as it is."""
        return self._recover(disk, policy, paths)[1]

    def _recover(
        self, disk: SimulatedStorage, policy: FlushPolicy, paths: tuple[Path, ...]
    ) -> tuple[dict[Key, str], int]:
        key = fingerprint(disk, (str(policy), *map(str, paths)))
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = recover_and_look(disk.crash_keeping_all(), policy, paths)
            self.recovered_count += 1
        return found


@contextmanager
def other_process() -> Iterator[None]:
    """Have what is opened inside know nothing of the queues of the case, of whose disks it has copies."""
    with mock.patch.dict(live_queues._coordinators, clear=True):
        yield


def recover_and_look(
    storage: SimulatedStorage, policy: FlushPolicy, paths: tuple[Path, ...]
) -> tuple[dict[Key, str], int]:
    """Open the queues of a disk and look: what they show, and how many bytes they have dropped as torn."""
    begin_life("recovery")
    world = World(storage, policy, paths)
    with other_process():
        try:
            world.open_all()
            return look(world), sum(queue.recovery.torn_bytes for queue in world.queues.values())
        finally:
            world.close()


def fingerprint(storage: SimulatedStorage, also: Iterable[str] = ()) -> bytes:
    """Return a digest of a disk: of what a process sees, and of what is left where the power fails."""
    digest = hashlib.blake2b(digest_size=16)
    for each in also:
        digest.update(each.encode())
    for disk in (storage, storage.crash_dropping_unsynced()):
        for path, content in disk.tree().items():
            digest.update(b"%s %d " % (str(path).encode(), -1 if content is None else len(content)))
            digest.update((content or b"").rstrip(b"\0"))  # room set aside need not be gone through
    return digest.digest()
