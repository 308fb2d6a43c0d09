"""What is missing is said in one line before Spark says it in fifty."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast import ConfigError
from holdfast.spark import session
from holdfast.spark.session import check_java, local_session


def java(directory: Path, version: str) -> Path:
    """Put something that says it is this Java into ``directory/bin``; return the directory."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    program.chmod(0o700)
    return directory


def test_a_java_that_is_new_enough_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where JAVA_HOME says, else on the PATH."""
    home = java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert check_java() == str(home / "bin" / "java")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert check_java() == str(home / "bin" / "java")


@pytest.mark.parametrize(
    ("version", "said"), [('java version "1.8.0_402"', "is version 1; Spark needs Java 17"), ("hello", "is no Java")]
)
def test_another_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, said: str) -> None:
    """With its place, and what to do."""
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, version)))
    with pytest.raises(ConfigError, match=said):
        check_java()


def test_no_java_is_said_before_spark_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way it was looked for."""
    monkeypatch.setattr(session, "check_spark", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"none in JAVA_HOME={tmp_path}"):
        local_session()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="none on the PATH"):
        local_session()


@pytest.mark.parametrize("module", ["pyspark", "pyarrow"])
def test_a_missing_package_is_named_by_its_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """The words to type are in the error."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[spark\]'"):
        session.register(None)  # type: ignore[arg-type]  # it does not come that far
