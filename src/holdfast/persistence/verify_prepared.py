"""The part of ``verify`` that looks at prepared transactions: batch files, and votes in position files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.layout import QueueDirectory, list_batch_files
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.groups.group_files import list_groups, progress_reader
from holdfast.persistence.outcomes.joint_file import JointFile
from holdfast.persistence.outcomes.redo import OWN
from holdfast.persistence.segment.batch_file_reader import check_batch_name, read_summary, verify_batch


def verify_prepared(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> tuple[list[Damage], list[str]]:
    """Read all that is prepared; return what does not verify, and notes of what waits.

    Their messages have no offsets yet, so damage here says in words which are lost. Raises ``OSError``.
    """
    damage: list[Damage] = []
    nonces: set[bytes] = set()
    damaged_ids: set[str] = set()
    for name in list_batch_files(storage, directory):
        path = directory.batch_file(name)
        try:
            found = _look_twice(storage, path, queue_id)
            damage += found
            batch = read_summary(storage, path, queue_id)
            check_batch_name(batch, name)
            nonces.add(batch.decision.nonce)
        except CorruptionError as error:
            damaged_ids.add(name)
            if not found:
                damage.append(Damage(path, error.position, 0, range(0), DAMAGED, str(error)))
        except MISSING:  # decided meanwhile
            pass
    for group in list_groups(storage, directory):
        for vote in progress_reader(storage, directory, queue_id, group).refresh().votes.values():
            waits_for_batch = vote.coordinator is not None and vote.coordinator.path == OWN  # else it is let go of
            if not waits_for_batch and vote.id not in damaged_ids:
                nonces.add(vote.nonce)
    count = len(nonces) + len(damaged_ids)
    notes = [f"{count} transactions are prepared" if count > 1 else "1 transaction is prepared"] if count else []
    try:
        pending = JointFile(storage, directory.joint, is_owner=False).pending()
    except CorruptionError as error:
        reason = f"{error}; without it nobody knows which joint commits have happened"
        damage.append(Damage(directory.joint, 0, 0, range(0), DAMAGED, reason))
    else:
        for each in pending:
            waiting_count = sum(nonce in nonces for _, nonce in each.parts)
            if waiting_count:
                notes.append(
                    f"joint commit {each.version} of {each.application} is decided, and {waiting_count} of its parts "
                    "wait for the next opening to put them into the log"
                )
    return damage, notes


def _look_twice(storage: Storage, path: Path, queue_id: bytes) -> list[Damage]:
    """Return what does not verify, and does not the second time: a batch is changed just before it leaves."""
    found = verify_batch(storage, path, queue_id)
    if found:
        again = {each.position for each in verify_batch(storage, path, queue_id)}
        found = [each for each in found if each.position in again]
    return [_in_words(each) for each in found]


def _in_words(damage: Damage) -> Damage:
    if not damage.offsets:
        return damage
    lost = f"messages {damage.offsets.start} to {damage.offsets.stop - 1} of the transaction are lost"
    return replace(damage, offsets=range(0), reason=f"{damage.reason}; {lost}, abort it and put them again")
