"""The C extension and its twins in Python: same arguments, same results, same bytes. docs/adr/0071."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import compiled
from holdfast.arrow.reading import frame_walk  # noqa: F401 - it is one of those that use the twins
from holdfast.persistence.format import frame_runs, framing
from holdfast.persistence.format.checksum import portable_crc32c
from holdfast.persistence.format.constants import (
    FLAG_FIRST,
    FLAGS_SINGLE,
    FRAME_BODY,
    FRAME_BODY_START,
    FRAME_PREFIX,
    FRAME_SIZE_END,
    KIND_MARK,
    KIND_MESSAGE,
    STX,
)
from holdfast.persistence.groups import position_entry

CORE = compiled.load_core()
SALT = 0x5EED_5A17
FIELD_BYTES = (1, 1, 2, 4, 4, 8, 8, 8, 8, 8, 4, 4)
"""Of an entry, in the order of ``pack_entry``."""

NO_DEADLINE = settings(deadline=None)  # other processes may have the machine

pytestmark = pytest.mark.skipif(CORE is None, reason="there is no C extension here, or HOLDFAST_PURE is set")

numbers_32 = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**32 - 1])
numbers_64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**63, 2**64 - 1])
payloads = st.binary(max_size=40) | st.binary(min_size=384, max_size=900)


def both(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the compiled form of a function and its twin."""
    return getattr(CORE, name), compiled.twins[name]


def test_each_twin_has_a_compiled_form_and_serves_nobody_while_that_is_there() -> None:
    """The modules use what the extension has; what it has beyond its twins is named here."""
    names = set(compiled.twins)
    assert {name for name in vars(CORE) if not name.startswith("_")} == {
        *names, "INTERFACE", "calls", "crc32c", "crc32c_by_table", "write",
    }  # fmt: skip
    for module in (framing, frame_runs, position_entry):
        for name in names & set(vars(module)):
            assert getattr(module, name) is getattr(CORE, name)


def test_calls_are_counted() -> None:
    """Proofs print how many there were, and a run with none has proved nothing about the extension."""
    before = compiled.call_count()
    framing.encode_message(1, 0, 0, 0, b"", b"x")
    assert compiled.call_count() == before + 1


@NO_DEADLINE
@given(seed=numbers_32, data=st.binary(max_size=700) | st.binary(min_size=6_140, max_size=20_000))
def test_checksums_are_those_of_the_library(seed: int, data: bytes) -> None:
    """By the instruction of the processor, and by tables."""
    expected = portable_crc32c()(seed, data)
    assert CORE is not None
    assert CORE.crc32c(seed, data) == CORE.crc32c_by_table(seed, data) == expected
    assert CORE.crc32c(seed, memoryview(b"<" + data)[1:]) == expected


@NO_DEADLINE
@given(salt=numbers_32, index=numbers_32, mark=numbers_32, time=numbers_64, headers=payloads, payload=payloads)
def test_a_message_is_encoded_to_the_same_bytes(
    salt: int, index: int, mark: int, time: int, headers: bytes, payload: bytes
) -> None:
    """Buffer for buffer."""
    core, twin = both("encode_message")
    assert core(salt, index, mark, time, headers, payload) == twin(salt, index, mark, time, headers, payload)


@NO_DEADLINE
@given(
    salt=numbers_32,
    index=st.integers(0, 2**32 - 10),
    contents=st.lists(payloads, max_size=5),
    headers=st.none() | st.dictionaries(st.integers(0, 5), st.binary(max_size=9)),
    starts=st.booleans(),
    ends=st.booleans(),
)
def test_a_batch_is_encoded_to_the_same_bytes(
    salt: int, index: int, contents: list[bytes], headers: dict[int, bytes] | None, starts: bool, ends: bool
) -> None:
    """Buffer for buffer, from a list or a tuple; headers of no message change nothing."""
    core, twin = both("encode_messages")
    expected = twin(salt, index, 7, 9, headers, contents, starts, ends)
    assert core(salt, index, 7, 9, headers, contents, starts, ends) == expected
    assert core(salt, index, 7, 9, headers, tuple(contents), starts, ends) == expected


def frame(kind: int, flags: int, index: int, mark: int, time: int, count: int, stored: bytes, payload: bytes) -> bytes:
    """Return a frame whose checksum is right, whatever its fields say."""
    body = FRAME_BODY.pack(kind, flags, len(stored), count, index, mark, time) + stored + payload
    return sealed(body)


def sealed(body: bytes) -> bytes:
    """Return a frame with this body; one that is shorter than its own header, too."""
    size = len(body) + FRAME_BODY_START - FRAME_SIZE_END
    return FRAME_PREFIX.pack(STX, size, portable_crc32c()(SALT ^ size, body)) + body


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    """Draw frames of mostly the next index, some with fields that no version writes, some damaged."""
    index, data, jumps = draw(st.integers(0, 2)), b"", draw(st.booleans())  # as merged files have it
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from([KIND_MESSAGE] * 6 + [KIND_MARK, 0x77]))
        flags = draw(st.sampled_from([0] * 6 + [FLAG_FIRST, FLAGS_SINGLE]))
        stored, time = draw(st.just(b"") | st.binary(max_size=5)), draw(numbers_64)
        found = draw(st.sampled_from([index] * 8 + [index + 1, index + 3, max(0, index - 1)]))
        one = frame(
            kind, flags, found, draw(st.sampled_from([0] * 5 + [10**6])), time, draw(st.sampled_from([1] * 8 + [2])),
            stored, draw(payloads),
        )  # fmt: skip
        damage = draw(st.sampled_from(["none"] * 12 + ["short", "headers", "stx", "bit"]))
        if damage == "short":
            one = sealed(one[FRAME_BODY_START : draw(st.integers(FRAME_BODY_START, 31))])
        elif damage == "headers":  # more than there are bytes
            one = sealed(one[FRAME_BODY_START : FRAME_BODY_START + 3] + b"\xff\xff" + one[FRAME_BODY_START + 5 :])
        elif damage == "stx":
            one = b"\x03" + one[1:]
        elif damage == "bit":
            at = draw(st.integers(0, len(one) - 1))
            one = one[:at] + bytes((one[at] ^ 1 << draw(st.integers(0, 7)),)) + one[at + 1 :]
        data += one
        index = (found if jumps else index) + (kind == KIND_MESSAGE)
    return data[: len(data) - draw(st.sampled_from([0, 0, 0, 1, 20, 40]))] if data else data


@settings(max_examples=400, deadline=None)
@given(data=runs(), before=st.binary(max_size=3), base=st.integers(0, 2**63 - 1), count=st.integers(0, 5))
def test_scans_find_the_same(data: bytes, before: bytes, base: int, count: int) -> None:
    """Records, places and ends; in front of damage, of other frames and of the end of the bytes."""
    data, at = before + data, len(before)
    for index in (0, 1, 2):
        for stop in {len(data), len(data) * 2 // 3}:
            core, twin = both("read_messages")
            arguments = (data, at, stop, SALT, base, 100, index, index + count, 4608, 9)
            for gaps in (lambda: None, list[int]):
                by_core: tuple[Any, ...] = [], gaps()
                by_twin: tuple[Any, ...] = [], gaps()
                assert core(*arguments, *by_core) == twin(*arguments, *by_twin)
                assert by_core == by_twin
        core, twin = both("find_messages")
        found = (data, at, SALT, base, index, index + count)
        for gaps in (lambda: None, list[int]):
            by_core, by_twin = ([], [], {}, gaps()), ([], [], {}, gaps())
            assert core(*found, *by_core) == twin(*found, *by_twin)
            assert by_core == by_twin
        core, twin = both("pass_messages")
        for position, alike in product((at, 4608), (0, FLAG_FIRST, FLAGS_SINGLE)):
            for ends in (lambda: None, list[int]):
                of_core, of_twin = ends(), ends()
                passed = (data, at, SALT, position, index, alike)
                assert core(*passed, of_core) == twin(*passed, of_twin)
                assert of_core == of_twin


@pytest.mark.parametrize("data", [b"", bytes(200)], ids=len)
@pytest.mark.parametrize("at", [200, 201, 2**31, 2**62, 2**63 - 64, 2**63 - 1])
def test_nothing_is_found_behind_the_data(data: bytes, at: int) -> None:
    """No sum of a place and a size overflows, which would have a compiled form read where nothing is."""
    for function in both("read_messages"):
        assert function(data, at, len(data), SALT, 0, 0, 0, 9, 0, 0, [], None) == (at, 0, True, False)
    for function in both("find_messages"):
        assert function(data, at, SALT, 0, 0, 9, [], [], {}, None) == (at, 0, True, False)
    for function in both("pass_messages"):
        assert function(data, at, SALT, at, 0, 0, []) == (at, 0, 0, 2**64 - 1, 0)
    for function in both("unpack_entry"):
        assert function(data, at, SALT, 0) is None


def test_places_at_the_end_of_their_range_are_the_same_in_both() -> None:
    """A position has 63 bits; what is behind it has more."""
    message = b"".join(framing.encode_message(SALT, 0, 0, 0, b"", b"x"))
    middle = b"".join(framing.encode_messages(SALT, 0, 0, 0, None, [b"x", b"y"], False, False))
    for function in both("read_messages"):
        records: list[tuple[int, int, bytes, bytes, int, int]] = []
        function(message, 0, len(message), SALT, 0, 0, 0, 1, 2**63 - 1, 0, records, None)
        assert records[0][4] == 2**63 - 1 + len(message)
    for function in both("pass_messages"):
        ends: list[int] = []
        assert function(middle, 0, SALT, 2**63 - 1, 0, 0, ends)[:2] == (len(middle), 2)
        assert ends == [2**63 - 1 + len(middle) // 2, 2**63 - 1 + len(middle)]


@NO_DEADLINE
@given(st.tuples(*(st.integers(0, 2 ** (8 * size) - 1) for size in FIELD_BYTES)), numbers_32, st.integers(0, 63))
def test_entries_are_packed_and_unpacked_to_the_same(fields: tuple[int, ...], salt: int, at: int) -> None:
    """Those that verify, one with a flipped bit, one of another number, and one that is cut off."""
    (pack, pack_twin), (unpack, unpack_twin) = both("pack_entry"), both("unpack_entry")
    raw = pack(salt, *fields)
    assert raw == pack_twin(salt, *fields)
    data = b"<" + raw
    assert unpack(data, 1, salt, fields[3]) == unpack_twin(data, 1, salt, fields[3]) is not None
    broken = bytearray(data)
    broken[1 + at] ^= 1
    for other, number in ((bytes(broken), fields[3]), (data, fields[3] ^ 1), (data[:-1], fields[3])):
        assert unpack(other, 1, salt, number) is None
        assert unpack_twin(other, 1, salt, number) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("encode_message", (0, 2**32, 0, 0, b"", b"")),
        ("encode_message", (0, 0, 0, 2**64, b"", b"")),
        ("encode_message", (0, 0, 0, 0, bytes(2**16), b"")),
        ("encode_messages", (0, 2**32 - 1, 0, 0, None, [b"", b""], True, True)),
        ("pack_entry", (0, 256, *[0] * 11)),
        ("pack_entry", (0, *[0] * 7, -1, *[0] * 4)),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_both(name: str, arguments: tuple[Any, ...]) -> None:
    """A field never keeps the low bytes of a larger number."""
    core, twin = both(name)
    with pytest.raises(OverflowError):
        core(*arguments)
    with pytest.raises(struct.error):
        twin(*arguments)


@pytest.mark.parametrize("name", ["crc32c", "encode_message", "encode_messages", "find_messages", "pack_entry",
                                  "pass_messages", "read_messages", "unpack_entry", "write"])  # fmt: skip
def test_wrong_arguments_are_errors(name: str) -> None:
    """Too few of them, and those of other types; nothing is read behind them."""
    function = getattr(CORE, name)
    with pytest.raises(TypeError, match="by position"):
        function()
    for count in range(2, 15):
        with pytest.raises(TypeError):
            function(*[object()] * count)
