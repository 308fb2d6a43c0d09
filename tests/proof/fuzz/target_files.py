"""Whole files of a queue, each by itself: data files, batch files, position files, segments of the prepared log."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast import CorruptionError, UnsupportedVersionError
from holdfast.persistence.filesystem.layout import DataFileName, position_file, queue_directory
from holdfast.persistence.format.constants import FRAMES_START, HEADER_BLOCK_BYTES, SYNCED_END_POSITION
from holdfast.persistence.format.file_header import (
    DataFileHeader,
    PositionFileHeader,
    SegmentHeader,
    block_buffers,
    block_copies,
)
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.position_run import apply_run, checkpoint
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reach import REACH_MAX, Reach
from holdfast.persistence.log.sealed_file import sealed_places
from holdfast.persistence.log.watermark import Watermark, decode_write_mark
from holdfast.persistence.prepared_log.entry import entry_messages
from holdfast.persistence.prepared_log.segment_reader import encode_synced_end, read_segment, torn_bytes
from holdfast.persistence.prepared_log.waiting_entries import undecided
from holdfast.persistence.recovery.commit_record_scan import find_commit_records
from holdfast.persistence.recovery.tail_scan import scan_tail
from holdfast.persistence.segment.batch_file_reader import (
    commit_records_from_behind,
    messages,
    read_summary,
    verify_batch,
)
from holdfast.persistence.segment.file_walk import FileWalk
from holdfast.persistence.segment.frame_trailer import read_seal
from proof.fuzz.memory_files import BytesFile, BytesStorage
from proof.fuzz.reseal import reseal_blocks, reseal_entries, reseal_frames, resealed_end

QUEUE_ID = bytes(range(16))
FILE_ID = bytes(range(16, 32))
GROUP_ID = bytes(range(32, 48))
SALT = 0x5A17
PATH = Path("/queue/data/0000000007-00000000000000000100.data")
BATCH = Path("/queue/prepared/t.batch")
SEGMENT = Path("/queue/prepared/0000000001.log")
GROUP = Path("/queue/groups/default")
MARK_BYTES = 88
LOG_END, ROOM = 1500, 300
"""Of the log that progress speaks of: no message is behind this offset, and the last data file has room for so many.

Longer than a run that counts without a look at the log (1,024), and little more: an entry costs a step for each message
that it delivers, and an input has 128 entries."""

IS_SEALED, HAS_OWN_HEADER, HAS_MARK, IS_BORN_SEALED = 1, 2, 4, 8
"""Bits of the first byte: checksums are put right, the input has a header, it has a ``write.mark``; born sealed."""


def data_header(features: int = 0) -> DataFileHeader:
    """Return the header that a data file has where the input brings none."""
    return DataFileHeader(QUEUE_ID, 7, 100, 1_700_000_000 * 10**9, 6, 9000, FILE_ID, SALT, features)


def data_file(data: bytes) -> None:
    """Read a data file as recovery, ``verify`` and those do who look for decisions."""
    mark, stored = _data_file(data)
    file = BytesFile(stored)
    try:
        header = DataFileHeader.decode(block_copies(stored), str(PATH))
    except (CorruptionError, UnsupportedVersionError):
        return
    scan = scan_tail(file, header, PATH, mark)
    assert FRAMES_START <= scan.end <= max(len(stored), FRAMES_START), f"the log ends at {scan.end} of {len(stored)}"
    walk = FileWalk(file, header, PATH, scan.end, scan.message_count)
    walk.run()
    assert walk.message_count <= len(stored) // 32
    for damage in (*scan.damage, *walk.damage):
        assert damage.position <= max(len(stored), FRAMES_START)
        assert str(damage)
    list(find_commit_records(file, header, scan))
    commit_records_from_behind(file, header)
    read_seal(file, header)
    sealed_places(BytesStorage({PATH: stored}), PATH)


def _data_file(data: bytes) -> tuple[Watermark | None, bytes]:
    how, rest = (data[0], data[1:]) if data else (0, b"")
    mark = None
    if how & HAS_MARK:
        raw, rest = rest[:MARK_BYTES], rest[MARK_BYTES:]
        with suppress(UnsupportedVersionError):
            mark = decode_write_mark(resealed_end(raw), QUEUE_ID)
    return mark, _with_header(how, rest, data_header(1 if how & IS_BORN_SEALED else 0).encode())


def segment(data: bytes) -> None:
    """Read a segment of the prepared log: what counts is whole, and what does not is damage or a torn tail."""
    how, rest = (data[0], data[1:]) if data else (0, b"")
    synced, rest = (int.from_bytes(rest[:2], "little"), rest[2:]) if how & HAS_MARK else (FRAMES_START, rest)
    stored = bytearray(_with_header(how, rest, SegmentHeader(QUEUE_ID, 1, FILE_ID, SALT).encode()))
    if len(stored) >= FRAMES_START:
        said = encode_synced_end(synced, SALT)
        stored[SYNCED_END_POSITION : SYNCED_END_POSITION + len(said)] = said
    storage = BytesStorage({SEGMENT: bytes(stored)})
    try:
        content = read_segment(storage, SEGMENT, QUEUE_ID)
    except (CorruptionError, UnsupportedVersionError):
        return
    assert content.end <= max(len(stored), content.witness)
    assert not content.tail or content.witness <= content.tail <= len(stored)
    at = FRAMES_START
    for entry in content.entries:
        assert at <= entry.position < entry.messages_start <= entry.commit_record_position < entry.end <= len(stored)
        assert len(list(entry_messages(storage, entry))) == entry.message_count
        at = entry.end
    for damage in (*content.lost, *(each.damage for each in content.damaged_entries)):
        assert FRAMES_START <= damage.position <= len(stored)
        assert str(damage)
    assert torn_bytes(storage, content) <= len(stored)
    waiting = undecided([content])
    assert not {each.nonce for each in waiting.entries} & content.ended.keys()


def _with_header(how: int, rest: bytes, block: bytes) -> bytes:
    """Return a file: the header that the input brings or a good one, then the rest."""
    if how & HAS_OWN_HEADER:
        block, rest = rest[:HEADER_BLOCK_BYTES].ljust(HEADER_BLOCK_BYTES, b"\0"), rest[HEADER_BLOCK_BYTES:]
    stored = bytearray(block_buffers(block) + rest)
    if how & IS_SEALED:
        if how & HAS_OWN_HEADER:
            reseal_blocks(stored)
        reseal_frames(stored, SALT, FRAMES_START)
    return bytes(stored)


def batch_file(data: bytes) -> None:
    """Read a prepared batch: it is good as a whole, or it is said why it is not."""
    how, rest = (data[0], data[1:]) if data else (0, b"")
    stored = _with_header(how, rest, DataFileHeader(QUEUE_ID, 0, 0, 0, 0, 0, FILE_ID, SALT).encode())
    storage = BytesStorage({BATCH: stored})
    try:
        damage = verify_batch(storage, BATCH, QUEUE_ID)
    except UnsupportedVersionError:
        return
    found: list[tuple[bytes, bytes]] = []
    is_whole = True
    try:
        found.extend(messages(storage, BATCH, QUEUE_ID))
    except CorruptionError:
        is_whole = False
    assert is_whole or damage, "it cannot be read, and verify says nothing"
    with suppress(CorruptionError):
        summary = read_summary(storage, BATCH, QUEUE_ID)
        assert FRAMES_START <= summary.commit_record_position < summary.commit_record_end <= len(stored)
        assert not is_whole or len(found) == summary.message_count == summary.commit_record.count
        return
    assert damage, "it is refused, and verify says nothing"


def position_entries(data: bytes) -> None:
    """Read a group's progress: damage is reported, and all of it can be said again."""
    how, rest = (data[0], data[1:]) if data else (0, b"")
    block = PositionFileHeader(QUEUE_ID, GROUP_ID, 3, FILE_ID, SALT).encode()
    if how & HAS_OWN_HEADER:
        block, rest = rest[:HEADER_BLOCK_BYTES].ljust(HEADER_BLOCK_BYTES, b"\0"), rest[HEADER_BLOCK_BYTES:]
    stored = bytearray(block_buffers(block) + rest)
    if how & IS_SEALED:
        if how & HAS_OWN_HEADER:
            reseal_blocks(stored)
        reseal_entries(stored, SALT)
    queue = queue_directory(GROUP.parents[1])
    log = queue.data_file(DataFileName(7, LOG_END - ROOM))
    storage = BytesStorage({position_file(GROUP, 3): bytes(stored), log: bytes(ROOM * 32)})
    reader = PositionFileReader(storage, GROUP, QUEUE_ID, GROUP_ID, Reach(storage, queue), GroupProgress)
    try:
        progress = reader.refresh()
    except UnsupportedVersionError:
        return
    assert all(str(each) for each in reader.damage)
    again = GroupProgress()
    for change in checkpoint(progress):
        if not 4 < change.kind < 9:  # each by itself, but for those of votes
            apply_run((change,), again)
    assert again.floor == progress.floor
    assert list(again.runs()) == list(progress.runs())
    assert again.dead.keys() == progress.dead.keys()
    assert again.returned == progress.returned
    assert progress.seen_end <= progress.touched_end <= LOG_END + REACH_MAX
    assert len(progress.deliveries) <= len(rest) * 16 + LOG_END, "more deliveries than the log has messages"
    progress.live_count(1000)
