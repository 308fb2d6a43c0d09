"""Syncs that take as long as a test wants, for tests of what is appended while one is under way."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

SECONDS_MAX = 60.0
LOOK_SECONDS = 0.001
LOOKS = 3


class HeldSyncs:
    """Stops each sync of some files of a simulated storage before it is done, until it is let go.

    Parameters
    ----------
    is_held : callable
        Says of the path of a file whether its syncs are stopped; for a hook, see ``SimulatedStorage.before_verb``.

    Attributes
    ----------
    begun_count : int
        Syncs that came here.
    """

    def __init__(self, is_held: Callable[[Path], bool]) -> None:
        self._is_held = is_held
        self._changed = threading.Condition()
        self._let_go_count = 0
        self._holds = True
        self.begun_count = 0

    def before_verb(self, verb: str, path: Path) -> None:
        """Stop here if it is such a sync."""
        if verb != "sync" or not self._is_held(path):
            return
        with self._changed:
            self.begun_count += 1
            number = self.begun_count
            assert self._changed.wait_for(lambda: number <= self._let_go_count or not self._holds, SECONDS_MAX)
            self._let_go_count = max(self._let_go_count, number)

    @property
    def held_count(self) -> int:
        """How many are stopped now."""
        return self.begun_count - self._let_go_count

    def let_go(self) -> None:
        """Let the oldest one be done; where none is stopped nothing happens."""
        with self._changed:
            self._let_go_count = min(self._let_go_count + 1, self.begun_count)
            self._changed.notify_all()

    def end(self) -> None:
        """Stop no sync any more."""
        with self._changed:
            self._holds = False
            self._changed.notify_all()


def wait_until_still(threads: Iterable[threading.Thread]) -> None:
    """Return once each thread has ended, or waits: where it is does not change from look to look.

    One that the machine does not let run looks the same. So a test may fail to see a bug then, and never sees one that
    is not there.
    """
    deadline = time.monotonic() + SECONDS_MAX
    before: object = None
    same_count = 0
    while same_count < LOOKS:
        assert time.monotonic() < deadline, "a thread neither ends nor waits"
        time.sleep(LOOK_SECONDS)
        frames = sys._current_frames()
        places = [(frame.f_code, frame.f_lasti) for each in threads if (frame := frames.get(each.ident or 0))]
        same_count = same_count + 1 if places == before else 0
        before = places
