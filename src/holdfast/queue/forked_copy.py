"""The copy of a queue in a forked child that opens it anew at its first use, with locks, files and threads of its own.

The fork takes away what the parent had open. What is missing then is opened by the first look at it, whichever method
or thread looks. A queue without a copy of this kind pays nothing for it: only the copy's class has this hook.
"""

from __future__ import annotations

import threading
from typing import Any

from holdfast.queue.threads import lifecycle
from holdfast.queue.threads.lifecycle import Lifecycle


class Opening:
    """The first use of a copy. Threads may share it.

    Parameters
    ----------
    opened : type
        The class of the queue once it is open; its method ``_open`` opens it.
    before : frozenset of str
        The attributes that it has before it is opened.
    missing : frozenset of str
        Those that it has afterwards.
    """

    def __init__(self, opened: type[Any], before: frozenset[str], missing: frozenset[str]) -> None:
        self.opened = opened
        self.before = before
        self.missing = missing
        self._lock = threading.Lock()

    def begin(self, queue: Any) -> None:
        """Open the queue, unless another thread has done it; raises what opening does, and ClosedError."""
        with self._lock:
            if not self._is_open(queue):
                queue._lifecycle.check()
                try:
                    self.opened._open(queue)
                except BaseException:
                    self.forget(queue)
                    raise
            queue.__class__ = self.opened

    def close(self, queue: Any) -> bool:
        """Have the queue never opened; return False if it is open, and has to be closed."""
        with self._lock:
            if self._is_open(queue):
                queue.__class__ = self.opened
                return False
            queue._lifecycle.close()
            return True

    def forget(self, queue: Any) -> None:
        """Take away what was opened."""
        for name in self.missing:
            vars(queue).pop(name, None)

    def _is_open(self, queue: Any) -> bool:
        """Whether nothing is missing; an interruption may have kept the class as it was."""
        return bool(self.missing <= vars(queue).keys())


class ForkedCopy:
    """Base of a queue's class in a forked child until its first use: see :func:`put_off`."""

    _opening: Opening

    def __getattr__(self, name: str) -> Any:
        """Return what the fork has taken away, once the queue is open."""
        opening = self._opening
        if name not in opening.missing:
            raise AttributeError(f"{opening.opened.__name__!r} object has no attribute {name!r}", name=name, obj=self)
        opening.begin(self)
        return getattr(self, name)

    def close(self) -> None:
        """Close the queue, if it was opened."""
        opening = self._opening
        if not opening.close(self):
            opening.opened.close(self)

    def forget_after_fork(self) -> None:
        """In a child of the child: the same again, even if a thread was opening the queue; a closed one stays so."""
        if self._lifecycle.is_closed:
            return
        engine = vars(self).get("_engine")
        if engine is not None:
            engine.forget_after_fork()
        opening = self._opening
        _begin(self, Opening(opening.opened, opening.before, opening.missing))


def put_off(queue: Any, before: frozenset[str]) -> None:
    """Have a forked copy, which has forgotten its parent's engine, open its queue anew at its first use.

    Parameters
    ----------
    queue : PersistentQueue
        The copy.
    before : frozenset of str
        The attributes that it has before it is opened.
    """
    opened = type(queue)
    queue._opening = Opening(opened, before, frozenset(vars(queue)) - before - {"_opening"})
    queue.__class__ = type(opened.__name__, (ForkedCopy, opened), {"__module__": opened.__module__})
    _begin(queue, queue._opening)


def _begin(queue: Any, opening: Opening) -> None:
    queue._opening = opening
    opening.forget(queue)
    queue._lifecycle.forget()
    queue._lifecycle = Lifecycle(queue.path)
    lifecycle.watch(queue)
