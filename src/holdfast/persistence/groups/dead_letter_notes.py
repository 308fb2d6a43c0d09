"""Notes on dead letters, for people: ``groups/<group>/dead-<offset>.json``. docs/format.md, "Dead letters".

The position file records that a message is a dead letter, and the reason. A note adds the text of the exception; it may
be lost, and nothing depends on it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.errors import CorruptionError
from holdfast.persistence.filesystem.storage import MISSING, Storage, read_whole, write_whole
from holdfast.persistence.format.constants import NOTE_BYTES_MAX, NOTE_CHARACTERS_MAX
from holdfast.persistence.format.json_object import parse_object
from holdfast.threads import log_later

_NAME = re.compile(r"dead-([0-9]{20})\.json")


class DeadLetterNotes:
    """The notes of one group.

    Parameters
    ----------
    storage, directory
        The group's directory.
    is_synced : bool
        Whether each note is synced at once.
    """

    def __init__(self, storage: Storage, directory: Path, *, is_synced: bool = True) -> None:
        self._storage = storage
        self._directory = directory
        self._is_synced = is_synced

    def write(self, offset: int, fields: Mapping[str, str]) -> None:
        """Write the note of a dead letter, long texts cut; log a failure and continue."""
        kept = {name: value[:NOTE_CHARACTERS_MAX] for name, value in fields.items()}
        try:
            with self._storage.open(self._path(offset), create=True) as file:
                file.truncate(0)
                write_whole(file, (json.dumps(kept, indent=1).encode() + b"\n",), 0)
                if self._is_synced:
                    file.sync()
        except OSError as error:
            log_later(logging.WARNING, "no note of the dead letter %d in %s: %s", offset, self._directory, error)

    def read(self, offset: int) -> dict[str, str]:
        """Return the note; empty if it cannot be read."""
        try:
            fields = parse_object(read_whole(self._storage, self._path(offset), NOTE_BYTES_MAX))
        except (OSError, ValueError, CorruptionError):
            return {}
        return {name: str(value) for name, value in fields.items()}

    def remove(self, offset: int) -> None:
        """Remove a note, if there is one."""
        with suppress(OSError):
            self._storage.remove(self._path(offset))

    def keep(self, offsets: Container[int]) -> None:
        """Remove notes that an earlier process left for messages that are no longer dead letters."""
        try:
            names = self._storage.list(self._directory)
        except OSError as error:
            if not isinstance(error, MISSING):
                log_later(logging.WARNING, "notes of dead letters in %s cannot be listed: %s", self._directory, error)
            return
        for name in names:
            match = _NAME.fullmatch(name)
            if match is not None and int(match[1]) not in offsets:
                self.remove(int(match[1]))

    def _path(self, offset: int) -> Path:
        return self._directory / f"dead-{offset:020d}.json"
