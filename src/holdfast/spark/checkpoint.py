"""The checkpoint of a stream, as far as it stands on this machine: Spark writes it and syncs nothing of it.

::

    checkpoint/
      metadata              the query's id
      offsets/<batch>       what a batch is; written before it runs
      sources/<n>/<batch>   what a source needs besides to know it again
      commits/<batch>       that it is done
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.persistence.layout import is_missing
from holdfast.persistence.storage import Storage


def local_checkpoint(location: str) -> Path | None:
    """Return the directory that a ``checkpointLocation`` names; None where it is not one of this machine."""
    path = location.removeprefix("file://").removeprefix("file:")
    return None if ":" in path.split("/", 1)[0] else Path(os.path.abspath(path))


def sync_plan(storage: Storage, checkpoint: Path, batch: int) -> None:
    """Make durable what Spark has planned as a batch, so that it plans the same after a power failure.

    Raises ``OSError``. Cost: two syncs for each file, one for each directory; eight in most streams.
    """
    paths = [checkpoint / "metadata", checkpoint / "offsets" / str(batch)]
    sources, parents = checkpoint / "sources", [checkpoint, checkpoint.parent]
    if sources.is_dir():
        paths += [source / name for source in sources.iterdir() for name in (str(batch), f"{batch}.compact")]
        parents = [sources, *parents]
    sync_files(storage, paths)
    for directory in parents:  # which hold the names of directories that were made just now
        storage.sync_directory(directory)


def sync_files(storage: Storage, paths: Iterable[Path]) -> None:
    """Make files of a checkpoint and their names durable, those of them that are there. Raises ``OSError``."""
    directories: dict[Path, None] = {}
    for path in paths:
        for each in _with_checksum(path):
            try:
                file = storage.open(each)
            except OSError as error:
                if is_missing(error):
                    continue
                raise
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
