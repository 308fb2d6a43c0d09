"""Options of the command that take seconds: a finite number, in range."""

from pathlib import Path

import pytest

from holdfast import PersistentQueue
from support.processes.cli import run


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "soon"])
@pytest.mark.parametrize("option", ["--delay", "--ttl", "--timeout"])
def test_what_is_no_number_of_seconds_is_refused_before_anything_is_put(
    tmp_path: Path, option: str, value: str
) -> None:
    """With the name of the option."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put(b"one")
    ended = run("put", tmp_path / "orders", "two", option, value)
    assert ended.code == 64
    assert f"Invalid value for '{option}': " in ended.err
    with PersistentQueue(tmp_path / "orders", mode="read_only") as queue:
        assert queue.qsize() == 1


@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "0", "86401"])
def test_a_demo_without_an_end_does_not_begin(value: str) -> None:
    """It takes a day at the most."""
    ended = run("demo", "--seconds", value)
    assert ended.code == 64
    assert "Invalid value for '--seconds': " in ended.err
