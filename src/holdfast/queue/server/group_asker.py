"""Does a verb on a consumer group for a handle that may not own it: itself, or through its owner.

``docs/format.md``, "Requests". Handles that never ask make no mailbox.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from holdfast.errors import ClosedError, UsageError
from holdfast.persistence.exchange.requests import ASK
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.remote.requester import Requester
from holdfast.queue.server.group_visitor import GroupVisitor
from holdfast.queue.threads.lifecycle import forked_error
from holdfast.queue.verbs.group_verbs import perform_logged
from holdfast.queue.verbs.verb_log import own_process

ASK_SECONDS = 30.0
"""How long an owner is waited for unless told otherwise: by far longer than a sync under load."""


class GroupAsker:
    """Asks for one group. Threads may share it.

    Parameters
    ----------
    handle : QueueHandle
        The handle, of any mode. If it owns the read side, no request is made.
    group : str or None
        The group; None: the one that the handle was opened for.
    """

    def __init__(self, handle: QueueHandle, group: str | None = None) -> None:
        self._handle = handle
        self._group = handle.options.group if group is None else group
        self._lock = threading.Lock()
        self._requester: Requester | None = None
        self._refusal: Callable[[], Exception] | None = None

    def do(self, fields: dict[str, Any], *, timeout: float = ASK_SECONDS) -> dict[str, Any]:
        """Have ``fields["verb"]`` done with the other fields; return the result: :mod:`group_verbs`.

        Raises
        ------
        RetryableError
            The owner does not answer within ``timeout`` seconds: nothing was done.
        CommitUnknownError
            The owner has begun, and does not report the outcome. Ask again: verbs may be done twice.
        DiskFullError, StorageError
            The request cannot be written: asking changes the queue's directory, in each mode.
        HoldfastError
            The owner's error.
        """
        if self._refusal is not None:
            raise self._refusal()
        if self._handle.read_side is not None and self._group == self._handle.options.group:
            return perform_logged(self._handle.read_side, self._handle.path, self._group, fields, own_process())
        try:
            json.dumps(fields)
        except (TypeError, ValueError) as error:
            raise UsageError(f"what is asked of a group has to be JSON: {error}") from None
        answer = self._open().ask_verb(ASK, fields, timeout, self._group)
        returned: dict[str, Any] = json.loads(answer.text)
        return returned

    def _open(self) -> Requester:
        with self._lock:
            if self._refusal is not None:
                raise self._refusal()
            if self._requester is None:
                handle = self._handle
                visitor = GroupVisitor(handle, self._group)
                lock_path = handle.directory.group_lock(self._group)
                self._requester = Requester(handle.storage, handle.clock, handle.directory, lock_path, visitor)
            return self._requester

    def close(self) -> None:
        """Take back requests that no owner has taken, and close the mailbox."""
        with self._lock:
            self._refusal = lambda: ClosedError("the queue is closed; open it again")
            requester, self._requester = self._requester, None
        if requester is not None:
            requester.close()

    def forget(self) -> None:
        """In a forked child: close the copies of the handles."""
        self._lock = threading.Lock()
        self._refusal = forked_error
        if self._requester is not None:
            self._requester.forget()
