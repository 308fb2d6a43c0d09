"""docs/public-api.md lists what is public, each module says the same in ``__all__``, and the reference describes it."""

import importlib
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "public-api.md").read_text(encoding="utf-8")
REFERENCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "reference").glob("*.md")))

SECTIONS = dict(re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
LISTED = {module: re.findall(r"`(\w+)`", section) for module, section in SECTIONS.items()}
DOCUMENTED = set(re.findall(r"^\.\. (?:auto\w+|exception|py:data):: (?:[\w.]+\.)?(\w+)", REFERENCE, re.MULTILINE))

OPTIONAL = ("arrow", "spark")


def case(module: str, *values: str) -> Any:
    """Return a case about a documented module; those of Arrow and Spark need their extra."""
    extra = module.removeprefix("holdfast.")
    return pytest.param(module, *values, marks=[pytest.mark.extra(extra)] if extra in OPTIONAL else [])


@pytest.mark.parametrize("module", [case(module) for module in LISTED])
def test_the_page_lists_what_the_module_says_is_public(module: str) -> None:
    """Each name once, and no other."""
    assert sorted(LISTED[module]) == sorted(importlib.import_module(module).__all__)


@pytest.mark.parametrize(("module", "name"), [case(module, name) for module, names in LISTED.items() for name in names])
def test_every_public_name_can_be_imported(module: str, name: str) -> None:
    """Those that are imported when they are used, too."""
    assert getattr(importlib.import_module(module), name) is not None


@pytest.mark.parametrize(
    "module", [case(module) for module in LISTED if module.removeprefix("holdfast.") not in OPTIONAL]
)
def test_the_types_of_public_functions_can_be_read_by_programs(module: str) -> None:
    """Frameworks that call ``typing.get_type_hints`` meet no name that only a type checker sees; extras have some."""
    found = importlib.import_module(module)
    for name in LISTED[module]:
        value = getattr(found, name)
        members = vars(value).values() if inspect.isclass(value) else ()
        functions = [each for each in members if inspect.isfunction(each)]
        for function in [*functions, *([value] if inspect.isfunction(value) else [])]:
            assert isinstance(typing.get_type_hints(function), dict)


def test_the_reference_describes_every_public_name() -> None:
    """A public name without a description would be one that nobody finds."""
    assert {name for names in LISTED.values() for name in names} - DOCUMENTED == set()


def test_no_module_has_public_names_that_the_page_leaves_out() -> None:
    """``__all__`` stands in documented modules only; ``pyspark_holdfast`` is what Spark looks for."""
    source = ROOT / "src" / "holdfast"
    with_all = {
        ".".join(path.relative_to(source.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in source.rglob("*.py")
        if re.search(r"^__all__ = ", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert with_all == set(LISTED)
