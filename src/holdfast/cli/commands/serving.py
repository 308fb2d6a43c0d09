"""``serve``: owns queues for the processes that share them, until a signal comes."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

import click

from holdfast.cli.log_lines import set_up_logging
from holdfast.cli.opening import json_option
from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, QueueNotFoundError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.service.configuration.config import load_config

if TYPE_CHECKING:
    from holdfast.queue.standing_owner import StandingOwner

logger = logging.getLogger("holdfast")

_IDENTITY = "queue.json"

_LOOK_SECONDS = 1.0
"""How often it looks for queues that were made or removed."""


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def serve(directory: Path, as_json: bool) -> None:
    """Own the queues of a directory, or one queue, for the processes that share them, until SIGINT or SIGTERM comes.

    A process that owns a queue hands it over, and becomes a client. A second `serve` takes over from the first one. At
    its end a client owns the queue again.

    Logs each change of an owner to standard error, with --json as lines of JSON.
    """
    set_up_logging(as_json=as_json)
    root = Path(os.path.abspath(directory))
    with _signals_heard() as signals, Served(root) as served:
        while _none_within(signals, _LOOK_SECONDS):
            served.look()


class Served:
    """The queues of a directory, or one queue, as long as they are served.

    Parameters
    ----------
    root : Path
        The directory of a service, or of a queue.

    Raises
    ------
    QueueNotFoundError
        There is no such directory.
    QueueLockedError
        A queue is open in another mode than "shared".
    HoldfastError
        One of them cannot be owned. Nothing stays open.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._is_queue = (root / _IDENTITY).exists()
        self._config = load_config(root.parent if self._is_queue else root, os.environ)
        self._owners: dict[Path, StandingOwner] = {}
        self._troubles: dict[Path, str] = {}

    def __enter__(self) -> Served:
        try:
            for path in self._find():
                self._begin(path)
        except BaseException:
            self.close()
            raise
        if not self._owners:
            logger.info("%s has no queues yet", self._root)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self) -> None:
        """Own queues that were made since, and leave those that were removed."""
        found = self._find()
        for path in set(self._owners) - set(found):
            logger.info("%s was removed", path)
            try:
                self._owners.pop(path).close()
            except HoldfastError as error:
                logger.warning("%s was not closed cleanly: %s", path, error)
        for path in set(found) - set(self._owners):
            try:
                self._begin(path)
            except HoldfastError as error:
                self._tell(path, str(error))

    def _tell(self, path: Path, trouble: str) -> None:
        """Log why a queue is not served, once."""
        if self._troubles.get(path) != trouble:
            self._troubles[path] = trouble
            logger.error("%s is not served: %s", path, trouble)

    def close(self) -> None:
        """Give all of them back."""
        with ExitStack() as closing:  # each one, even if another raises
            while self._owners:
                closing.callback(self._owners.popitem()[1].close)

    def _begin(self, path: Path) -> None:
        from holdfast.queue.standing_owner import StandingOwner  # others need no sockets

        self._owners[path] = StandingOwner(OsStorage(), SystemClock(), path, self._config.chosen(path.name))
        self._troubles.pop(path, None)

    def _find(self) -> list[Path]:
        if self._is_queue:
            return [self._root]
        try:
            return sorted(each for each in self._root.iterdir() if (each / _IDENTITY).exists())
        except (FileNotFoundError, NotADirectoryError):
            raise QueueNotFoundError(f"no directory at {self._root}", path=str(self._root)) from None


@contextmanager
def _signals_heard() -> Iterator[SimpleQueue[str]]:
    """Yield a queue of the names of signals that have come; a second one has its former effect."""
    signals: SimpleQueue[str] = SimpleQueue()  # a signal handler may put into it
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def ring(number: int, _: FrameType | None) -> None:
        restore()
        signals.put(signal.Signals(number).name)

    for number in numbers:
        signal.signal(number, ring)
    try:
        yield signals
    finally:
        restore()


def _none_within(signals: SimpleQueue[str], seconds: float) -> bool:
    """Wait for a signal; return whether none has come."""
    try:
        name = signals.get(timeout=seconds)
    except Empty:
        return True
    logger.info("%s: gives the queues back", name)
    return False
