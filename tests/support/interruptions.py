"""KeyboardInterrupt at any point of a call, and calls that may find a lock left locked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import holdfast
from holdfast import CommitUnknownError, PoisonedError

SOURCE = str(Path(holdfast.__file__).parent)
HANG_SECONDS = 20.0


def interrupt(call: Callable[[], object], at: int) -> bool:
    """Make a call and interrupt it at point number ``at``; return whether it came so far, whatever became of it.

    The points are those where the interpreter looks for signals: where a function of ours begins, and where one that is
    written in C has returned to ours. A loop's jump back is one too; ours call something in every turn.
    """
    count = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if event in {"call", "c_return"} and frame.f_code.co_filename.startswith(SOURCE):
            count += 1
            if count == at:
                raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return count >= at


def without_hanging(call: Callable[[], object]) -> object:
    """Return what a call returns in a thread of its own; a lock that was left locked fails the test, not the run."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(outcome(call)), daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive(), "the queue hangs after an interruption"
    return results[0]


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returns, or the error of ours that says to reopen."""
    try:
        return call()
    except (PoisonedError, CommitUnknownError) as error:
        return error
