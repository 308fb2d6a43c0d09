"""The index of the tests, tests/README.md, against the folders."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
INDEX = (TESTS / "README.md").read_text(encoding="utf-8")


def test_every_module_of_the_support_is_in_the_index_under_its_room() -> None:
    """A helper that is not listed is written a second time."""
    sections = re.split(r"^### `(\w+)/`.*$", INDEX, flags=re.MULTILINE)[1:]
    listed = {
        f"{room}/{name}"
        for room, text in zip(sections[::2], sections[1::2], strict=True)
        for name in re.findall(r"^\| `(\w+\.py)`", text, flags=re.MULTILINE)
    }
    assert listed == {
        f"{path.parent.name}/{path.name}" for path in (TESTS / "support").glob("*/*.py") if path.name != "__init__.py"
    }


def test_every_path_that_the_page_names_exists() -> None:
    """Of models and of what drives them; a star stands for several files."""
    top, _ = INDEX.split("## Support")
    named = [path for path in re.findall(r"`([\w/*]+(?:\.py|/))`", top) if "/" in path]
    assert len(named) > 20
    missing = [path for path in named if not any((*TESTS.glob(path), *(TESTS / "support").glob(path)))]
    assert not missing


def test_every_room_of_the_crash_tests_is_listed() -> None:
    """With what its tests prove."""
    listed = set(re.findall(r"^\| `crash/(\w+)/` \|", INDEX, flags=re.MULTILINE))
    assert listed == {path.parent.name for path in (TESTS / "crash").glob("*/test_*.py")}
