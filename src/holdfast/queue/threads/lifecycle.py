"""What a part of an open queue takes: everything, what began before a shutdown, or nothing.

A queue that is open when its process forks belongs to the parent. The parts of the child's copies are useless: they
refuse every call, and release locks that threads of the parent hold. Their files close by themselves, ``storage.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

from holdfast import forks
from holdfast.errors import ClosedError, ForkedError, ShutDown


def forked_error() -> ForkedError:
    """Return the error with which a forked copy of a queue answers every call."""
    return ForkedError("this queue was opened before the fork; open it in the child, or leave it to the parent")


class Lifecycle:
    """Whether one part of a queue is open, draining, closed, or the copy of a forked child.

    Parameters
    ----------
    what, advice : str
        The text about what is closed, and the advice, for errors.

    Attributes
    ----------
    refusal : callable or None
        Makes the error for new work; None while the part is open. Hot paths check it themselves.
    """

    __slots__ = ("_advice", "_is_closed", "_what", "refusal")

    def __init__(self, what: object = "the queue", advice: str = "open it again") -> None:
        self._what = what
        self._advice = advice
        self._is_closed = False
        self.refusal: Callable[[], Exception] | None = None

    def __str__(self) -> str:
        states: dict[object, str] = {None: "open", self._closed: "closed", forked_error: "forked"}
        return states.get(self.refusal, "draining")

    @property
    def is_closed(self) -> bool:
        """Whether it refuses everything with ClosedError."""
        return self._is_closed

    def check(self) -> None:
        """Refuse new work if the part is not open."""
        if self.refusal is not None:
            raise self.refusal()

    def check_alive(self) -> None:
        """Refuse if the part is closed or forked; work that began before a shutdown can still be ended."""
        if self.refusal is not None and not isinstance(error := self.refusal(), ShutDown):
            raise error

    def check_forked(self) -> None:
        """Refuse in a forked child only."""
        if self.refusal is forked_error:
            raise forked_error()

    def drain(self, refusal: Callable[[], ShutDown] = ShutDown) -> None:
        """Refuse new work from here on, unless it is refused already."""
        self.refusal = self.refusal or refusal
        if self._is_closed:  # by another thread, within the line above
            self.refusal = self._closed

    def close(self) -> None:
        """Refuse everything with ClosedError."""
        self._is_closed = True  # first: a drain in progress looks at it last
        self.refusal = self._closed

    def forget(self) -> None:
        """In a forked child: refuse everything with ForkedError."""
        self._is_closed = False
        self.refusal = forked_error

    def _closed(self) -> ClosedError:
        return ClosedError(f"{self._what} is closed; {self._advice}")


class Forgetful(Protocol):
    """An object with locks and files that a forked child must not use."""

    def forget_after_fork(self) -> None:
        """Refuse every call; unlock and write nothing."""


_open: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def watch(queue: Forgetful) -> None:
    """Register ``queue``, so that its copy in every process forked from now on refuses every call."""
    _open.add(queue)


def _forget_all() -> None:
    failures: list[BaseException] = []
    for queue in list(_open):  # they stay registered, for the children of this child: one may be opened anew in it
        try:
            queue.forget_after_fork()
        except BaseException as error:  # one that fails for good keeps no other from it
            failures.append(error)
    if failures:
        raise failures[0]


forks.in_child(_forget_all)
