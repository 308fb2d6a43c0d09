"""Errors that go from one process to another."""

import pytest

from holdfast import (
    CorruptionError,
    DiskFullError,
    Full,
    GroupNotFoundError,
    HoldfastError,
    RecordTooLargeError,
    ShutDown,
    TransactionNotFoundError,
)
from holdfast.queue.protocol.error_text import TEXT_BYTES_MAX, as_text, from_text


@pytest.mark.parametrize(
    "error",
    [
        DiskFullError("disk full", path="/somewhere"),
        DiskFullError("full: " + "/x" * 2000, path="/x" * 2000),
        RecordTooLargeError("too large", size_bytes=3, max_bytes=2),
        TransactionNotFoundError("no such", id="x"),
        GroupNotFoundError("no such", group="c", groups=["a", "b"]),
        CorruptionError("bad", path="/file", position=7),
        HoldfastError("any"),
    ],
)
def test_an_error_comes_back_as_its_class_with_what_it_says(error: HoldfastError) -> None:
    """Message and context too."""
    back = from_text(as_text(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert isinstance(back, HoldfastError)
    assert back.context == error.context


def test_the_errors_of_the_standard_library_come_back_too() -> None:
    """They say nothing but their class."""
    assert type(from_text(as_text(Full()))) is Full
    assert isinstance(from_text(as_text(ShutDown())), ShutDown)


def test_what_is_too_long_is_cut() -> None:
    """First the context, then the message; the class stays."""
    long = DiskFullError("é" * 10_000, path="/" + "x" * 10_000)
    text = as_text(long)
    assert len(text.encode()) <= TEXT_BYTES_MAX
    back = from_text(text)
    assert isinstance(back, DiskFullError)
    assert str(back) == "é" * len(str(back))
    assert len(str(back)) > 150
    assert from_text(as_text(GroupNotFoundError("no such", group="c", groups=["a" * 100] * 200))).context == {}  # type: ignore[attr-defined]


def test_an_answer_that_cannot_be_read_is_an_error_all_the_same() -> None:
    """Whatever stands there."""
    for text in ("", "{}", "[]", '{"code": 1, "message": "", "context": 3}'):
        assert type(from_text(text)) is HoldfastError
    assert type(from_text('{"code": "of the future", "message": "m", "context": {}}')) is HoldfastError


def test_what_is_no_utf_8_goes_too() -> None:
    """An id out of the arguments of a program may hold it; an owner that cannot answer leaves it waiting."""
    error = TransactionNotFoundError("no \udcff", id="\ud800")
    text = as_text(error)
    text.encode()
    back = from_text(text)
    assert (str(back), getattr(back, "context", None)) == (str(error), error.context)
