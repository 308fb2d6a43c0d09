"""The messages of one task, staged as parts of a joint commit: durable, undecided, and bounded in memory."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import HoldfastError
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.queue.options.put_options import Put
from holdfast.queue.prepared.joint_resolver import check_part_of
from holdfast.queue.producer.nonces import next_nonce
from holdfast.spark.writing.part_files import PartFiles

logger = logging.getLogger("holdfast")

PART_BYTES = 64 * 2**20
"""As a data file: each part becomes one, without being copied."""

ID_PREFIX = "spark-"
"""What the ids of all parts begin with."""

_NAME_CHARACTERS = 40
"""Of the application, in the id of a part: with version and 32 random digits that is at most 100."""


class Staging:
    """Stages messages in order. An unfinished part is discarded.

    Parameters
    ----------
    files : PartFiles
        Writes the parts.
    application, version
        The joint commit that will decide.
    part_bytes : int
        Payload bytes at which a part is prepared and the next one begun.
    """

    def __init__(self, files: PartFiles, application: str, version: int, *, part_bytes: int = PART_BYTES) -> None:
        self._files = files
        self._part_of = check_part_of(application, version)
        self._part_bytes = part_bytes
        self._writer: BatchFileWriter | None = None
        self._nonce = b""
        self._size_bytes = 0
        self._ids: list[str] = []

    def add(self, messages: Sequence[bytes | Put]) -> None:
        """Add messages. Raises as :meth:`PartFiles.add` and :meth:`PartFiles.prepare`."""
        if self._writer is None:
            self._nonce = next_nonce()
            self._writer = self._files.begin(self._nonce)
        self._size_bytes += self._files.add(self._writer, messages)
        if self._size_bytes >= self._part_bytes:
            self._prepare()

    def finish(self) -> tuple[str, ...]:
        """Prepare the last part; return the ids of all, in order. Raises as :meth:`PartFiles.prepare`."""
        self._prepare()
        return tuple(self._ids)

    def _prepare(self) -> None:
        if self._writer is None:
            return
        application, version = self._part_of.application, self._part_of.version
        name = f"{ID_PREFIX}{application[:_NAME_CHARACTERS]}-{version}-{uuid.uuid4().hex}"
        self._ids.append(name)  # before: an interrupted part may be prepared
        self._files.prepare(self._writer, self._nonce, name, self._part_of)
        self._writer, self._size_bytes = None, 0

    def give_up(self) -> None:
        """Remove everything that was staged: the ids are known only here, so it cannot have been committed."""
        ids, self._ids = self._ids, []
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(HoldfastError):
                writer.discard()
        for each in ids:
            try:
                self._files.drop(each)
            except HoldfastError as error:  # the joint commit, or its abort, discards it
                logger.info("%s was not let go by its task: %s", each, error)
