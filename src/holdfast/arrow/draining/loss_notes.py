"""The notes by which tasks tell the driver of lost messages: ``groups/<group>/lost-<nonce>.json``. docs/format.md.

The notes are in the queue's directory because that is what driver and executors share. They stay until their batch is
committed: a sink that has the batch already does not read it again when the next drain runs it.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.persistence.filesystem.storage import MISSING, Storage, storage_errors, write_whole
from holdfast.persistence.format.json_object import parse_object
from holdfast.persistence.format.report import Damage

logger = logging.getLogger("holdfast")

_NAME = re.compile(r"lost-[0-9a-f]{32}\.json")

_NOTE_BYTES_MAX = 64 * 2**10
"""By far more than a path and a reason take."""


def damage_fields(damage: Damage) -> dict[str, Any]:
    """Return damage as fields of JSON."""
    return {
        "path": str(damage.path),
        "position": damage.position,
        "size_bytes": damage.size_bytes,
        "first_offset": damage.offsets.start,
        "end_offset": damage.offsets.stop,
        "verdict": damage.verdict,
        "reason": damage.reason,
    }


def damage_of(fields: dict[str, Any]) -> Damage:
    """Return the damage in fields of JSON."""
    offsets = range(fields["first_offset"], fields["end_offset"])
    place = Path(fields["path"]), fields["position"], fields["size_bytes"]
    return Damage(*place, offsets, fields["verdict"], fields["reason"])


class LossNotes:
    """The notes of one group.

    Parameters
    ----------
    storage, directory
        The group's directory.
    """

    def __init__(self, storage: Storage, directory: Path) -> None:
        self._storage = storage
        self._directory = directory

    def write(self, batch_id: str, damage: Damage) -> None:
        """Note that messages of a batch are lost; raises StorageError, which fails the task, if that fails."""
        fields = {"batch_id": batch_id} | damage_fields(damage)
        path = self._directory / f"lost-{uuid.uuid4().hex}.json"
        with storage_errors("noting that messages are lost", path):
            file = self._storage.open(path, create=True)
            try:
                write_whole(file, (json.dumps(fields).encode() + b"\n",), 0)
                file.sync()
            finally:
                file.close()
            self._storage.sync_directory(self._directory)

    def read(self, batch_id: str) -> list[Damage]:
        """Return the damage that the tasks of a batch have noted, each once; raises StorageError."""
        found = set()
        with storage_errors("reading which messages are lost", self._directory):
            for path in self._paths():
                fields = self._fields(path)
                if fields.get("batch_id") == batch_id:
                    found.add(damage_of(fields))
        return sorted(found, key=lambda damage: damage.offsets.start)

    def remove(self, reserved: Collection[str]) -> None:
        """Remove all notes but those of batches that are still reserved: one that is not whole yet may be of them."""
        try:
            for path in self._paths():
                if not reserved or self._fields(path).get("batch_id") not in {None, *reserved}:
                    self._storage.remove(path)
        except OSError as error:  # the next batch tries again, and they name their own
            logger.warning("notes of lost messages in %s cannot be removed: %s", self._directory, error)

    def _paths(self) -> Iterator[Path]:
        return (self._directory / name for name in self._storage.list(self._directory) if _NAME.fullmatch(name))

    def _fields(self, path: Path) -> dict[str, Any]:
        """Return a note; nothing of one whose task was killed while it wrote, for the next attempt writes its own."""
        try:
            file = self._storage.open(path, writable=False)
        except MISSING:  # of a task that was overtaken
            return {}
        try:
            with suppress(ValueError):
                return parse_object(file.read_at(_NOTE_BYTES_MAX, 0))
            return {}
        finally:
            file.close()
