"""Has a forked child forget what is its parent's, also if it is interrupted there.

Python runs the functions that a module registers for forks like any others: Ctrl-C or a lack of memory ends one, Python
prints that, and calls the next one. A child that has not forgotten would share nonces or locks with its parent. So one
function of this module is registered many times, and each call does what is left.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

Forget = Callable[[], object]

_ATTEMPTS = 16
"""One more than the interruptions of one child that cost nothing."""

_all: list[Forget] = []
left: list[Forget] = []
"""What this child has yet to forget. Whatever must not use files or nonces of the parent looks here first, and calls
:func:`forget_left`: a handler of signals may come before it, and a full stack keeps each attempt from beginning."""


def in_child(forget: Forget) -> None:
    """Have ``forget`` called in each child of a later fork, until it has returned once: so it may begin anew.

    Those of one process are called in the order of these calls.
    """
    _all.append(forget)


def gate() -> threading.RLock:
    """Return a lock that each fork takes: what is done under it is done, or not begun, in each child.

    Hold it briefly, and wait for nothing meanwhile. Ctrl-C in a thread that forks, and waits for it, ends the wait and
    not the fork; so it is a lock that only its owner can release.
    """
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release)
    in_child(lock._at_fork_reinit)  # type: ignore[attr-defined]  # as the module logging has it
    return lock


def forget_left() -> None:
    """Call those that have not returned in this child."""
    while left:
        forget = left[0]
        try:
            forget()
        except BaseException:
            if forget in left:
                left.remove(forget)
                left.append(forget)  # one that fails for good keeps no other from it
            raise
        if forget in left:  # else a handler of signals has come here meanwhile
            left.remove(forget)


os.register_at_fork(after_in_child=partial(left.extend, _all))  # in C, where Python looks for no signal
for _ in range(_ATTEMPTS):
    os.register_at_fork(after_in_child=forget_left)
