"""Where Spark has to be there, a test that cannot run fails: CI is green only if the tests of Spark ran."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDS_SPARK = "tests/spark/test_pipeline_example.py::test_regions_and_bands_are_those_computed_by_hand"


@pytest.mark.parametrize(("required", "status", "outcome"), [("0", 0, "1 skipped"), ("1", 1, "1 error")])
def test_without_java_a_test_is_skipped_or_fails_as_the_environment_says(
    tmp_path: Path, required: str, status: int, outcome: str
) -> None:
    """The reason says what to install, either way."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", NEEDS_SPARK],
        cwd=ROOT,
        env=os.environ | {"JAVA_HOME": str(tmp_path), "HOLDFAST_TEST_REQUIRE_SPARK": required},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert outcome in done.stdout.splitlines()[-1]
    assert "Spark needs Java 17 or newer" in done.stdout
    assert ("HOLDFAST_TEST_REQUIRE_SPARK=1, and" in done.stdout) == (required == "1")


def test_ci_requires_spark(tmp_path: Path) -> None:
    """Every command of ``.ci/run`` gets the environment that says so."""
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "$* $HOLDFAST_TEST_REQUIRE_SPARK"\n', encoding="utf-8")
    make.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    output = subprocess.run([ROOT / ".ci" / "run"], env=environment, capture_output=True, text=True, check=True).stdout
    commands = ["lint", "layers", "types", "coverage", "test COVERED=1", "test-minimal", "test-spark"]
    commands += ["test-pure COVERED=1", "sanitize"]
    assert output.splitlines() == [f"{command} 1" for command in commands]
