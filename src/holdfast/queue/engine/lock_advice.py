"""What the locks of a queue guard, and the advice for a handle that finds them taken."""

from __future__ import annotations

from pathlib import Path

from holdfast.persistence.filesystem.locks import Owned


def owned_writes(root: Path) -> Owned:
    """Return the write side of the queue at ``root``."""
    return Owned(
        f"the write side of {root}",
        here="share that one open queue between all threads, close it first, or open both with mode='shared'; "
        "mode='read_only' reads",
        elsewhere="open it with mode='shared' in all processes that put or take, or here with mode='read_only' (or "
        "`holdfast ls`) to see; or stop that process, and lock_timeout= waits for its end",
    )


def owned_group(root: Path, group: str) -> Owned:
    """Return the read side of one group of the queue at ``root``: its former owner closes it last."""
    being_closed = "it is just being closed: try again, or lock_timeout= waits for its end"
    return Owned(f"group {group!r} of {root}", here=being_closed, elsewhere=being_closed)
