"""Verbs that take long: each runs in a thread of its own, and the thread of the machine serves others meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import RetryableError
from holdfast.queue.owner.reserving import RESERVE
from holdfast.queue.owner.verbs import COMPACT, FLUSH, PURGE, SEEK
from holdfast.threads import start_thread

Fields = dict[str, Any]

LONG_VERBS = frozenset({PURGE, RESERVE, FLUSH, SEEK, COMPACT, "commit_jointly", "abort_jointly", "collect", "resolve"})
"""Those of many syncs, or of one that a slow disk may take long for."""


class LongVerb:
    """One verb that runs.

    Parameters
    ----------
    group : str
        The group whose takes wait for it.
    do : callable
        Does it; returns its result, or raises.
    wake : callable
        Called once it is over.

    Attributes
    ----------
    is_over : bool
        Whether :meth:`result` returns.
    """

    def __init__(self, group: str, do: Callable[[], Fields], wake: Callable[[], object]) -> None:
        self.group = group
        self._do = do
        self._wake = wake
        self._result: Fields = {}
        self._error: Exception | None = RetryableError("the thread of this verb has ended: ask again")
        self.is_over = False

    def start(self) -> None:
        """Run it in a thread; if there can be none, here and now."""
        if start_thread(self._run, "holdfast-verb") is None:
            self._run()

    def _run(self) -> None:
        try:
            self._result, self._error = self._do(), None
        except Exception as error:  # the client gets it
            self._error = error
        finally:
            self.is_over = True
            self._wake()

    def result(self) -> Fields:
        """Return what it has returned, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result
