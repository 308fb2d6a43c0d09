"""Small files: JSON with a checksum, rings of slots, ``write.mark``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast import CorruptionError, UnsupportedVersionError
from holdfast.persistence.filesystem.layout import QueueDirectory, open_directory
from holdfast.persistence.format.commit_record import PartOf
from holdfast.persistence.format.constants import DEDUP_SLOT, OUTCOME_SLOT
from holdfast.persistence.groups.dead_letter_notes import DeadLetterNotes
from holdfast.persistence.groups.group_files import find_group
from holdfast.persistence.groups.pause_file import read_pause
from holdfast.persistence.index.dedup_ring import DedupRing
from holdfast.persistence.log.watermark import decode_write_mark
from holdfast.persistence.outcomes.joint_file import JointFile
from holdfast.persistence.outcomes.outcome_log import OutcomeEntry, OutcomeLog
from proof.fuzz.memory_files import BytesStorage
from proof.fuzz.reseal import crc, reseal_slots, resealed_document, resealed_end

ROOT = QueueDirectory(Path("/queue"))
QUEUE_ID = bytes(range(16))


def document(data: bytes) -> None:
    """Read one: the first byte says which, and whether its checksum is put right."""
    if data:
        reader = READERS[data[0] // 2 % len(READERS)]
        reader(data[1:], bool(data[0] & 1))


def _storage(path: Path, text: bytes, is_sealed: bool) -> BytesStorage:
    return BytesStorage({path: resealed_document(text) if is_sealed else text, ROOT.write_mark: b""})


def _queue(text: bytes, is_sealed: bool) -> None:
    storage = _storage(ROOT.identity, text, is_sealed)
    with suppress(CorruptionError, UnsupportedVersionError):
        _, queue_id, _ = open_directory(storage, ROOT.root, create=False, writable=False)
        assert len(queue_id) == 16


def _group(text: bytes, is_sealed: bool) -> None:
    storage = _storage(ROOT.group("g") / "group.json", text, is_sealed)
    with suppress(UnsupportedVersionError):
        group = find_group(storage, ROOT, "g")
        assert group is not None
        assert group.damage or len(group.group_id) == 16
        group.initial_progress()


def _pause(text: bytes, is_sealed: bool) -> None:
    storage = _storage(ROOT.group("g") / "pause.json", text, is_sealed)
    with suppress(UnsupportedVersionError):
        pause = read_pause(storage, ROOT.group("g"))
        assert pause is not None
        pause.is_over(0)


def _joint(text: bytes, is_sealed: bool) -> None:
    file = JointFile(_storage(ROOT.joint, text, is_sealed), ROOT.joint, is_owner=True)
    with suppress(CorruptionError, UnsupportedVersionError):
        for commit in file.pending():
            assert commit.covers(PartOf(commit.application, commit.version))
            assert all(isinstance(nonce, bytes) for _, nonce in commit.parts)


def _note(text: bytes, _: bool) -> None:
    directory = ROOT.group("g")
    storage = BytesStorage({directory / f"dead-{7:020d}.json": text})
    fields = DeadLetterNotes(storage, directory).read(7)
    assert all(isinstance(value, str) for value in fields.values())


def _decided(text: bytes, is_sealed: bool) -> None:
    ring = bytearray(text)
    if is_sealed:
        reseal_slots(ring, OUTCOME_SLOT.size)
    known = OutcomeLog(BytesStorage({ROOT.outcome_log: bytes(ring)}), ROOT.outcome_log)
    assert len(known) <= len(ring) // OUTCOME_SLOT.size
    with suppress(ValueError):
        decided = OutcomeEntry.decode(bytes(ring[: OUTCOME_SLOT.size]))
        assert crc(0, bytes(ring[4 : OUTCOME_SLOT.size])) == int.from_bytes(ring[:4], "little")
        assert known.find_nonce(decided.nonce) is None or decided.is_committed in (True, False)
        if decided.id:
            assert OutcomeEntry.decode(decided.encode()) == decided


def _dedup(text: bytes, is_sealed: bool) -> None:
    slots = bytearray(text)
    if is_sealed:
        reseal_slots(slots, DEDUP_SLOT.size, crc(0, QUEUE_ID))
    storage = BytesStorage({ROOT.dedup_ids: bytes(slots)})
    ring = DedupRing(storage, ROOT.dedup_ids, QUEUE_ID, 8)
    assert len(ring.read()) <= len(slots) // DEDUP_SLOT.size


def _mark(text: bytes, is_sealed: bool) -> None:
    raw = resealed_end(text[:88]) if is_sealed else text
    mark = None
    with suppress(UnsupportedVersionError):
        mark = decode_write_mark(raw, QUEUE_ID)
    if mark is not None:
        assert crc(0, raw[:88]) == int.from_bytes(raw[88:92], "little")
        assert decode_write_mark(mark.encode(), QUEUE_ID) == mark


READERS: tuple[Callable[[bytes, bool], None], ...] = (
    _queue,
    _group,
    _pause,
    _joint,
    _note,
    _decided,
    _dedup,
    _mark,
)
"""By the first byte, divided by two."""
