"""A reader that skips plain messages by their frame headers alone, for large reservations.

It verifies the last frame of every stretch, not those before it. A damaged size leads to a place without a frame of the
right number. So a stretch whose last frame verifies has the right count and end. Damage inside one of its messages is
found when that is read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    FRAME_BODY_START,
    FRAME_HEADER_BYTES,
    FRAME_SCAN,
    FRAME_SIZE_END,
    KIND_MESSAGE,
    KINDS,
    RECORD_SIZE_MIN,
    STX,
)
from holdfast.persistence.format.message_options import has_options
from holdfast.persistence.log.log_reader import LogReader
from holdfast.persistence.log.log_tail import LogEnd

_STRIDE_BYTES = 2**18
"""Read at once; one frame of each is verified."""

_KNOWN_HEADERS_MAX = 4096
"""Headers that are known to ask for nothing: nearly always a few, the same for all messages of one type."""

_WALK = struct.Struct("<BI4xB2xH2xI12x")
"""STX, record size, kind, size of the headers, index: what FRAME_SCAN has, without what nobody asks for here."""

assert _WALK.size == FRAME_SCAN.size == FRAME_HEADER_BYTES


class PlainRun(NamedTuple):
    """Contiguous messages of one data file, without options.

    Attributes
    ----------
    first_offset, message_count : int
        Which they are.
    sequence, end_position : int
        The data file, and the position behind the last of them.
    size_bytes : int
        Of their payloads.
    """

    first_offset: int
    message_count: int
    sequence: int
    end_position: int
    size_bytes: int


class RunReader(LogReader):
    """A cursor that can skip many messages at once."""

    _plain_headers: frozenset[bytes] = frozenset()

    def pass_plain(self, count_max: int, bytes_max: int, end: LogEnd) -> PlainRun | None:
        """Skip up to ``count_max`` messages without options, of ``bytes_max`` bytes together.

        Returns
        -------
        PlainRun or None
            Them; None if the next one has options, does not fit, is damaged, or is not in this file: then :meth:`read`
            tells which.

        Notes
        -----
        A message whose payload is damaged may be among them.
        """
        if self._is_idle:
            self._end_rest()
        limit = self._limit(end) if self._file is not None else 0
        first, count, size = self.next_offset, 0, 0
        known = set(self._plain_headers)
        while count < count_max and self._position < limit:
            passed, passed_bytes = self._pass_stride(limit, count_max - count, bytes_max - size, known)
            count, size = count + passed, size + passed_bytes
            if not passed:
                break
        if len(known) <= _KNOWN_HEADERS_MAX:
            self._plain_headers = frozenset(known)
        if not count:
            return None
        return PlainRun(first, count, self._name.sequence, self._position, size)

    def _pass_stride(self, limit: int, count_max: int, bytes_max: int, known: set[bytes]) -> tuple[int, int]:
        """Skip messages in the next stretch of the file; return how many, and the size of their payloads."""
        assert self._file is not None
        buffer = self._file.read_at(min(_STRIDE_BYTES, limit - self._position), self._position)
        stop, last_start, at = len(buffer), len(buffer) - FRAME_HEADER_BYTES, 0
        first = index = self.next_offset - self._header.first_offset
        index_end, size, last, passed_to = index + count_max, 0, -1, 0
        unpack = _WALK.unpack_from
        while index != index_end and at <= last_start:
            stx, record_size, kind, headers_size, found = unpack(buffer, at)
            end = at + FRAME_SIZE_END + record_size
            payload_size = record_size - RECORD_SIZE_MIN - headers_size
            if stx != STX or end > stop or payload_size < 0:
                break
            if kind == KIND_MESSAGE:
                if found != index or size + payload_size > bytes_max:
                    break
                if headers_size:
                    headers = buffer[at + FRAME_HEADER_BYTES : at + FRAME_HEADER_BYTES + headers_size]
                    if headers not in known:
                        if has_options(headers):
                            break
                        known.add(headers)
                size += payload_size
                index += 1
                last, passed_to = at, end
            elif kind not in KINDS or found > index:  # the latter: the seal of a merged file
                break
            at = end
        if last < 0 or not self._verifies(buffer, last, passed_to):
            return 0, 0
        self._position += passed_to
        self.next_offset += index - first
        self._buffer, self._at = b"", 0
        return index - first, size

    def _verifies(self, buffer: bytes, at: int, end: int) -> bool:
        checksum = FRAME_SCAN.unpack_from(buffer, at)[2]
        salt, body = self._header.salt, buffer[at + FRAME_BODY_START : end]
        return bool(crc32c(salt ^ (end - at - FRAME_SIZE_END), body) == checksum)
