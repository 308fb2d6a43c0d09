"""``catalog.db``: the contents of a service's queues, for people and their tools. docs/catalogue.md.

Everything in it comes from the queues' files and the open service, so it may be deleted at any time, and may be late.
No queue ever waits for it or reads it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import thread_time
from typing import Any

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, QueueLockedError, StorageError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import is_queue
from holdfast.persistence.filesystem.locks import Owned
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.threads.lifecycle import forked_error
from holdfast.queue.threads.notifier import Flag
from holdfast.serializers.extras import is_installed, require_extra
from holdfast.service.catalog.database import CatalogDatabase, CatalogUnavailableError
from holdfast.service.catalog.facts import QueueFacts, Rows
from holdfast.service.catalog.rows import QueueRows
from holdfast.service.catalog.signature import Signature, take_signature
from holdfast.service.queue_names import CATALOG_NAME, check_queue_name
from holdfast.threads import join_thread, start_thread

logger = logging.getLogger("holdfast")

REFRESH_SECONDS = 5.0
_SHARE_MAX = 0.002
"""Of a processor, for looks at many queues: then they come more seldom."""

_LOCK_SECONDS = 5.0
"""How long to wait for another process that writes the catalogue."""

_MODULE = "sqlite_utils"


def is_wanted(choice: bool | None) -> bool:
    """Whether a service keeps a catalogue; without a choice, if that is possible. Raises ConfigError if it is not."""
    if choice:
        _require()
    return is_installed(_MODULE) if choice is None else choice


def _require() -> None:
    require_extra(_MODULE, "catalog", "the catalogue")


class Catalog:
    """Keeps ``catalog.db`` in a service's directory. Threads may share it.

    Parameters
    ----------
    directory : Path
        The service's directory; queues that are not open are found in it.
    snapshot : callable
        Returns the service's facts about each queue that it has open; raises ReferenceError if there is no service any
        more, which ends the thread.
    configured : callable
        Returns the settings of a queue that is not open, by its name: the configured values.
    is_keeper : callable
        Whether this process keeps the catalogue now: of those that share queues, the ones that own any of them do.
    refresh_seconds : float
        How often the thread checks for changes.
    """

    def __init__(
        self,
        directory: Path,
        snapshot: Callable[[], Sequence[QueueFacts]],
        *,
        configured: Callable[[str], Mapping[str, Any]] = lambda _: {},
        is_keeper: Callable[[], bool] = lambda: True,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        self.path = directory / CATALOG_NAME
        self._directory = directory
        self._snapshot = snapshot
        self._configured = configured
        self._is_keeper = is_keeper
        self._refresh_seconds = refresh_seconds
        self._storage = OsStorage()
        self._database = CatalogDatabase(self._storage, self.path)
        self._lock = threading.Lock()
        self._readers: dict[str, QueueRows] = {}
        self._written: dict[str, tuple[QueueFacts, Signature]] = {}
        self._trouble = ""
        self._stopping = Flag()
        self._thread: threading.Thread | None = None
        self._is_kept = False
        self._pid = os.getpid()

    # -- In the background -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to keep the catalogue up to date, in the background; without a thread, when it is stopped."""
        self._is_kept = True
        if self._thread is None:
            self._stopping.clear()
            self._thread = start_thread(self._run, "holdfast-catalog")

    def stop(self) -> None:
        """Bring the catalogue up to date once more, and end. In a forked child: nothing."""
        is_kept, self._is_kept = self._is_kept, False
        thread, self._thread = self._thread, None
        if not is_kept or self._pid != os.getpid():
            return
        self._stopping.set()
        join_thread(thread)
        self._refresh_quietly(_LOCK_SECONDS)

    def _run(self) -> None:
        pause = self._refresh_seconds
        while not self._stopping.wait(pause):
            import sqlite_utils  # noqa: F401 # here, so that the imports do not count as the cost of the first update

            began = thread_time()
            self._refresh_quietly(0)
            pause = max(self._refresh_seconds, (thread_time() - began) / _SHARE_MAX)

    def _refresh_quietly(self, timeout: float) -> None:
        """Refresh; an error is logged once, and the queues are not affected."""
        try:
            if self._is_keeper():
                self._refresh(timeout)
            self._trouble = ""
        except QueueLockedError:  # another process is at it; there is a next time
            pass
        except ReferenceError:  # the application has dropped the service, or closes it in a __del__
            self._stopping.set()
        except Exception as error:
            if str(error) != self._trouble:
                logger.warning("the catalogue is not up to date: %s", error, exc_info=not _is_expected(error))
            self._trouble = str(error)

    # -- Writing -----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Bring the catalogue up to date: afterwards it has the rows that :meth:`rebuild` would write.

        Cost: a check of the files of each queue; for those that have changed, as many reads as they have data files and
        dead letters that were not read before.

        Raises
        ------
        ConfigError
            The extra ``catalog`` is not installed.
        StorageError
            It cannot be written.
        LockTimeoutError
            Another process is writing it, for long.
        """
        _require()
        with _as_storage_error(self.path):
            self._refresh(_LOCK_SECONDS)

    def rebuild(self) -> None:
        """Drop everything and write it again from the queues. Raises as :meth:`refresh`."""
        _require()
        if self._pid != os.getpid():
            raise forked_error()
        if not self._directory.exists():
            return  # it has no queues yet
        with _as_storage_error(self.path), self._lock, self._alone(_LOCK_SECONDS):
            self._readers.clear()
            self._write_anew(self._facts())

    def _refresh(self, timeout: float) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            facts, is_there = self._facts(), self._database.exists()
            signatures = {name: take_signature(each.path) for name, each in facts.items()}
            changed = [name for name in facts if not is_there or not self._is_written(facts[name], signatures[name])]
            if not changed and facts.keys() == self._written.keys():
                return  # of a service without queues, too: it may have no directory yet
            with self._alone(timeout):
                self._readers = {name: reader for name, reader in self._readers.items() if name in facts}
                if not is_there or not self._update(facts, signatures, changed):
                    self._write_anew(facts)

    def _update(
        self, facts: Mapping[str, QueueFacts], signatures: Mapping[str, Signature], changed: Sequence[str]
    ) -> bool:
        """Write the changes; False if the catalogue has to be rewritten."""
        rows = self._read([facts[name] for name in changed])
        gone = {name for name in changed if not rows[name]}
        if not self._database.update(rows, facts.keys() - gone):
            return False
        self._written = {name: (facts[name], signatures[name]) for name in facts}
        return True

    def _write_anew(self, facts: Mapping[str, QueueFacts]) -> None:
        signatures = {name: take_signature(each.path) for name, each in facts.items()}
        self._written = {}
        self._database.write_anew(self._read(facts.values()))
        self._written = {name: (facts[name], signatures[name]) for name in facts}

    def _is_written(self, facts: QueueFacts, signature: Signature) -> bool:
        return signature.is_settled and self._written.get(facts.name) == (facts, signature)

    def _read(self, queues: Iterable[QueueFacts]) -> dict[str, Rows]:
        rows = {}
        for facts in queues:
            reader = self._readers.setdefault(facts.name, QueueRows(self._storage, self._directory))
            rows[facts.name] = reader.read(facts)
        return rows

    def _facts(self) -> dict[str, QueueFacts]:
        """Return the facts about all queues: the open ones, and those in the directory."""
        facts = {each.name: each for each in self._snapshot()}
        names: list[str] = []
        with suppress(FileNotFoundError):
            names = self._storage.list(self._directory)
        for name in names:
            if name not in facts and _is_queue(self._directory, name):
                facts[name] = QueueFacts(name, self._directory / name, self._settings(name))
        return facts

    def _settings(self, name: str) -> Mapping[str, Any]:
        try:
            return self._configured(name)
        except ConfigError:  # opening the queue reports it
            return {}

    @contextmanager
    def _alone(self, timeout: float) -> Iterator[None]:
        """Hold the lock under which one process at a time reads the queues and writes its findings.

        So the latest findings are written last.
        """
        path = self.path.with_name(f"{CATALOG_NAME}.lock")
        lock = locks.acquire(
            self._storage, path, SystemClock(), timeout=timeout, owned=Owned(f"the catalogue {self.path}")
        )
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _as_storage_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (CatalogUnavailableError, OSError) as error:
        raise StorageError(
            f"the catalogue {path} cannot be written ({error}); the queues are not affected", path=str(path)
        ) from error


def _is_expected(error: Exception) -> bool:
    return isinstance(error, CatalogUnavailableError | OSError | StorageError)


def _is_queue(directory: Path, name: str) -> bool:
    try:
        check_queue_name(name)
    except ConfigError:
        return False
    return is_queue(OsStorage(), (directory / name).absolute())
