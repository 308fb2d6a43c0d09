"""The checkpoint of a stream, as far as it is on this machine: Spark writes it and syncs nothing of it.

::

    checkpoint/
      metadata              the query's id
      offsets/<batch>       what a batch is, a line for each source; written before it runs
      sources/<n>/<entry>   what a source needs besides to know it again; each source counts its own entries
      commits/<batch>       that it is done
      holdfast.json         the batch that the sink was about to commit last, and what it was; ours
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from holdfast.persistence.filesystem.document import read_document, write_document
from holdfast.persistence.filesystem.storage import MISSING, Storage
from holdfast.persistence.format.constants import FORMAT_VERSION

_NOTE = "holdfast.json"
_HEAD_LINES = 2
"""Of a file of offsets: its version and what holds for all sources."""


def sync_plan(storage: Storage, checkpoint: Path, batch: int) -> None:
    """Make durable what Spark has planned as a batch, so that it plans the same after a power failure.

    Raises ``OSError``. Cost: two syncs for each file, one for each directory; fourteen in most streams, and
    few of them have anything to write.
    """
    offsets = checkpoint / "offsets"
    paths = [checkpoint / "metadata", offsets / str(batch - 1), offsets / str(batch)]  # a batch begins where one ended
    sources, parents = checkpoint / "sources", [checkpoint, checkpoint.parent]
    if sources.is_dir():
        begins, ends = (_log_offsets(offsets / str(number)) for number in (batch - 1, batch))
        for source in sources.iterdir():
            paths += _entries(source, begins.get(source.name, -1), ends.get(source.name, -1))
        parents = [sources, *parents]
    sync_files(storage, paths)
    for directory in parents:  # which hold the names of directories that were made just now
        storage.sync_directory(directory)


def note_plan(storage: Storage, checkpoint: Path, batch: int) -> None:
    """Note durably that a batch, as it is planned now, is about to be committed. Raises ``OSError``."""
    write_document(storage, checkpoint / _NOTE, {"format": FORMAT_VERSION, **_plan(checkpoint, batch)})


def is_noted(storage: Storage, checkpoint: Path, batch: int) -> bool:
    """Whether a batch was about to be committed before, as it is planned now. Raises ``OSError``, CorruptionError."""
    try:
        fields = read_document(storage, checkpoint / _NOTE)
    except MISSING:
        return False
    return all(fields.get(name) == value for name, value in _plan(checkpoint, batch).items())


def _plan(checkpoint: Path, batch: int) -> dict[str, Any]:
    text = (checkpoint / "offsets" / str(batch)).read_bytes()
    return {"batch": batch, "sha256": hashlib.sha256(text).hexdigest()}


def _log_offsets(path: Path) -> dict[str, int]:
    """Return up to which entry of its own log a batch has read each source that counts so, as files do."""
    found: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:  # there is no batch before the first one
        return found
    for number, line in enumerate(lines[_HEAD_LINES:]):
        try:
            fields: Any = json.loads(line)
        except ValueError:  # "-": nothing was read of it yet
            continue
        if isinstance(fields, dict) and isinstance(fields.get("logOffset"), int):
            found[str(number)] = fields["logOffset"]
    return found


def _entries(source: Path, begin: int, end: int) -> Iterator[Path]:
    """Yield the entries of a source behind ``begin`` up to ``end``, and the latest, which others need."""
    numbered = [(int(entry.stem), entry) for entry in source.iterdir() if entry.stem.isdecimal()]
    latest = max((number for number, _ in numbered), default=0)
    return (entry for number, entry in numbered if begin < number <= end or number == latest)


def sync_files(storage: Storage, paths: Iterable[Path]) -> None:
    """Make files of a checkpoint and their names durable, those of them that are there. Raises ``OSError``."""
    directories: dict[Path, None] = {}
    for path in paths:
        for each in _with_checksum(path):
            try:
                file = storage.open(each)
            except MISSING:
                continue
            try:
                file.sync()
            finally:
                file.close()
            directories[path.parent] = None
    for directory in directories:
        storage.sync_directory(directory)


def _with_checksum(path: Path) -> Iterator[Path]:
    """Yield a file and the one that Hadoop's local file system puts beside it."""
    yield path
    yield path.with_name(f".{path.name}.crc")
