"""Queues that are open when a process forks: the child's copies forget themselves, the parent's stay as they are."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from holdfast.errors import ForkedError


def forked_error() -> ForkedError:
    """Return what a forked copy of a queue answers to every call."""
    return ForkedError("this queue was opened before the fork; open it in the child, or leave it to the parent")


class Forgetful(Protocol):
    """Something that has handles which a forked child must not use."""

    def forget_after_fork(self) -> None:
        """Close the copies of the handles, unlock and write nothing."""


_open: weakref.WeakSet[Forgetful] = weakref.WeakSet()


def watch(queue: Forgetful) -> None:
    """Make ``queue`` forget itself in every process forked from here on."""
    _open.add(queue)


def _forget_all() -> None:
    for queue in list(_open):
        queue.forget_after_fork()
    _open.clear()


os.register_at_fork(after_in_child=_forget_all)
