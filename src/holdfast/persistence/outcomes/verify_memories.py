"""``verify`` of the files that only remember: ids for deduplication, outcomes of transactions, and pauses.

A damaged slot of a ring is forgotten, and so is one that a crash has torn. They look the same, so a note tells of them.
"""

from __future__ import annotations

from holdfast.persistence.filesystem.layout import QueueDirectory, within
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.groups.pause_file import NAME, pause_error
from holdfast.persistence.index.dedup_ring import void_ids
from holdfast.persistence.outcomes.outcome_log import void_outcomes


def verify_memories(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> tuple[list[Damage], list[str]]:
    """Read all of these files; return damage, and notes of what is forgotten.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote some of it.
    OSError
        The disk refuses.
    """
    void = {directory.dedup_ids: (void_ids(storage, directory.dedup_ids, queue_id), "ids")}
    void[directory.outcome_log] = (void_outcomes(storage, directory.outcome_log), "outcomes")
    damage = []
    for name in storage.list(directory.groups):
        if name.startswith("."):
            continue
        group = directory.group(name)
        void[within(group, "decided")] = (void_outcomes(storage, within(group, "decided")), "outcomes")
        error = pause_error(storage, group)
        if error:
            reason = f"it cannot be read ({error}); the group is paused until `resume`"
            damage.append(Damage(within(group, NAME), 0, 0, range(0), DAMAGED, reason))
    notes = [
        f"{count} slots of {path} do not verify: the {what} in them are forgotten"
        for path, (count, what) in void.items()
        if count
    ]
    return damage, notes
