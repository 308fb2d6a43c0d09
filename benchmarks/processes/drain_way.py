"""One way to drain a queue, in a process of its own: ``python -m benchmarks.processes.drain_way arrow|MASTER …``.

It prints the seconds of each round as JSON: of the drain, and of the same payloads from Parquet into Parquet. The queue
is ``queue`` below the working directory. For executors of a cluster that have to do without it, its path is below
``/proc/self/cwd``, which is another directory for each process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.processes.fresh_process import ROOT

WARMUP_ROUNDS = 1

UNSEEN = Path("/proc/self/cwd")


def measured(way: str, queue: Path, parquet: Path, out: Path, rounds: int, sight: str) -> dict[str, list[float]]:
    """Run this module to its end, and return the seconds of both sides; ``sight`` is ``seen`` or ``unseen``."""
    command = [sys.executable, "-m", "benchmarks.processes.drain_way", way, parquet, out, rounds, sight]
    done = subprocess.run(
        [str(each) for each in command],
        cwd=queue.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Spark's own, also if all is well
        text=True,
        check=True,
    )
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def with_arrow(queue: Path, parquet: Path) -> tuple[Callable[[Path, str], int], Callable[[Path], object]]:
    """Return a drain with Arrow, given a directory and a group; and Parquet into Parquet by pyarrow."""
    from pyarrow import dataset

    from benchmarks.cases.spark_cases import COLUMNS
    from holdfast.arrow import DirectoryWriter, drain

    def floor(out: Path) -> object:
        return dataset.write_dataset(dataset.dataset(parquet, format="parquet"), out, format="parquet")

    return lambda out, group: drain(queue, DirectoryWriter(out), group=group, columns=COLUMNS).message_count, floor


def with_spark(spark: Any, queue: Path, parquet: Path) -> tuple[Callable[[Path, str], int], Callable[[Path], object]]:
    """Return the same with a session of Spark."""
    from benchmarks.cases.spark_cases import COLUMNS, write_parquet
    from holdfast.spark import drain

    def drained(out: Path, group: str) -> int:
        def write(frame: Any, batch_id: str) -> None:
            write_parquet(frame, out / f"batch_id={batch_id}")

        return drain(queue, spark, write, group=group, columns=COLUMNS).message_count

    return drained, lambda out: write_parquet(spark.read.parquet(str(parquet)), out)


def main(way: str, parquet: str, out: str, rounds: str, sight: str) -> None:
    """Do what the command line says."""
    queue = (Path.cwd() if sight == "seen" else UNSEEN) / "queue"
    if way == "arrow":
        drained, floor = with_arrow(queue, Path(parquet))
    else:
        import pyspark

        from benchmarks.cases.spark_cases import SETTINGS
        from holdfast.spark.session import local_session

        os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
        spark = local_session(way, app_name="holdfast ways", settings=SETTINGS)
        spark.sparkContext.setLogLevel("OFF")
        drained, floor = with_spark(spark, queue, Path(parquet))
    seconds: dict[str, list[float]] = {"drain": [], "floor": [], "messages": []}
    for number in range(WARMUP_ROUNDS + int(rounds)):
        folder = Path(out) / str(number)
        os.sync()
        started = perf_counter()
        floor(folder / "copy")
        seconds["floor"].append(perf_counter() - started)
        os.sync()
        started = perf_counter()
        seconds["messages"].append(drained(folder / "out", f"{Path(out).name}-{number}"))
        seconds["drain"].append(perf_counter() - started)
        shutil.rmtree(folder)
    print(json.dumps({name: each[WARMUP_ROUNDS:] for name, each in seconds.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
