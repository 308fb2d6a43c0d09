"""Threads that commit at the same time share one sync.

The first to ask leads: it notes the end, syncs, and releases those whose commit lies at or below what it noted. The
others wait, and one of those left over leads next. Alone, a thread hands its work to nobody. A sync that fails or is
interrupted answers everybody the same: nobody knows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.errors import CommitUnknownError, HoldfastError


class GroupCommit:
    """Makes tickets durable.

    Parameters
    ----------
    sync : callable
        Syncs what was appended before the call; returns the ticket that this covers.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._condition = threading.Condition(threading.Lock())
        self._leading = False
        self._durable = 0
        self._failure: BaseException | None = None

    def wait(self, ticket: int) -> None:
        """Return once everything up to ``ticket`` is on the disk.

        Raises
        ------
        CommitUnknownError
            The sync that should have covered it failed: reopen the queue and look.
        """
        while self._durable < ticket:
            with self._condition:
                if self._durable >= ticket:
                    return
                if self._failure is not None:
                    raise CommitUnknownError(
                        f"the sync that this commit shared failed ({self._failure}); nobody knows what is on the disk: "
                        "reopen the queue and look"
                    ) from self._failure
                if self._leading:
                    self._condition.wait()
                    continue
                self._leading = True
            self._lead()

    def _lead(self) -> None:
        """Sync for everybody; a failure is left for all to find, an interruption goes on to whom it hit."""
        failure: BaseException | None = None
        covered = 0
        try:
            covered = self._sync()
        except HoldfastError as error:
            failure = error
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._condition:
                self._durable = max(self._durable, covered)
                self._failure = self._failure or failure
                self._leading = False
                self._condition.notify_all()
