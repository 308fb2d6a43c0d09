"""Memory of the processes that read through a range server: freed pages are used again. No Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.spark import drain
from holdfast.spark.remote import unseen
from support.spark.drains import TasksForSpark, fill
from support.spark.other_machines import GROUP, nothing
from support.spark.range_servers import HOST, PLANNED, on_another_machine, servers_end

pytestmark = pytest.mark.usefixtures("arrow_packages")

_FAULTS = """
import resource, sys
from holdfast.spark.worker_memory import keep_freed_memory

if sys.argv[1] == "keeps":
    keep_freed_memory()
for _ in range(2):  # the first round has to get its pages
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks = [b"x" * 2**22 for _ in range(6)]
        del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Return how many pages a process has to get anew for blocks that it has freed before."""
    ran = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True)
    return int(ran.stdout)


@pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="needs glibc")
def test_freed_blocks_are_used_again() -> None:
    """Else the system makes their pages anew, each time."""
    assert faults("keeps") < 1000
    assert faults("gives back") > 10_000


@pytest.mark.parametrize("is_worker", [True, False])
def test_a_worker_of_spark_that_reads_through_a_server_keeps_freed_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_worker: bool
) -> None:
    """An application's process is left as it is."""
    kept: list[bool] = []
    monkeypatch.setattr(unseen, "is_worker", lambda: is_worker)
    monkeypatch.setattr(unseen, "keep_freed_memory", lambda: kept.append(True))
    fill(tmp_path / "q", range(1500))
    monkeypatch.chdir(tmp_path)
    rows: list[int] = []
    spark: Any = TasksForSpark(lambda: on_another_machine(tmp_path, nothing))
    with servers_end():
        drain(PLANNED, spark, lambda frame, _: rows.append(len(frame())), group=GROUP, serve_address=HOST)
    assert rows == [1500]
    assert bool(kept) == is_worker
