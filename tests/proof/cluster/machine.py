"""The machine of a Spark worker: namespaces in which the queues are hidden, another user's, or on a read-only mount.

Runs as root and as the first process of its namespaces (``unshare``). All others of them end with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HIDDEN, FOREIGN, READ_ONLY = "hidden", "foreign", "read-only"
SIGHTS = (HIDDEN, FOREIGN, READ_ONLY)
"""No such directory; one that its user may not read; and one that its user may read and cannot write."""

SHARED = ("tables", "work")
"""What all machines see of the programme's directory: where Spark writes, and what tells who is to be killed."""

_NOBODY = 65534
_PATHS = (Path(sys.base_prefix), Path(sys.prefix), Path(__file__).resolve().parents[3])
"""What a worker needs of this machine, and another user may not reach: Python, its packages, and the project."""


def main(base: Path, sight: str, command: Sequence[str]) -> int:
    """Hide what this machine does not have, and run a command on it."""
    queues = base / "queues"
    if sight == HIDDEN:
        hide(base, [base / each for each in SHARED])
    elif sight == READ_ONLY:
        mount("--bind", str(queues), str(queues))
        mount("-o", "remount,bind,ro", str(queues))
    temporary = Path(tempfile.gettempdir()).resolve()
    hide(temporary, [each for each in (base, *_PATHS) if each.is_relative_to(temporary)])
    for closed in sorted({found for each in _PATHS if (found := closed_above(each)) is not None}):
        hide(closed, [each for each in _PATHS if each.is_relative_to(closed)])
    user = None if sight == READ_ONLY else _NOBODY
    return subprocess.run(command, user=user, group=user, extra_groups=[], umask=0, check=False).returncode


def closed_above(path: Path) -> Path | None:
    """Return the outermost directory above a path that other users may not enter; None if there is none."""
    return next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)


def hide(directory: Path, kept: Sequence[Path]) -> None:
    """Put an empty directory in memory over one; of what was there, only some directories are seen any more."""
    handles = [os.open(each, os.O_PATH) for each in kept]
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(directory))
    for path, handle in zip(kept, handles, strict=True):
        path.mkdir(parents=True, exist_ok=True)
        mount("--no-canonicalize", "--rbind", f"/proc/self/fd/{handle}", str(path), handles=[handle])
        os.close(handle)


def mount(*arguments: str, handles: Sequence[int] = ()) -> None:
    """Mount something in these namespaces."""
    subprocess.run(["mount", *arguments], pass_fds=handles, check=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
