"""What stands below a real directory, to show that nothing has changed."""

from __future__ import annotations

from pathlib import Path


def tree(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return all that is below a directory: mode, owner, time of the last change, content."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found
