"""``import holdfast`` loads what every program needs, and each public name loads the rest when it is first used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

LATER = ("asyncio", "email", "google_crc32c", "importlib.metadata", "msgspec", "portalocker", "rich", "sqlite_utils")
"""What is loaded when it is first used: each costs as much time as all of ``import holdfast``."""


def loaded_by(source: str) -> set[str]:
    """Return the modules that a new process has loaded after a program."""
    program = f"{source}\nimport sys; print(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_holdfast_loads_neither_queues_nor_services_nor_their_packages() -> None:
    """The names are there, and their modules are not."""
    loaded = loaded_by("import holdfast; dir(holdfast)")
    assert {each for each in loaded if each.startswith("holdfast.")} == {
        "holdfast.errors",
        "holdfast.forks",
        "holdfast.log",
    }
    assert loaded & set(LATER) == set()


def test_a_queue_loads_no_service() -> None:
    """A program that only needs ``PersistentQueue`` does not pay for typed objects, workers and the catalogue."""
    loaded = loaded_by("from holdfast import PersistentQueue")
    assert {each for each in loaded if each.startswith(("holdfast.service", "holdfast.serializers"))} == set()
    assert loaded & {"asyncio", "msgspec", "rich", "sqlite_utils"} == set()


def test_type_checkers_see_the_names_that_are_loaded_later() -> None:
    """They read imports, and the interpreter reads a table: both name the same modules."""
    tree = ast.parse(Path(holdfast.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {name.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert seen == holdfast._HOMES
    assert set(seen) <= set(holdfast.__all__)
    for name, home in seen.items():
        assert getattr(holdfast, name) is getattr(importlib.import_module(str(home)), name)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """As of any module, and ``dir`` lists what does exist before it is used."""
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Queue'"):
        _ = holdfast.Queue
    assert set(holdfast.__all__) <= set(dir(holdfast))
