"""JSON lines from a stream."""

from collections.abc import Callable, Sequence

import pytest

from holdfast import HoldfastError, RecordTooLargeError
from holdfast.cli import lines
from holdfast.cli.lines import json_batches
from holdfast.errors import EncodeError


def pieces(*chunks: bytes) -> Callable[[int], bytes]:
    """Return a stream that gives these, one with each read."""
    left = list(chunks)
    return lambda _: left.pop(0) if left else b""


def read(chunks: Sequence[bytes]) -> tuple[list[list[bytes]], HoldfastError | None]:
    """Return the batches that a stream gives, and how it ends."""
    batches: list[list[bytes]] = []
    try:
        for batch in json_batches(pieces(*chunks)):
            batches.append(batch)
    except HoldfastError as error:
        return batches, error
    return batches, None


def test_lines_come_as_they_are_there() -> None:
    """A line that is not whole waits for its rest; the last one needs no end."""
    assert read([b"1\n2\n[3", b",", b"4]\n", b'"five"']) == ([[b"1", b"2"], [b"[3,4]"], [b'"five"']], None)


def test_blank_lines_and_blanks_around_a_line_are_left_out() -> None:
    """Carriage returns among them; a stream of nothing has no lines."""
    assert read([b"\n  \r\n 1 \r\n\n"]) == ([[b"1"]], None)
    assert read([]) == ([], None)


def test_many_lines_come_in_batches() -> None:
    """None is larger than what is put in one step."""
    batches, error = read([b"1\n" * 2500])
    assert ([len(batch) for batch in batches], error) == ([1000, 1000, 500], None)


@pytest.mark.parametrize("bad", [b"{", b"one", b'"\xff"', b"NaN", b"[" * 100_000, b"1 2"])
def test_a_line_that_is_not_json_ends_it_behind_those_before(bad: bytes) -> None:
    """It is named by its number, blank lines counted, with how many were put."""
    batches, error = read([b"1\n\n2\n", b"3\n" + bad + b"\n4\n"])
    assert batches == [[b"1", b"2"], [b"3"]]
    assert isinstance(error, EncodeError)
    assert error.line == 5
    assert str(error).startswith("line 5 is not JSON (")
    assert str(error).endswith("); put before it: 3, after it: none")


@pytest.mark.parametrize("chunks", [[b"1\n", b'"xxxxxxxxx"\n2\n'], [b"1\n", b'"xxxxx', b"xxxxx", b"never read"]])
def test_a_line_that_is_too_long_is_given_up(chunks: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its end does not come: memory is bounded."""
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 10)
    batches, error = read(chunks)
    assert batches == [[b"1"]]
    assert isinstance(error, RecordTooLargeError)
    assert error.line == 2
