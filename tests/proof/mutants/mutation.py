"""A mutation: one small, realistic bug, put into a copy of the source by replacing an exact piece of text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path("src") / "holdfast"


class MutationError(Exception):
    """A mutation does not apply any more: what it replaces is not there, or more than once."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One bug.

    Attributes
    ----------
    name : str
        Short, for the command line.
    breaks : str
        What is wrong with it, in a sentence.
    file : str
        Which file of the package, below ``src/holdfast``.
    old, new : str
        The text it replaces, which stands there exactly once, and what comes in its place.
    suite : str
        Which suite is run first, because it should see this; the others follow where it does not.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    suite: str = ""

    def mutated(self, root: Path) -> str:
        """Return what the file below ``root`` becomes.

        Raises
        ------
        MutationError
            The old text does not stand there exactly once, or the new one is the same.
        """
        source = (root / PACKAGE / self.file).read_text(encoding="utf-8")
        count = source.count(self.old)
        if count != 1:
            raise MutationError(
                f"{self.name}: its old text stands {count} times in {self.file}, not once; write it anew"
            )
        mutated = source.replace(self.old, self.new)
        if mutated == source:
            raise MutationError(f"{self.name}: it changes nothing")
        compile(mutated, self.file, "exec")  # a syntax error would be caught by anything
        return mutated

    def apply(self, root: Path) -> None:
        """Put the bug into the copy of the tree at ``root``. Raises MutationError, and then changes nothing."""
        mutated = self.mutated(root)
        (root / PACKAGE / self.file).write_text(mutated, encoding="utf-8")
