"""What a task does if its machine does not see the queue of the plan: it asks the plan's range server."""

from __future__ import annotations

import logging
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.arrow.reading.task_walk import Elsewhere, QueueFiles
from holdfast.errors import HoldfastError
from holdfast.persistence.format.report import Damage
from holdfast.spark.remote.place import Place
from holdfast.spark.worker_memory import is_worker, keep_freed_memory

if TYPE_CHECKING:
    from holdfast.spark.remote.parts import RemoteParts

logger = logging.getLogger("holdfast")


def elsewhere(place: Place | None, root: Path) -> Elsewhere | None:
    """Return how tasks of a plan read a queue that they do not see; None if the plan has no range server."""
    return None if place is None else partial(remote_files, place, root)


def remote_files(place: Place, root: Path, reason: HoldfastError) -> QueueFiles:
    """Return the files of a queue that this machine does not see. Raises HoldfastError."""
    from holdfast.spark.remote.client import client_for  # Flight, which no other task needs
    from holdfast.spark.remote.files import RemoteFiles

    _say(str(reason), "read from", str(place), root)
    if is_worker():
        keep_freed_memory()
    return RemoteFiles(client_for(place))


def note_loss(place: Place, damage: Damage) -> None:
    """Note lost messages of a drained batch where its driver looks for that. Raises HoldfastError."""
    from holdfast.spark.remote.client import client_for

    client_for(place).note_loss(damage)


def parts_elsewhere(place: Place, root: Path, reason: HoldfastError) -> RemoteParts:
    """Return how a task stages its rows in a queue that its machine cannot write. Raises HoldfastError."""
    from holdfast.spark.remote.client import client_for
    from holdfast.spark.remote.parts import RemoteParts

    _say(str(reason), "written through", str(place), root)
    return RemoteParts(client_for(place))


def release(place: Place) -> None:
    """Say that a write is over; its range server may have ended before."""
    from holdfast.spark.remote.client import client_for

    try:
        client_for(place).release()
    except HoldfastError as error:
        logger.info("the range server of a write was not told that it is over: %s", error)


@lru_cache(maxsize=64)
def _say(reason: str, what: str, place: str, root: Path) -> None:
    """Tell a process's log once. ``place`` is a text: each plan has a token of its own."""
    logger.warning("%s; so %s is %s the range server at %s", reason, root, what, place)
