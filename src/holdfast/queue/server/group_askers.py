"""Asks the owners of any groups of a queue, each through an asker of its own. docs/format.md, "Requests"."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.errors import ClosedError
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.server.group_asker import GroupAsker
from holdfast.queue.threads.lifecycle import forked_error
from holdfast.queue.verbs.group_verbs import Fields


class GroupAskers:
    """Asks for groups by name. Threads may share it.

    Parameters
    ----------
    handle : QueueHandle
        The handle.
    """

    def __init__(self, handle: QueueHandle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._askers: dict[str, GroupAsker] = {}
        self._refusal: Callable[[], Exception] | None = None

    def do(self, group: str, fields: Fields, timeout: float) -> Fields:
        """Have a verb on a group done; return its result. Raises as :meth:`GroupAsker.do`."""
        with self._lock:
            if self._refusal is not None:
                raise self._refusal()
            asker = self._askers.get(group)
            if asker is None:
                asker = self._askers[group] = GroupAsker(self._handle, group)
        return asker.do(fields, timeout=timeout)

    def close(self) -> None:
        """Take back requests that no owner has taken, and close the mailboxes."""
        with self._lock:
            self._refusal = lambda: ClosedError("the queue is closed; open it again")
            askers, self._askers = self._askers, {}
        for asker in askers.values():
            asker.close()

    def forget(self) -> None:
        """In a forked child: close the copies of the handles."""
        self._lock = threading.Lock()
        self._refusal = forked_error
        for asker in self._askers.values():
            asker.forget()
