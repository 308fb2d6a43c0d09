"""docs/reading-the-source.md is short, and names what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "holdfast"
PAGE = (ROOT / "docs" / "reading-the-source.md").read_text(encoding="utf-8")
LINES_MAX = 120

PATH = re.compile(r"`([\w./-]+(?:\.py|\.md|/))`")


def named() -> list[tuple[str, list[Path]]]:
    """Return each path of the page and where it may be: a bare file name is in a folder that its line names before."""
    found = []
    for line in PAGE.splitlines():
        folders = [SOURCE, ROOT]
        for match in PATH.finditer(line):
            found.append((match[1], [folder / match[1] for folder in folders]))
            folders.append((SOURCE / match[1]).parent)
    return found


@pytest.mark.parametrize(("path", "candidates"), [pytest.param(*each, id=each[0]) for each in dict(named()).items()])
def test_every_path_that_the_page_names_exists(path: str, candidates: list[Path]) -> None:
    """A module that is moved or merged takes the page with it."""
    assert any(each.is_dir() if path.endswith("/") else each.is_file() for each in candidates)


@pytest.mark.parametrize("package", ["persistence", "queue"])
def test_every_room_is_named(package: str) -> None:
    """A room that the page leaves out is one that a newcomer does not find."""
    rooms = {path.parent.name for path in (SOURCE / package).glob("*/__init__.py")}
    assert {room for room in rooms if f"| `{package}/{room}/` |" not in PAGE} == set()


def test_the_page_is_short() -> None:
    """A list of all modules is what it must not become again."""
    assert len(PAGE.splitlines()) <= LINES_MAX
