"""The error for files of another format version. Pure.

Another version is never damage: such a queue is not repaired, rebuilt or removed.
"""

from __future__ import annotations

from holdfast.errors import UnsupportedVersionError
from holdfast.persistence.format.constants import FORMAT_VERSION


def other_version(path: str, version: int, features: int = 0) -> UnsupportedVersionError:
    """Return the error for a file of another format version, or with incompatible features that are not known."""
    if version < FORMAT_VERSION:
        reason = (
            f"an earlier, unreleased Holdfast wrote it, and version {FORMAT_VERSION} does not convert it: "
            "drain the queue with the Holdfast that wrote it, or begin a new directory"
        )
    else:
        reason = f"this is version {FORMAT_VERSION}: open it with a newer Holdfast"
    beside = f", features {features:#x}" if features else ""
    return UnsupportedVersionError(f"{path} has format version {version}{beside}; {reason}", path=path, version=version)
