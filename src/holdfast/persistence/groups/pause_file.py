"""``groups/<group>/pause.json``: there while a group is paused. docs/format.md, "Pause"."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.document import read_document, undone, write_document
from holdfast.persistence.filesystem.layout import within
from holdfast.persistence.filesystem.poison import commit_unknown
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.constants import FORMAT_VERSION, NOTE_CHARACTERS_MAX, NUMBER_MAX

NAME = "pause.json"

_DAMAGED = (CorruptionError, KeyError, ValueError, TypeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Pause:
    """The pause of a group: it gets no messages.

    Attributes
    ----------
    until_ns : int or None
        When it ends by itself, in nanoseconds since the epoch; None: not before ``resume``.
    reason : str
        For people.
    """

    until_ns: int | None
    reason: str = ""

    def is_over(self, now_ns: int) -> bool:
        """Whether it has ended by itself."""
        return self.until_ns is not None and self.until_ns <= now_ns


def write_pause(storage: Storage, directory: Path, pause: Pause) -> None:
    """Pause a group, durably. Raises ``OSError``; CommitUnknownError if the name of its directory may be lost."""
    until_ns = None if pause.until_ns is None else min(pause.until_ns, NUMBER_MAX)
    fields = {"format": FORMAT_VERSION, "until_ns": until_ns, "reason": pause.reason[:NOTE_CHARACTERS_MAX]}
    path = within(directory, NAME)
    with undone(storage, path) if read_pause(storage, directory) is None else nullcontext():
        write_document(storage, path, fields)
    try:
        storage.sync_directory(directory.parent)  # may be unsynced in a group that has not begun
    except OSError as error:
        raise commit_unknown("pausing", directory, error) from error


def remove_pause(storage: Storage, directory: Path) -> None:
    """End a pause, durably, if there is one. Raises ``OSError``."""
    try:
        storage.remove(within(directory, NAME))
    except MISSING:
        return
    storage.sync_directory(directory)


def read_pause(storage: Storage, directory: Path) -> Pause | None:
    """Return the pause of a group; an unreadable pause lasts until ``resume``. Raises ``OSError``."""
    try:
        return _read(storage, directory)
    except _DAMAGED:
        return Pause(None, "pause.json is damaged")


def pause_error(storage: Storage, directory: Path) -> str:
    """Return why the pause of a group cannot be read; empty if it can, or if there is none. Raises ``OSError``."""
    try:
        _read(storage, directory)
    except _DAMAGED as error:
        return str(error)
    return ""


def _read(storage: Storage, directory: Path) -> Pause | None:
    try:
        fields = read_document(storage, within(directory, NAME))
    except MISSING:
        return None
    until_ns = fields["until_ns"]
    return Pause(None if until_ns is None else int(until_ns), str(fields["reason"]))
