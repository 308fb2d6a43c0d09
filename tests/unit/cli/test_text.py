"""How things read, for people."""

from pathlib import Path

import pytest

from holdfast.cli.text import counted, duration, for_a_shell, moment, offsets, preview, size
from holdfast.log import printable
from holdfast.queue.engine.lock_advice import owned_writes


def test_nothing_that_steers_a_terminal_is_shown() -> None:
    """Control characters are written as Python writes them, and so is a line end."""
    assert printable("a\x1b[31m\nb\x9bc\u202e") == r"a\x1b[31m\nb\x9bc\u202e"
    assert printable("größe 🙂") == "größe 🙂"
    assert preview(b"\x1b[2J") == r"\x1b[2J"


def test_a_payload_is_shown_as_text_or_in_hexadecimal_and_cut() -> None:
    """A character that the cut goes through does not make text of it bytes."""
    assert preview(b"") == ""
    assert preview(b"hello") == "hello"
    assert preview(b"\xff\x00") == "0xff00"
    assert preview(b"x" * 60) == "x" * 60
    assert preview(b"x" * 61) == "x" * 60 + "…"
    assert preview(b"x" + "ä".encode() * 1000) == "x" + "ä" * 59 + "…"
    assert preview(b"\xff" * 1000) == "0x" + "f" * 58 + "…"


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (64 * 2**20, "64.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (2**40, "1.0 TiB"),
    ],
)
def test_sizes_have_a_unit_that_fits(count: int, shown: str) -> None:
    """Powers of two."""
    assert size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0.4, "0s"), (61, "1m 1s"), (3600, "1h"), (90061, "1d 1h"), (86461, "1d 1m")],
)
def test_durations_have_their_two_largest_units(seconds: float | None, shown: str) -> None:
    """More would be read by nobody."""
    assert duration(seconds) == shown


def test_ranges_counts_and_moments_read_well() -> None:
    """One is not many."""
    assert [offsets(range(3, 3)), offsets(range(3, 4)), offsets(range(3, 5))] == ["none", "offset 3", "offsets 3 to 4"]
    assert [counted(1, "letter"), counted(2, "letter")] == ["1 letter", "2 letters"]
    assert moment(10**18).startswith("2001-09-09 ")


def test_advice_names_options_of_commands() -> None:
    """In the place of parameters that a program would give."""
    advice = owned_writes(Path("/orders")).elsewhere
    assert for_a_shell(advice).endswith("stop that process, and --lock-timeout waits for its end")
