"""The compiled functions and their twins in Python: what one returns, or refuses, the other does. docs/adr/0071."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

from holdfast.arrow.reading import frame_walk  # noqa: F401 - what uses a twin defines it
from holdfast.compiled import compiled_form, twins
from holdfast.persistence.format.constants import FLAGS_SINGLE
from holdfast.persistence.groups import position_entry  # noqa: F401 - as above
from holdfast.persistence.log import log_reader  # noqa: F401 - as above
from proof.fuzz.reseal import crc, reseal_entries, reseal_frames

SALT = 0x5A17
_START_BYTES = 4
_LONG_BYTES = 32 * 2**10
"""A checksum of so many gives the interpreter up, and is made of stretches of each length."""

_FIELD_BYTES = (1, 1, 2, 4, 4, 8, 8, 8, 8, 8, 4, 4)
"""Of an entry, in the order of ``pack_entry``."""

_FILLED = (list, dict)
"""What is filled by those that are called."""

Outcome = tuple[Any, ...]


def compare(data: bytes) -> None:
    """Hand the same bytes and numbers to both; without the extension there is nothing to compare."""
    if len(data) < _START_BYTES or compiled_form("crc32c") is None:
        return
    mode, index, at, count = data[:_START_BYTES]
    content = bytearray(data[_START_BYTES:])
    start = at % 4
    if mode & 1:
        reseal_frames(content, SALT, start)
    elif mode & 2:
        reseal_entries(content, SALT, start)
    stored = bytes(content)
    _compare_scans(stored, start, index % 4, count % 8, mode)
    _compare_encoding(stored, mode, index, count)
    for number in {int.from_bytes(stored[start + 8 : start + 12], "little"), index}:
        assert_same("unpack_entry", stored, start, SALT, number)
    if len(stored) >= sum(_FIELD_BYTES):
        _compare_packing(stored)
    long = stored * (_LONG_BYTES // max(1, len(stored)) + count % 4) if mode % 32 == 4 else stored
    for summed in {stored, long}:
        by_core, by_table = compiled_form("crc32c")(index, summed), compiled_form("crc32c_by_table")(index, summed)
        assert by_core == by_table == crc(index, summed), "checksums differ"
    _compare_writing(stored, count)


def assert_same(name: str, *arguments: Any) -> None:
    """Call both; a number that fits into no field is refused by both."""
    core, twin = _outcome(compiled_form(name), arguments), _outcome(twins[name], arguments)
    assert core == twin, f"{name}{arguments}: {core} and {twin}"


def _outcome(function: Callable[..., Any], arguments: Outcome) -> Outcome:
    """Return the result, and what was put into lists and dictionaries."""
    copies = [each.copy() if isinstance(each, _FILLED) else each for each in arguments]
    result = function(*copies)
    return result, *(each for each in copies if isinstance(each, _FILLED))


def _compare_scans(stored: bytes, start: int, index: int, count: int, mode: int) -> None:
    stop = max(0, len(stored) - (mode >> 2) % 4)
    base = int.from_bytes(stored[-8:], "little") >> 1
    neither: tuple[list[int] | None, ...] = (None, [])
    for gaps in neither:  # of an ordinary file, and of a merged one
        assert_same("read_messages", stored, start, stop, SALT, base, 100, index, index + count, 4608, 7, [], gaps)
        assert_same("find_messages", stored, start, SALT, base, index, index + count, [], [], {}, gaps)
    for position, alike in product((start, 4608), (0, FLAGS_SINGLE)):
        assert_same("pass_messages", stored, start, SALT, position, index, alike, [])


def _compare_encoding(stored: bytes, mode: int, index: int, count: int) -> None:
    size = len(stored) // (count % 5 + 1) + 1
    payloads = [stored[at : at + size] for at in range(0, len(stored), size)]
    headers = {number: stored[: number * 3] for number in range(index % 4)}
    time = int.from_bytes(stored[:8], "little")
    assert_same("encode_messages", SALT, index, mode, time, headers, payloads, bool(mode & 4), bool(mode & 8))
    assert_same("encode_message", SALT, index, mode, time, stored[: index % 8], stored)


@cache
def _scratch() -> int:
    """Return the descriptor of a file for what is written."""
    return os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR)


def _compare_writing(stored: bytes, count: int) -> None:
    """Write in pieces, of bytes and of views, more than have a place on the stack: the file has what they are."""
    size = len(stored) // (count % 40 + 1) + 1
    pieces = [stored[at : at + size] for at in range(0, len(stored), size)]
    buffers = [memoryview(each) if number % 3 else each for number, each in enumerate(pieces)]
    written = compiled_form("write")(_scratch(), buffers, count)
    assert written == len(stored), "not all was written"
    assert os.pread(_scratch(), len(stored), count) == stored, "something else was written"


def _compare_packing(stored: bytes) -> None:
    fields, at = [], 0
    for size in _FIELD_BYTES:
        fields.append(int.from_bytes(stored[at : at + size], "little"))
        at += size
    assert_same("pack_entry", SALT, *fields)
