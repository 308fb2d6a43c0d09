"""Runs of frames: the loops that every message runs through. Pure; each has a compiled form in ``_core.c``.

They take good frames only, and stop in front of what is none. ``decode_frame`` tells why.
"""

from __future__ import annotations

from holdfast.compiled import compiled
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    FLAGS_SINGLE,
    FRAME_BODY,
    FRAME_BODY_START,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_SCAN,
    FRAME_SIZE_END,
    KIND_MESSAGE,
    RECORD_SIZE_MIN,
    STX,
)

_BODY_BYTES = FRAME_BODY.size


@compiled
def pass_messages(
    data: bytes, at: int, salt: int, position: int, index: int, alike: int, ends: list[int] | None, /
) -> tuple[int, int, int, int, int]:
    """Pass messages that follow one another and are alike: ``decode_frame`` unrolled by hand, without making frames.

    Parameters
    ----------
    data, at, salt, position
        As for ``decode_frame``.
    index : int
        That of the first message.
    alike : int
        Their flags FIRST and LAST: neither in the middle of a batch, both of messages that are no batch.
    ends : list of int or None
        Gets the position behind each of them; without it marks and timestamps are not looked at.

    Returns
    -------
    at, index : int
        The same of the next frame. It is of another kind, bad or incomplete; ``decode_frame`` tells which.
    durable_mark, earliest, latest : int
        The highest durable mark, and the least and the highest timestamp in ns; of none 0, 2**64 - 1 and 0.
    """
    shift, stop, last_start = position - at, len(data), len(data) - FRAME_HEADER_BYTES
    durable_mark, earliest, latest = 0, 2**64 - 1, 0
    unpack, crc = FRAME_HEADER.unpack_from, crc32c
    while at <= last_start:
        stx, size, checksum, kind, flags, headers_size, count, found, mark, timestamp = unpack(data, at)
        end = at + FRAME_SIZE_END + size
        if end > stop or crc(salt ^ size, data[at + FRAME_BODY_START : end]) != checksum or stx != STX:
            break
        if kind != KIND_MESSAGE or found != index or count != 1 or flags & FLAGS_SINGLE != alike:
            break
        if headers_size > size - RECORD_SIZE_MIN or mark > shift + at:
            break
        at = end
        index += 1
        if ends is not None:
            ends.append(shift + end)
            durable_mark = mark if mark > durable_mark else durable_mark  # max() would be a call for each
            earliest = timestamp if timestamp < earliest else earliest
            latest = timestamp if timestamp > latest else latest
    return at, index, durable_mark, earliest, latest


@compiled
def read_messages(
    data: bytes,
    at: int,
    stop: int,
    salt: int,
    base_timestamp_ns: int,
    first_offset: int,
    index: int,
    index_end: int,
    shift: int,
    sequence: int,
    records: list[tuple[int, int, bytes, bytes, int, int]],
    gaps: list[int] | None,
    /,
) -> tuple[int, int, bool, bool]:
    """Append a record for each message from ``data[at]`` on.

    Parameters
    ----------
    data, at, stop
        The bytes, where the first frame starts, and the end of what may be read.
    salt, base_timestamp_ns, first_offset
        Of the data file.
    index, index_end : int
        Index of the first message, and of the first one that is not wanted.
    shift, sequence : int
        The position of ``data`` in the file, and what each record says of its file.
    records, gaps
        Get what is found. With ``gaps``, those of a merged file, a higher index is not bad: they get the index that
        would be next and the one that is, which may be behind ``index_end``.

    Returns
    -------
    at, index : int
        The same of the next frame.
    is_good, has_headers : bool
        Whether it stopped for another reason than a bad frame or a wrong index, and whether a message has headers.
    """
    is_good, has_headers, last_start = True, False, stop - FRAME_HEADER_BYTES
    unpack, append, crc = FRAME_SCAN.unpack_from, records.append, crc32c
    while index < index_end and at <= last_start:
        stx, size, checksum, kind, headers_size, found, timestamp = unpack(data, at)
        end = at + FRAME_SIZE_END + size
        if end > stop:
            break
        body = data[at + FRAME_BODY_START : end]
        if crc(salt ^ size, body) != checksum or stx != STX or headers_size > size - RECORD_SIZE_MIN:
            is_good = False
            break
        if gaps is not None and found > index:
            gaps += (index, found)
            index = found
            if kind == KIND_MESSAGE and index >= index_end:
                break
        if kind == KIND_MESSAGE:
            if found != index:
                is_good = False
                break
            if timestamp < base_timestamp_ns:  # noqa: PLR1730  # max() would be a call for every record
                timestamp = base_timestamp_ns
            if headers_size:
                has_headers, payload_at = True, _BODY_BYTES + headers_size
                headers = body[_BODY_BYTES:payload_at]
                append((first_offset + index, timestamp, headers, body[payload_at:], shift + end, sequence))
            else:
                append((first_offset + index, timestamp, b"", body[_BODY_BYTES:], shift + end, sequence))
            index += 1
        at = end
    return at, index, is_good, has_headers


@compiled
def find_messages(
    data: bytes,
    at: int,
    salt: int,
    base_timestamp_ns: int,
    index: int,
    index_end: int,
    bounds: list[int],
    timestamps_ns: list[int],
    headers: dict[int, bytes],
    gaps: list[int] | None,
    /,
) -> tuple[int, int, bool, bool]:
    """Note where the payloads of messages are in ``data``, from ``data[at]`` on, without copying them.

    Parameters
    ----------
    data, at, salt, base_timestamp_ns, index, index_end
        As for :func:`read_messages`; the end of ``data`` is the end.
    bounds : list of int
        Gets two for each message: where its payload starts, and the byte behind it.
    timestamps_ns : list of int
        Gets theirs.
    headers : dict of int to bytes
        Gets the encoded headers of those that have some, by their place in ``timestamps_ns``.
    gaps
        As for :func:`read_messages`.

    Returns
    -------
    at, index, is_good
        As of :func:`read_messages`.
    has_others : bool
        Whether there are frames that are no messages.
    """
    stop, last_start = len(data), len(data) - FRAME_HEADER_BYTES
    is_good, has_others = True, False
    unpack, crc, note, stamp = FRAME_SCAN.unpack_from, crc32c, bounds.append, timestamps_ns.append
    while index < index_end and at <= last_start:
        stx, size, checksum, kind, headers_size, found, timestamp = unpack(data, at)
        end = at + FRAME_SIZE_END + size
        if end > stop:
            break
        body = data[at + FRAME_BODY_START : end]
        if crc(salt ^ size, body) != checksum or stx != STX or headers_size > size - RECORD_SIZE_MIN:
            is_good = False
            break
        if gaps is not None and found > index:
            gaps += (index, found)
            index = found
            if kind == KIND_MESSAGE and index >= index_end:
                break
        if kind != KIND_MESSAGE:
            has_others = True
        elif found != index:
            is_good = False
            break
        else:
            if headers_size:
                headers[len(timestamps_ns)] = body[_BODY_BYTES : _BODY_BYTES + headers_size]
            note(at + FRAME_HEADER_BYTES + headers_size)
            note(end)
            stamp(timestamp if timestamp > base_timestamp_ns else base_timestamp_ns)  # max() would be a call for each
            index += 1
        at = end
    return at, index, is_good, has_others
