"""Standard error of a process that continues behind the command's result: passed on or kept, then dropped."""

from __future__ import annotations

import subprocess

import pytest

from holdfast.cli import spark_output
from holdfast.cli.spark_output import SparkOutput
from support.processes.thread_starts import no_threads
from support.processes.threads import wait_until


def test_what_is_written_before_the_end_is_shown_and_what_comes_later_is_not(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The process is started inside of the block, and its pipe never fills up."""
    output, shown = SparkOutput(is_shown=True), []
    with output.taken():
        process = subprocess.Popen(
            ["sh", "-c", "echo early >&2; read go; head -c 300000 /dev/zero >&2; echo late >&2"], stdin=subprocess.PIPE
        )
    assert process.stdin is not None

    def is_shown() -> bool:
        shown.append(capfd.readouterr().err)
        return "early" in "".join(shown)

    wait_until(is_shown, 30)
    output.end()
    process.stdin.write(b"go\n")
    process.stdin.close()
    assert process.wait(30) == 0
    assert "late" not in "".join([*shown, capfd.readouterr().err])


def test_standard_error_is_given_back_where_nothing_could_be_started(capfd: pytest.CaptureFixture[str]) -> None:
    """An error of the command itself is seen."""
    import os

    with pytest.raises(RuntimeError), SparkOutput(is_shown=True).taken():
        raise RuntimeError("no Java")
    os.write(2, b"error: no Java\n")
    assert "error: no Java" in capfd.readouterr().err


def test_without_a_thread_that_reads_it_standard_error_stays_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """A pipe that nobody reads would stop whoever writes."""
    with no_threads("holdfast-spark-output"), SparkOutput(is_shown=True).taken():
        subprocess.run(["sh", "-c", "echo shown >&2"], check=True)
    assert "shown" in capfd.readouterr().err


def test_what_is_kept_is_written_if_it_is_asked_for(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of it; and not before."""
    monkeypatch.setattr(spark_output, "_KEPT_BYTES", 8)
    output = SparkOutput(is_shown=False)
    with output.taken():
        subprocess.run(["sh", "-c", "echo first >&2; echo 1234567 >&2"], check=True)
    wait_until(lambda: output._kept == b"1234567\n", 30)
    assert capfd.readouterr().err == ""
    output.show()
    output.show()
    assert capfd.readouterr().err == "1234567\n"
