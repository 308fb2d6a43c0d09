"""Every input of the fuzzing corpus through its target, without a fuzzer: seeds, and all that ever broke something."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from proof.fuzz.__main__ import main
from proof.fuzz.targets import CORPUS, TARGETS, Target

CORPUS_BYTES_MAX = 200_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Damaged queues warn."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def inputs(target: Target) -> list[Path]:
    """Return the files of a target's corpus."""
    return sorted(target.corpus.iterdir())


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_of_the_corpus_breaks_its_target(name: str) -> None:
    """It returns; an error that is documented is the target's own business."""
    target = TARGETS[name]
    files = inputs(target)
    assert files
    for path in files:
        try:
            target.run(path.read_bytes())
        except Exception as error:
            raise AssertionError(f"{path.name}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", [target.name for target in TARGETS.values() if target.share])
def test_no_input_of_the_corpus_takes_more_memory_than_two_data_files(name: str) -> None:
    """Whatever sizes and counts stand in the bytes; of bodies, more than may come out of a compressed one."""
    target = TARGETS[name]
    target.run(b"")
    for path in inputs(target):
        content = path.read_bytes()
        tracemalloc.start()
        try:
            target.run(content)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < target.memory_bytes, path.name


def test_the_corpus_stays_small_and_has_no_directory_without_a_target() -> None:
    """It travels with the source."""
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < CORPUS_BYTES_MAX


def test_without_the_fuzzer_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its corpus runs all the same, and so does one input by itself."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["frames"])
    assert result.exit_code == 1
    assert "atheris is missing" in result.output
    assert "Traceback" not in result.output
    alone = CliRunner().invoke(main, ["frames", "--input", str(inputs(TARGETS["frames"])[0])])
    assert alone.exit_code == 0
