"""The fencing token of one opening: it shows an owner that another one has opened the same files.

Locks keep a second owner out. If they do not work (a network file system, a removed lock file), the second owner
overwrites the token in the file that both would write to, before it reads anything. So an owner that finds its own
token after a sync knows that the next owner, if any, reads what the sync covered. docs/format.md, "Fencing".

The token detects a second owner, and only on one kernel; it prevents nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import FencedError
from holdfast.persistence.filesystem.locks import LockOwner, is_own_process
from holdfast.persistence.filesystem.storage import File, write_whole
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import FENCE, FENCE_POSITION, FENCE_TOKEN_BYTES

WINDOW_NS = 100_000_000
"""How old the last comparison may be before something is appended, in nanoseconds: a tenth of a second."""


class Fence:
    """The token of one opening, and its comparison with the token in a file.

    Parameters
    ----------
    owner : callable
        Returns the owner that the lock file names, for error messages.

    Attributes
    ----------
    slot : bytes
        The bytes at ``FENCE_POSITION`` in each file of this opening.
    """

    def __init__(self, owner: Callable[[], LockOwner]) -> None:
        token = secrets.token_bytes(FENCE_TOKEN_BYTES)
        self.slot = FENCE.pack(token, crc32c(0, token))
        self._owner = owner

    def put(self, file: File) -> None:
        """Write the token into a file, over that of the owner before. Raises ``OSError``."""
        write_whole(file, (self.slot,), FENCE_POSITION)

    def error(self, found: bytes, path: Path) -> FencedError:
        """Return the error for bytes in a file that are not the token of this opening."""
        if len(found) == FENCE.size and FENCE.unpack(found)[1] == crc32c(0, found[:FENCE_TOKEN_BYTES]):
            owner = self._owner()
            if is_own_process(owner):  # the note is older than the other owner, or of a second handle of this process
                owner = LockOwner()
            who = "another owner" if owner.pid is None else f"process {owner.pid} on {owner.host}"
            return FencedError(
                f"{path}: {who} has opened this queue too, so locks do not work here. Close it here, and make sure "
                "that only one of the two opens it again",
                path=str(path),
                pid=owner.pid,
                host=owner.host,
            )
        return FencedError(
            f"{path} has lost the token of its owner: something else has changed the file. Close the queue here, find "
            "out what writes to it, and only then open it again",
            path=str(path),
        )


def unnamed(path: Path) -> FencedError:
    """Return the error for a file that has lost its name: it was removed or replaced while it was open."""
    return FencedError(
        f"{path} was replaced or removed while this queue was open, so nothing that is written to it counts. Close the "
        "queue here, find out what has changed its files, and only then open it again",
        path=str(path),
    )
