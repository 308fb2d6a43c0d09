"""The messages of one task, staged as parts of a joint commit: durable, undecided, and bounded in memory."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import HoldfastError, ShutDown
from holdfast.queue.options.put_options import Put
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.queue.transactions.transaction import Transaction

logger = logging.getLogger("holdfast")

PART_BYTES = 64 * 2**20
"""As a data file: each part becomes one, without being copied."""

ID_PREFIX = "spark-"
"""What the ids of all parts begin with."""

_OPEN_SECONDS = 30 * 86400.0
"""How long a task may take for one part."""

_NAME_CHARACTERS = 40
"""Of the application, in the id of a part: with version and 32 random digits that is at most 100."""


class Staging:
    """Stages messages in order. An unfinished part is discarded.

    Parameters
    ----------
    queue : PersistentQueue
        Opened with mode "submit".
    application, version
        The joint commit that will decide.
    part_bytes : int
        Payload bytes at which a part is prepared and the next one begun.
    """

    def __init__(self, queue: PersistentQueue, application: str, version: int, *, part_bytes: int = PART_BYTES) -> None:
        self._queue = queue
        self._part_of = application, version
        self._part_bytes = part_bytes
        self._transaction: Transaction | None = None
        self._size_bytes = 0
        self._ids: list[str] = []

    def add(self, messages: Sequence[bytes | Put]) -> None:
        """Add messages. Raises as ``Transaction.put_many`` and ``Transaction.prepare``."""
        if self._transaction is None:
            self._transaction = self._queue.begin(timeout=_OPEN_SECONDS)
        self._transaction.put_many(messages)
        self._size_bytes += sum(len(each if isinstance(each, bytes) else each.payload) for each in messages)
        if self._size_bytes >= self._part_bytes:
            self._prepare()

    def finish(self) -> tuple[str, ...]:
        """Prepare the last part; return the ids of all, in order. Raises as ``Transaction.prepare``."""
        self._prepare()
        return tuple(self._ids)

    def _prepare(self) -> None:
        if self._transaction is None:
            return
        application, version = self._part_of
        name = f"{ID_PREFIX}{application[:_NAME_CHARACTERS]}-{version}-{uuid.uuid4().hex}"
        self._ids.append(name)  # before: an interrupted part may be prepared
        self._transaction.prepare(name, part_of=self._part_of)
        self._transaction, self._size_bytes = None, 0

    def give_up(self) -> None:
        """Abort everything that was staged: the ids are known only here, so it cannot have been committed."""
        ids, self._ids = self._ids, []
        if self._transaction is not None:
            with suppress(HoldfastError, ShutDown):
                self._transaction.abort()
            self._transaction = None
        for each in ids:
            try:
                self._queue.abort_prepared(each, force=True)
            except (HoldfastError, ShutDown) as error:  # the joint commit, or its abort, discards it
                logger.info("%s was not let go by its task: %s", each, error)
