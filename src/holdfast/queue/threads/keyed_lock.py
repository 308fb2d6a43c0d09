"""One thread at a time decides a transaction; others continue with theirs."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from weakref import ref


class KeyedLock:
    """The locked keys of one handle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, ref[threading.Lock]] = {}  # alive are those of threads that decide or wait

    def alone(self, transaction_id: str) -> AbstractContextManager[object]:
        """Return what to hold while one decides a transaction.

        It is a plain lock: a lock written in Python would stay held if it is interrupted on entry.
        """
        with self._lock:
            self._locks = {name: found for name, found in self._locks.items() if found() is not None}
            known = self._locks.get(transaction_id)
            lock = (known and known()) or threading.Lock()
            self._locks[transaction_id] = ref(lock)
            return lock
