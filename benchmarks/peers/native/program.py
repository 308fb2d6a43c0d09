"""Builds the program of a queue of another language; it prints what ``columns.py`` and ``kills.py`` would."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.peer import Peer, UnavailableError, no_handle

SOURCES = Path(__file__).parent
TIMEOUT_SECONDS = 600
PROGRESS = ("go: downloading ", "# ")
"""How lines begin that do not say what failed."""


@dataclass(frozen=True)
class Program:
    """A queue of another language.

    Attributes
    ----------
    name : str
        For the table.
    source : str
        The folder of its program, beside this file.
    tool, language : str
        What builds it, and what to install for that.
    build : tuple of str
        Arguments of the tool; TARGET is the folder that the program gets into.
    made : str
        The program, in that folder.
    pinned : str
        The file that names the version, and a pattern that finds it there.
    power_safe : str
        As in :class:`Peer`.
    """

    name: str
    source: str
    tool: str
    language: str
    build: tuple[str, ...]
    made: str
    pinned: tuple[str, str]
    power_safe: str

    def built(self, folder: Path) -> Peer:
        """Build it into a folder, and return the queue.

        Raises
        ------
        UnavailableError
            The tool is not there, or could not build it.
        """
        target = folder.resolve() / self.source
        self._build(target)
        return Peer(
            self.name,
            "",
            no_handle,
            self.power_safe,
            threads="no",
            processes=False,
            version=self._version(),
            program=str(target / self.made),
        )

    def _build(self, target: Path) -> None:
        tool = shutil.which(self.tool)
        if tool is None:
            raise UnavailableError(f"there is no {self.tool}: install {self.language}, or leave --native out")
        done = subprocess.run(
            [tool, *(each.replace("TARGET", str(target)) for each in self.build)],
            cwd=SOURCES / self.source,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            why = next((line for line in done.stderr.strip().splitlines() if not line.startswith(PROGRESS)), "")
            raise UnavailableError(f"{self.tool} could not build {self.source}: {why}")

    def _version(self) -> str:
        file, pattern = self.pinned
        found = re.search(pattern, (SOURCES / self.source / file).read_text(encoding="utf-8"))
        assert found is not None
        return found[1]
