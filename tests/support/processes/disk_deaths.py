"""Processes that kill themselves at a call to the disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

from holdfast.persistence.filesystem.storage import OsFile, OsStorage

_CHANGES = (
    (OsFile, ("write_at", "truncate", "allocate")),
    (OsStorage, ("make_directory", "rename", "remove", "remove_directory")),
)


def die() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def killed_at(call: int) -> Iterator[None]:
    """Be killed right before such a call that changes something on the disk; a sync does not, for who is killed."""
    calls = count(1)

    def counted(method: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            if next(calls) == call:
                die()
            return method(*arguments, **options)

        return run

    patches = [
        mock.patch.object(kind, each, counted(getattr(kind, each))) for kind, names in _CHANGES for each in names
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
