"""JSON lines from a stream, checked, in batches: many at once from a file, single ones from a slow pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.errors import EncodeError, HoldfastError, RecordTooLargeError

BATCH_LINES_MAX = 1000
LINE_BYTES_MAX = 16 * 2**20
"""What a queue takes as a payload unless told otherwise; a line without an end is given up there."""

_READ_BYTES = 2**20

JSON_CONTENT_TYPE = "application/json"


def json_batches(read_some: Callable[[int], bytes]) -> Iterator[list[bytes]]:
    """Yield lines without their ends, as they come; blank ones are skipped.

    Parameters
    ----------
    read_some : callable
        Takes how many bytes at most, waits until there are some, and returns them; none at the end.

    Raises
    ------
    EncodeError, RecordTooLargeError
        A line is not JSON, or too long. All lines before it were yielded. Attribute: ``line``, its number from 1.
    """
    count = number = 0
    for lines in _lines(read_some):
        batch: list[bytes] = []
        problem: HoldfastError | None = None
        for raw in lines:
            number += 1
            line = raw.strip(b" \t\r")
            problem = _problem(line, number, count + len(batch)) if line else None
            if problem is not None:
                break
            if line:
                batch.append(line)
        for start in range(0, len(batch), BATCH_LINES_MAX):
            yield batch[start : start + BATCH_LINES_MAX]
        count += len(batch)
        if problem is not None:
            raise problem


def _lines(read_some: Callable[[int], bytes]) -> Iterator[list[bytes]]:
    """Yield the lines that each read completes, and the last one, which needs no end."""
    pieces: list[bytes] = []
    waiting = 0
    while some := read_some(_READ_BYTES):
        pieces.append(some)
        waiting += len(some)
        if b"\n" in some:
            *lines, rest = b"".join(pieces).split(b"\n")
            yield lines
            pieces, waiting = [rest], len(rest)
        elif waiting > LINE_BYTES_MAX:
            break
    yield [b"".join(pieces)]


def _problem(line: bytes, number: int, good_count: int) -> HoldfastError | None:
    import msgspec

    before = f"put before it: {good_count}, after it: none"
    if len(line) > LINE_BYTES_MAX:
        return RecordTooLargeError(
            f"line {number} is longer than {LINE_BYTES_MAX} bytes; {before}",
            size_bytes=len(line),
            max_bytes=LINE_BYTES_MAX,
            line=number,
        )
    try:
        msgspec.json.decode(line)
    except (ValueError, RecursionError) as error:
        return EncodeError(
            f"line {number} is not JSON ({error}); {before}", content_type=JSON_CONTENT_TYPE, line=number
        )
    return None
