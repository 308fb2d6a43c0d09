"""``verify`` of what waits in ``prepared/``: the prepared log, batch files, and documents of joint commits.

What is damaged is read twice: its owner may be writing it, or changing it just before it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.layout import (
    QueueDirectory,
    list_batch_files,
    list_damaged_segments,
    open_if_there,
)
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.constants import FRAMES_START, PREPARED_MAGIC
from holdfast.persistence.format.file_header import header_damage
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.groups.group_files import list_groups, progress_reader
from holdfast.persistence.groups.vote import Vote
from holdfast.persistence.outcomes.joint_file import JointFile
from holdfast.persistence.outcomes.redo import OWN
from holdfast.persistence.outcomes.shared_joint_file import shared_document
from holdfast.persistence.outcomes.waiting_puts import without_decided
from holdfast.persistence.prepared_log.segment_reader import SegmentContent, torn_bytes
from holdfast.persistence.prepared_log.waiting_entries import (
    LOST_ADVICE,
    QUARANTINED_ADVICE,
    WaitingEntries,
    read_segments,
    undecided,
)
from holdfast.persistence.segment.batch_file_reader import check_batch_name, read_summary, verify_batch


def verify_prepared(storage: Storage, directory: QueueDirectory, queue_id: bytes) -> tuple[list[Damage], list[str]]:
    """Read all prepared transactions; return damage, and notes of those that wait.

    Their messages have no offsets yet, so damage here names the lost ones in words.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote some of it.
    StorageError, OSError
        The disk refuses.
    """
    contents = read_segments(storage, directory, queue_id)
    damage = list(_segment_damage(storage, contents))
    quarantined = map(directory.damaged_segment, list_damaged_segments(storage, directory))
    damage += [Damage(path, 0, 0, range(0), DAMAGED, QUARANTINED_ADVICE) for path in quarantined]
    notes = list(_torn_tails(storage, directory, queue_id, contents))
    waiting = undecided(contents)
    if waiting.entries or waiting.lost:
        waiting = without_decided(storage, directory, queue_id, waiting)
    nonces = {entry.nonce for entry in waiting.entries}
    damaged_ids: set[str] = set()
    documents = {directory.joint: None}
    for name in list_batch_files(storage, directory):
        path = directory.batch_file(name)
        try:
            found = _batch_damage(storage, path, queue_id)
            damage += found
            batch = read_summary(storage, path, queue_id)
            check_batch_name(batch, name)
            nonces.add(batch.commit_record.nonce)
            part_of = batch.commit_record.part_of
            if part_of is not None and part_of.is_shared:
                documents[shared_document(directory.root, part_of)] = None
        except CorruptionError as error:
            if all(entry.id != name for entry in waiting.entries):
                damaged_ids.add(name)
            if not found:
                damage.append(Damage(path, error.position, 0, range(0), DAMAGED, str(error)))
        except MISSING:  # decided meanwhile
            pass
    votes = _waiting_votes(storage, directory, queue_id, waiting)
    nonces |= {vote.nonce for vote in votes if vote.id not in damaged_ids}
    count = len(nonces) + len(damaged_ids)
    notes += [f"{count} transactions are prepared" if count > 1 else "1 transaction is prepared"] if count else []
    for document in documents:
        found, told = _verify_document(storage, document, nonces)
        damage += found
        notes += told
    return damage, notes


def _segment_damage(storage: Storage, contents: Sequence[SegmentContent]) -> Iterator[Damage]:
    """Yield the damage of segments, with what to do; that of an entry which has ended costs nothing."""
    ended = {nonce for content in contents for nonce in content.ended}
    for content in contents:
        yield from _header_damage(storage, content)
        for entry in content.damaged_entries:
            advice = f"transaction {entry.id} cannot be committed: abort it by its id, and put again what it held"
            reason = entry.damage.reason if entry.nonce in ended else f"{entry.damage.reason}; {advice}"
            yield replace(entry.damage, reason=reason)
        for each in content.lost:
            yield replace(each, reason=f"{each.reason}; {LOST_ADVICE}")


def _header_damage(storage: Storage, content: SegmentContent) -> list[Damage]:
    file = open_if_there(storage, content.path)
    if file is None:
        return []
    with file:
        found = header_damage(content.path, file.read_at(FRAMES_START, 0), PREPARED_MAGIC)
    return found if len(found) == 1 else []  # without a good copy all of the segment is lost, which is reported


def _torn_tails(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, contents: Sequence[SegmentContent]
) -> Iterator[str]:
    """Yield a note for each segment with a torn tail; one that has grown meanwhile was being written."""
    torn = [(content, size) for content in contents if (size := torn_bytes(storage, content))]
    again = {each.path: each.tail for each in read_segments(storage, directory, queue_id)} if torn else {}
    for content, size in torn:
        if again.get(content.path) == content.tail:
            yield (
                f"{content.path} has a torn tail of {size} bytes at {content.tail}: the transactions in it were never "
                "prepared, and the next opening leaves them out"
            )


def _waiting_votes(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, waiting: WaitingEntries
) -> Iterator[Vote]:
    """Yield the votes that wait for an outcome.

    Without its puts a vote that this queue's log decides is released: unless damage may have taken them.
    """
    for group in list_groups(storage, directory):
        for vote in progress_reader(storage, directory, queue_id, group).refresh().votes.values():
            is_left_to_log = vote.coordinator is not None and vote.coordinator.path == OWN
            if waiting.lost or not is_left_to_log:
                yield vote


def _verify_document(storage: Storage, path: Path, nonces: set[bytes]) -> tuple[list[Damage], list[str]]:
    """Read a document of joint commits; return its damage, and notes of what is decided and waits."""
    try:
        pending = JointFile(storage, path, is_owner=False).pending()
    except CorruptionError as error:
        reason = f"{error}; without it the outcomes of joint commits are unknown"
        return [Damage(path, 0, 0, range(0), DAMAGED, reason)], []
    notes = []
    for each in pending:
        waiting_count = sum(nonce in nonces for _, nonce in each.parts)
        if waiting_count:
            notes.append(
                f"joint commit {each.version} of {each.application} is decided, and {waiting_count} of its parts "
                "wait for the next opening to put them into the log"
            )
    return [], notes


def _batch_damage(storage: Storage, path: Path, queue_id: bytes) -> list[Damage]:
    """Return the damage that is there twice: a batch is changed just before it leaves."""
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
