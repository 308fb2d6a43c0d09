"""Formats bytes, sizes, times and ranges for people. Pure.

Payloads, reasons and exception texts come from anywhere. Nothing of them reaches a terminal that could steer it.
"""

from __future__ import annotations

from datetime import datetime

from holdfast.log import printable

_OPTIONS = {"lock_timeout=": "--lock-timeout", "another group=": "another --group"}
"""What errors advise to programs, and the option of a command that does the same."""

_PREVIEW_CHARACTERS = 60
_KIB = 1024
_STEPS_SECONDS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def preview(payload: bytes) -> str:
    """Return the beginning of a payload: as text if it is text, else in hexadecimal."""
    start = payload[: 4 * _PREVIEW_CHARACTERS]
    try:
        text = printable(start.decode())
    except UnicodeDecodeError as error:
        is_cut = error.start >= len(start) - 3 and len(start) < len(payload)
        text = printable(start[: error.start].decode()) if is_cut else f"0x{start.hex()}"
    is_whole = len(text) <= _PREVIEW_CHARACTERS and len(start) == len(payload)
    return text if is_whole else text[:_PREVIEW_CHARACTERS] + "…"


def for_a_shell(message: str) -> str:
    """Return the message of an error with options of the command in the place of parameters."""
    for parameter, option in _OPTIONS.items():
        message = message.replace(parameter, option)
    return message


def size(count: int) -> str:
    """Return a number of bytes in a unit that fits it."""
    if count < _KIB:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= _KIB
        if value < _KIB:
            return f"{value:.1f} {unit}"
    return f"{value / _KIB:.1f} TiB"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units; a dash for none."""
    if seconds is None:
        return "-"
    rest = int(seconds)
    parts: list[str] = []
    for step, unit in _STEPS_SECONDS:
        if rest >= step or (step == 1 and not parts):
            parts.append(f"{rest // step}{unit}")
        rest %= step
    return " ".join(parts[:2])


def moment(timestamp_ns: int) -> str:
    """Return a point in time, in the time zone of this machine."""
    return datetime.fromtimestamp(timestamp_ns // 10**9).astimezone().isoformat(sep=" ", timespec="seconds")


def offsets(numbers: range) -> str:
    """Return a range of offsets."""
    if not numbers:
        return "none"
    return f"offset {numbers[0]}" if len(numbers) == 1 else f"offsets {numbers[0]} to {numbers[-1]}"


def counted(count: int, word: str) -> str:
    """Return how many of something there are."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
