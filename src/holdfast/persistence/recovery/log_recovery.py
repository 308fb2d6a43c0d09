"""Opens the log after a crash or a close: finds its end, makes it durable, and reports damage.

Idempotent: a crash anywhere in recovery, and another recovery, give the same result. docs/format.md, "Recovery".

After an unclean close the accepted bytes above the witness are written again in place and synced, because a failed sync
or a kill can leave clean pages in memory that are not on the disk. Then the file is cut behind them, and is never
appended to again. The next append makes a new file, whose header names this one's accepted end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.fence import Fence
from holdfast.persistence.filesystem.file_names import finish_naming, name_again, refuse_second_name
from holdfast.persistence.filesystem.layout import DataFileName, QueueDirectory, check_header
from holdfast.persistence.filesystem.locks import read_owner
from holdfast.persistence.filesystem.storage import File, Storage, write_whole
from holdfast.persistence.format.constants import FRAMES_START, KIND_MESSAGE, MESSAGES_MAX
from holdfast.persistence.format.file_header import DataFileHeader, block_copies
from holdfast.persistence.format.report import DAMAGED, UNSYNCED_OR_DAMAGED, Damage, RecoveryReport
from holdfast.persistence.log import next_data_file
from holdfast.persistence.log.log_files import LogFiles, withdrawn_path
from holdfast.persistence.log.log_tail import LogTail
from holdfast.persistence.log.watermark import Watermark, read_write_mark
from holdfast.persistence.recovery.commit_record_scan import find_commit_records
from holdfast.persistence.recovery.tail_scan import TailScan, scan_tail
from holdfast.persistence.segment.frame_scanner import claimed_frames

_COPY_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The log, ready to be written: its end, the handle of ``write.mark``, the report, and the token put there."""

    tail: LogTail
    mark: File
    report: RecoveryReport
    fence: Fence


def recover_log(
    storage: Storage, directory: QueueDirectory, files: LogFiles, queue_id: bytes, *, finished_offset: int
) -> RecoveredLog:
    """Find the end of the log and make it durable. The caller holds the write lock and the groups lock.

    Parameters
    ----------
    storage, directory, files, queue_id
        The queue.
    finished_offset : int
        Behind the last message that any group has finished: offsets below it were seen, so they are never given to
        another message, even if the bytes are lost.

    Raises
    ------
    UnsupportedVersionError
        A Holdfast of another format version wrote the last file.
    OSError
        The disk refuses.
    """
    fence = Fence(lambda: read_owner(storage, directory.write_lock))
    mark_file = storage.open(directory.write_mark, create=True)
    try:
        refuse_second_name(mark_file, directory.write_mark)
        fence.put(mark_file)  # first: an earlier owner that appends from here on finds the token before it confirms
        next_data_file.delete_spares(storage, directory)
        finish_naming(storage, directory.data)
        files.refresh()
        storage.sync_directory(directory.data)  # of what it holds, a killed process may have synced nothing
        withdrawn = _finish_merges(files)
        mark = read_write_mark(mark_file, queue_id, directory.write_mark)
        names = files.names()
        if names:
            name = names[-1]
            tail, report = _recover_tail(storage, files.path(name), name, mark, queue_id)
            files.resize(name.sequence, tail.position)
            if tail.file is None and (mark is None or mark.file_id != tail.header.file_id):
                name_again(storage, files.path(name))  # write.mark names a file once its name is durable
                storage.sync_directory(directory.data)
        else:
            tail, report = LogTail(DataFileHeader(queue_id, 0, 0, 0), 0, 0, 0, None), RecoveryReport()
        tail, report = _miss_last_file(tail, report, mark, directory.data)
        path = files.path(names[-1]) if names else directory.data
        tail, report = _keep_offsets(tail, report, path, finished_offset, "finished by a group, but not in the log")
        if withdrawn:
            report = replace(report, clean=False, damage=(*withdrawn, *report.damage))
    except BaseException:
        mark_file.close()
        raise
    return RecoveredLog(tail, mark_file, report, fence)


def _finish_merges(files: LogFiles) -> list[Damage]:
    """End merges whose process died; report each merged file that does not verify, and have its sources count again.

    Only here, before this process reads the log.
    """
    damaged = files.finish_merges()
    if not damaged:
        return []
    advice = "it was withdrawn, and the files that it had replaced count again"
    sizes = {name: files.size_of(name) for name in damaged}
    files.withdraw(damaged)
    return [
        Damage(withdrawn_path(files.path(name)), 0, sizes[name], range(0), DAMAGED, f"{reason}; {advice}")
        for name, reason in damaged.items()
    ]


def _recover_tail(
    storage: Storage, path: Path, name: DataFileName, mark: Watermark | None, queue_id: bytes
) -> tuple[LogTail, RecoveryReport]:
    file = storage.open(path)
    try:
        header = DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))
    except CorruptionError as error:
        header = DataFileHeader(queue_id, name.sequence, name.first_offset, 0)
        try:
            return _give_up_file(file, header, mark, path, str(error))
        finally:
            file.close()
    except BaseException:
        file.close()
        raise
    tail = None
    try:
        check_header(header, name, queue_id, path)
        if mark is not None and mark.file_id != header.file_id:
            mark = None
        scan, size = scan_tail(file, header, path, mark), file.size()
        if not scan.clean:
            _make_durable(file, scan)
        elif mark is None or mark.synced < scan.end:  # the closing process was killed, or the sync of the end failed
            durable = scan.end if scan.is_sealed else FRAMES_START if mark is None else max(FRAMES_START, mark.synced)
            _make_durable(file, replace(scan, witness=durable))
        commit_records = find_commit_records(file, header, scan)
        appendable = file if scan.clean and not scan.is_sealed else None
        tail = LogTail(header, scan.end, scan.message_count, scan.timestamp_ns, appendable, commit_records)
        report = RecoveryReport(
            clean=scan.clean or scan.is_settled(size),
            recovered_count=scan.recovered_count,
            rewritten_bytes=max(0, scan.end - scan.witness),
            torn_bytes=scan.torn_bytes,
            damage=tuple(scan.damage),
        )
        if mark is not None and not mark.synced_only:
            tail, report = _keep_offsets(
                tail, report, path, header.first_offset + mark.written_count, "written, but not on the disk"
            )
        return tail, report
    finally:
        if tail is None or tail.file is None:
            file.close()


def _make_durable(file: File, scan: TailScan) -> None:
    """Write the accepted bytes above the witness again, cut the rest, and sync both.

    A failed sync may have lost the size too, and writing inside a file gives it no new one.
    """
    at = scan.witness
    while at < scan.end:
        data = file.read_at(min(_COPY_BYTES, scan.end - at), at)
        write_whole(file, (data,), at)
        at += len(data)
    if file.size() == scan.end > scan.witness:
        file.truncate(scan.end + 1)
    if file.size() > scan.end:
        file.truncate(scan.end)
    file.sync()


def missing_last_file(mark: Watermark | None, data: Path, sequence: int, next_offset: int) -> Damage | None:
    """Return the damage if the last file in ``data`` is ``sequence`` and ``write.mark`` names a later one.

    The damage names no message if the later file, against the order of the log, ends before ``next_offset``.
    """
    if mark is None or mark.sequence <= sequence:
        return None
    lost = range(next_offset, max(next_offset, mark.first_offset + mark.visible[1]))
    if mark.sequence == sequence + 1:
        return Damage(data, 0, 0, lost, DAMAGED, f"data file {mark.sequence}, the last one, is missing")
    return Damage(
        data, 0, 0, lost, DAMAGED, f"data files {sequence + 1} to {mark.sequence}, the last ones, are missing"
    )


def _miss_last_file(
    tail: LogTail, report: RecoveryReport, mark: Watermark | None, data: Path
) -> tuple[LogTail, RecoveryReport]:
    """Continue behind a missing last file: ``write.mark`` names a file only once it is durable in ``data/``.

    Its sequence is not used again either, because progress names positions in it.
    """
    damage = missing_last_file(mark, data, tail.header.sequence, tail.next_offset)
    if mark is None or damage is None:
        return tail, report
    if tail.file is not None:
        tail.file.close()
    header = DataFileHeader(tail.header.queue_id, mark.sequence, tail.next_offset, tail.timestamp_ns)
    timestamp = max(tail.timestamp_ns, mark.timestamp_ns)
    tail = LogTail(header, 0, 0, timestamp, None, tail.commit_records)  # its carried records were here before
    tail = _going_on_at(tail, damage.offsets.stop, mark.sequence)
    return tail, replace(report, clean=False, damage=(*report.damage, damage))


def _keep_offsets(
    tail: LogTail, report: RecoveryReport, path: Path, next_offset: int, reason: str
) -> tuple[LogTail, RecoveryReport]:
    """Never give an offset again that may have been seen: continue behind it, and report missing messages."""
    missing = range(tail.next_offset, next_offset)
    if not missing:
        return tail, report
    if tail.file is not None:
        tail.file.close()
    damage = Damage(path, tail.position, 0, missing, UNSYNCED_OR_DAMAGED, reason)
    tail = _going_on_at(tail, next_offset, tail.header.sequence + 1)
    return tail, replace(report, clean=False, damage=(*report.damage, damage))


def _going_on_at(tail: LogTail, next_offset: int, sequence: int) -> LogTail:
    """Return a tail behind which the next message has an offset, in a file of its own.

    If that skips more than one file can hold, the tail is that of an imaginary, empty file ``sequence``.
    """
    count = next_offset - tail.header.first_offset
    if count <= MESSAGES_MAX:
        return replace(tail, message_count=count, file=None)
    header = DataFileHeader(tail.header.queue_id, sequence, next_offset, tail.timestamp_ns)
    return replace(tail, header=header, position=0, message_count=0, file=None)


def _give_up_file(
    file: File, header: DataFileHeader, mark: Watermark | None, path: Path, reason: str
) -> tuple[LogTail, RecoveryReport]:
    """Give up a last file that has lost both copies of its header: without the salt no frame verifies.

    The number of its messages comes from ``write.mark``, or else from walking STX and record sizes.
    """
    count = count_unreadable(file, header.sequence, mark)
    size = file.size()
    lost = range(header.first_offset, header.first_offset + count)
    damage = Damage(path, 0, size, lost, UNSYNCED_OR_DAMAGED, reason)
    timestamp = mark.timestamp_ns if mark is not None else 0
    return LogTail(header, size, count, timestamp, None), RecoveryReport(clean=False, damage=(damage,))


def count_unreadable(file: File, sequence: int, mark: Watermark | None) -> int:
    """Return how many messages a last file without a good header held, as far as known."""
    if mark is not None and mark.sequence == sequence:
        return mark.written_count
    claimed = claimed_frames(file, FRAMES_START, file.size())
    return sum(kind == KIND_MESSAGE for _, _, kind, _, _ in claimed)
