"""What a process did, line by line, in a file that outlives it: the demo's witness against the queue."""

from __future__ import annotations

import os
from pathlib import Path


class Journal:
    """The writing end. Each line is one ``os.write``: what a process has noted survives its SIGKILL, whole."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words: object) -> None:
        """Append one line."""
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


class JournalReader:
    """The reading end, in the process that watches."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
        self._rest = b""

    def read_new(self) -> list[list[str]]:
        """Return the lines that were added since the last call, as lists of words."""
        data = self._rest
        while chunk := os.read(self._file, 2**16):
            data += chunk
        *lines, self._rest = data.split(b"\n")
        return [line.decode().split() for line in lines]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
