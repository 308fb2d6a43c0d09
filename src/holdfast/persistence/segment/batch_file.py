"""Writes batch files: a data file in waiting, which holds the puts of one transaction. docs/format.md, "Batch files".

Header, messages with indexes from 0, the commit record, a seal: a header with its place in the log, and a name in
``data/``, make it a data file. Only the last chunk is held in memory.

What is *not* promised: nothing is durable before :meth:`BatchFileWriter.sync`, nor is the name before its directory is
synced.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import CorruptionError, RecordTooLargeError
from holdfast.persistence.filesystem.storage import BUFFERS_MAX, File, Storage, storage_errors, write_whole
from holdfast.persistence.format.checksum import crc32c, reseed
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import (
    DATA_FILE_BYTES_LIMIT,
    FLAG_FIRST,
    FLAG_HEADERS,
    FLAG_LAST,
    FLAGS_SINGLE,
    FRAME_BODY,
    FRAME_HEADER_BYTES,
    FRAME_PREFIX,
    FRAMES_START,
    HEADER_COPY_POSITIONS,
    INDEX_STRIDE_BYTES,
    KIND_COMMIT_RECORD,
    KIND_MESSAGE,
    KIND_SEAL,
    RECORD_SIZE_MIN,
    STX,
)
from holdfast.persistence.format.file_header import DataFileHeader, block_buffers
from holdfast.persistence.format.framing import encode_frame, encode_messages
from holdfast.persistence.format.seal import Seal, seal_room
from holdfast.persistence.segment.batch_file_buffer import CHUNK_BYTES, FileBuffer
from holdfast.persistence.segment.batch_file_reader import BadBatchError, BatchSummary, note_entry, summarise

COMMIT_RECORDS_ROOM_BYTES = 16 * 2**20
"""Kept free below the limit of a data file, for the decision and for those carried behind it: some 400,000 runs of
acknowledged messages."""


class _State(NamedTuple):
    """The messages added so far; replaced as a whole, so that an interruption leaves the old or the new state."""

    end: int = FRAMES_START
    message_count: int = 0
    timestamp_min_ns: int = 0
    timestamp_max_ns: int = 0


class BatchFileWriter:
    """Writes one new batch file. A call that raises has added nothing.

    Parameters
    ----------
    storage, path
        Where to make the file; the caller makes sure that the name is free and its directory exists.
    queue_id : bytes, length 16
        The queue that the messages are for.
    bytes_max : int
        Bound of the file with its messages and its seal.

    Attributes
    ----------
    path : Path
        The file.
    header : DataFileHeader
        Its header; its salt and its file id stay when it becomes a data file.
    file : File
        Its handle.

    Raises
    ------
    DiskFullError, StorageError
        From here and from every method: the disk refuses.
    """

    def __init__(
        self, storage: Storage, path: Path, queue_id: bytes, *, bytes_max: int = DATA_FILE_BYTES_LIMIT
    ) -> None:
        self.path = path
        self.header = DataFileHeader(queue_id, sequence=0, first_offset=0, base_timestamp_ns=0)
        self._storage = storage
        self._limit = min(bytes_max, DATA_FILE_BYTES_LIMIT - COMMIT_RECORDS_ROOM_BYTES)
        self._entries: list[tuple[int, int]] = []
        self._state = _State()
        self._finished_end = 0
        with storage_errors("making a batch file", path):
            self.file = storage.open(path, create=True)
        self._buffer = FileBuffer(self.file)
        self._buffer.append(block_buffers(self.header.encode()))

    @property
    def message_count(self) -> int:
        """Messages added."""
        return self._state.message_count

    @property
    def end(self) -> int:
        """Position behind the last message; once finished, the size of the file."""
        return self._finished_end or self._state.end

    # -- Adding ------------------------------------------------------------------------------------------------------

    def add(self, payload: bytes, headers: bytes, timestamp_ns: int) -> None:
        """Add one message.

        Raises
        ------
        RecordTooLargeError
            The file would pass its bound.
        """
        self.add_many((payload,), {0: headers} if headers else {}, timestamp_ns)

    def add_many(self, payloads: Sequence[bytes], headers: Mapping[int, bytes], timestamp_ns: int) -> None:
        """Add messages, all or none; ``headers`` are the encoded headers of some of them, by number.

        Raises as :meth:`add`.
        """
        state = self._begin()
        positions = _positions(state.end, payloads, headers)
        with self._room_given_back():
            self._check_room(positions[-1])
            for first, end in _runs(positions):
                frames = encode_messages(
                    self.header.salt,
                    state.message_count + first,
                    0,
                    timestamp_ns,
                    _shifted(headers, first, end),
                    payloads[first:end],
                    state.message_count + first == 0,
                    False,
                )
                with storage_errors("writing a batch", self.path):
                    self._buffer.append(*frames)
            self._state = self._advance(state, positions, timestamp_ns)

    def add_stream(self, chunks: Iterable[Any], headers: bytes, timestamp_ns: int, *, max_bytes: int) -> int:
        """Add one message in pieces, without holding it in memory; return its size.

        Raises
        ------
        TypeError
            A piece is not bytes-like.
        RecordTooLargeError
            It has more than ``max_bytes``, or the file would pass its bound.
        """
        state, salt = self._begin(), self.header.salt
        start = FRAME_BODY.pack(
            KIND_MESSAGE, _flags(state.message_count, headers), len(headers), 1, state.message_count, 0, timestamp_ns
        )
        start += headers
        size, crc = 0, crc32c(salt, start)
        with self._room_given_back():
            self._append(bytes(FRAME_PREFIX.size) + start)
            for chunk in chunks:
                for piece in _pieces(chunk):
                    size += len(piece)
                    if size > max_bytes:
                        raise RecordTooLargeError(
                            f"a streamed message has {size} bytes or more; at most {max_bytes}",
                            size_bytes=size,
                            max_bytes=max_bytes,
                        )
                    self._append(piece)
                    crc = crc32c(crc, piece)
            record_size = RECORD_SIZE_MIN + len(headers) + size
            crc = reseed(crc, salt, salt ^ record_size, len(start) + size)
            with storage_errors("writing a batch", self.path):
                self._buffer.overwrite(FRAME_PREFIX.pack(STX, record_size, crc), state.end)
            self._state = self._advance(state, (state.end, self._buffer.end), timestamp_ns)
        return size

    def _begin(self) -> _State:
        """Undo a failed call, and return the position to continue at."""
        assert not self._finished_end, "a finished batch takes no more"
        self._buffer.rewind(self._state.end)
        return self._state

    def _append(self, piece: bytes) -> None:
        self._check_room(self._buffer.end + len(piece))
        with storage_errors("writing a batch", self.path):
            self._buffer.append(piece)

    def _check_room(self, end: int) -> None:
        if end + seal_room(end) > self._limit:
            raise RecordTooLargeError(
                f"a transaction of {end} bytes or more cannot commit: at most {self._limit}; put less in one",
                size_bytes=end,
                max_bytes=self._limit,
            )

    def _advance(self, state: _State, positions: Sequence[int], timestamp_ns: int) -> _State:
        """Return the state after the messages between these positions are added."""
        first, count, number = state.message_count, len(positions) - 1, 0
        if not count:
            return state
        while number < count:
            note_entry(self._entries, first + number, positions[number])
            number = bisect_left(positions, self._entries[-1][1] + INDEX_STRIDE_BYTES, number + 1, count)
        earliest = min(state.timestamp_min_ns, timestamp_ns) if first else timestamp_ns
        latest = max(state.timestamp_max_ns, timestamp_ns)
        return _State(positions[-1], first + count, earliest, latest)

    @contextmanager
    def _room_given_back(self) -> Iterator[None]:
        """If adding fails, give its space back: the disk may be full because of it."""
        try:
            yield
        except BaseException:
            needed = min(self._buffer.written, self._state.end)  # the rest of what counts is in memory
            with suppress(OSError):
                self.file.truncate(needed)
            raise

    # -- Ending ------------------------------------------------------------------------------------------------------

    def finish(self, commit_record: CommitRecord) -> BatchSummary:
        """Write the commit record and the seal, and cut the file behind them; nothing is synced. Return the summary.

        ``decision.count`` has to be that of the messages, and its first offset unknown.
        """
        state, salt = self._begin(), self.header.salt
        count = state.message_count
        assert commit_record.count == count and commit_record.first_offset is None, (
            "the decision speaks of other messages"
        )
        timestamp = max(commit_record.timestamp_ns, state.timestamp_max_ns)
        flags = FLAG_LAST | (0 if count else FLAG_FIRST)
        record_frame = _control_frame(salt, KIND_COMMIT_RECORD, commit_record.encode(), count, timestamp, flags)
        entries = tuple(entry for entry in self._entries if entry[0] < count)
        seal = Seal(count, state.timestamp_min_ns, state.timestamp_max_ns, entries)
        sealed = _control_frame(salt, KIND_SEAL, seal.encode(), count, timestamp)
        end = state.end + len(record_frame) + len(sealed)
        _check_file_size(end)
        with storage_errors("writing a batch", self.path):
            self._buffer.append(record_frame, sealed)
            self._buffer.flush()
            self.file.truncate(end)
        self._finished_end = end
        return BatchSummary(
            self.path, self.header, commit_record, seal, state.end, state.end + len(record_frame), end, is_sealed=True
        )

    def resume(self) -> None:
        """Continue adding: undo :meth:`finish`, so that the end can be written differently."""
        self._finished_end = 0

    def move(self, path: Path) -> None:
        """Give the file another name in its directory, which is not in use; that is not durable."""
        if path != self.path:
            with storage_errors("renaming a batch", self.path):
                self._storage.rename(self.path, path)
            self.path = path

    def sync(self) -> None:
        """Sync the file. After a failure its contents are unknown: discard it, never try again."""
        with storage_errors("syncing a batch", self.path):
            self.file.sync()

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def discard(self) -> None:
        """Close the file and remove it; the removal is durable once its directory is synced."""
        self.file.close()
        with storage_errors("removing a batch", self.path), suppress(FileNotFoundError):
            self._storage.remove(self.path)


# -- Becoming a data file --------------------------------------------------------------------------------------------


def adopt_header(file: File, header: DataFileHeader) -> None:
    """Give a batch file the header of its place in the log: another one of the same file id and salt.

    One copy is on the disk before the other is written, so a crash leaves one that is good: the old or the new. The
    second copy is not synced here. Raises ``OSError``.
    """
    block = header.encode()
    first, second = HEADER_COPY_POSITIONS
    write_whole(file, (block,), first)
    file.sync()
    write_whole(file, (block,), second)


def append_carried(file: File, header: DataFileHeader, commit_records: Sequence[CommitRecord]) -> None:
    """Write commit records of other transactions behind that of a batch, then its seal; nothing is synced.

    All bytes behind the batch's own commit record are replaced, so doing it again repairs a crash in the middle.
    Without records to carry, it removes the rest of an earlier crash.

    Raises
    ------
    CorruptionError
        The file holds no whole batch.
    RecordTooLargeError
        No data file could hold all that.
    OSError
        The disk refuses.
    """
    try:
        batch = summarise(file, header, Path("batch"))
    except BadBatchError as error:
        raise CorruptionError(f"this is no whole batch: {error.reason}; abort it", position=error.position) from None
    count, timestamp = batch.message_count, max(batch.commit_record.timestamp_ns, batch.timestamp_max_ns)
    frames = [
        _control_frame(header.salt, KIND_COMMIT_RECORD, each.encode(), count, timestamp) for each in commit_records
    ]
    frames.append(_control_frame(header.salt, KIND_SEAL, batch.seal.encode(), count, timestamp))
    end = batch.commit_record_end + sum(map(len, frames))
    _check_file_size(end)
    write_whole(file, frames, batch.commit_record_end)
    file.truncate(end)


# -- Parts -----------------------------------------------------------------------------------------------------------


def _flags(index: int, headers: bytes) -> int:
    return (0 if index else FLAG_FIRST) | (FLAG_HEADERS if headers else 0)


def _positions(start: int, payloads: Sequence[bytes], headers: Mapping[int, bytes]) -> Sequence[int]:
    """Return the position of each message, and the position behind the last one."""
    sizes = [FRAME_HEADER_BYTES + len(payload) for payload in payloads]
    for number, stored in headers.items():
        sizes[number] += len(stored)
    return array("Q", accumulate(sizes, initial=start))


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of messages to encode together: as many as fill a chunk, but no more than one write takes."""
    first, count = 0, len(positions) - 1
    while first < count:
        end = bisect_left(positions, positions[first] + CHUNK_BYTES, first + 1, count)
        end = min(end, first + BUFFERS_MAX // 2)
        yield first, end
        first = end


def _shifted(headers: Mapping[int, bytes], first: int, end: int) -> dict[int, bytes]:
    """Return the headers of messages ``first`` up to ``end``, by number among these."""
    if not headers:
        return {}
    return {number - first: stored for number in range(first, end) if (stored := headers.get(number))}


def _control_frame(
    salt: int, kind: int, payload: bytes, index: int, timestamp_ns: int, flags: int = FLAGS_SINGLE
) -> bytes:
    return b"".join(
        encode_frame(salt, payload, index=index, durable_mark=0, timestamp_ns=timestamp_ns, kind=kind, flags=flags)
    )


def _check_file_size(end: int) -> None:
    if end > DATA_FILE_BYTES_LIMIT:
        raise RecordTooLargeError(
            f"{end} bytes cannot commit together: a data file holds less than 4 GiB; put less in one transaction",
            size_bytes=end,
            max_bytes=DATA_FILE_BYTES_LIMIT,
        )


def _pieces(chunk: Any) -> Iterator[bytes]:
    """Yield the bytes of anything bytes-like, a bounded number at a time."""
    try:
        view = memoryview(chunk)
    except TypeError:
        raise TypeError(f"a piece of a message has to be bytes-like, not {type(chunk).__name__}") from None
    if view.nbytes <= CHUNK_BYTES or not view.c_contiguous:
        yield view.tobytes()
        return
    view = view.cast("B")
    for at in range(0, len(view), CHUNK_BYTES):
        yield view[at : at + CHUNK_BYTES].tobytes()
