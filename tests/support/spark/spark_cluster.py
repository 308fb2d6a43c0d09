"""A Spark cluster on this machine: two executors of their own, on two hosts by name, so that Spark speculates.

``local[n]`` never speculates, and ``local-cluster[...]`` neither: Spark starts no second attempt on the host of the
first, and all its workers have one name. So master and workers are started here, in the driver's own JVM.

As a program it drains a queue in two batches: the first one has a task that straggles until its second attempt has
begun, and in the second one an executor is killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from support.spark.drain_faults import GROUP, KILLS_THE_EXECUTOR, note, noted, strike, task_function, write_through

HOSTS = ("127.0.0.1", "127.0.0.2")
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_STRAGGLER_SECONDS = 60
"""How long a first attempt waits to be overtaken; by far longer than that takes."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": HOSTS[0],
    "spark.driver.bindAddress": HOSTS[0],
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": _JAVA,
    "spark.executor.extraJavaOptions": _JAVA,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


def cluster_session(place: Path) -> Any:
    """Start a cluster and return a session on it, as :func:`holdfast.spark.local_session` makes it."""
    import pyspark
    from pyspark import SparkConf, SparkContext

    from holdfast.spark.session import local_session

    os.environ["SPARK_LOCAL_IP"] = HOSTS[0]
    os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
    conf = SparkConf()
    for name, value in SETTINGS.items():
        conf.set(name, value)
    SparkContext._ensure_initialized(conf=conf)  # the JVM, and nothing in it yet
    jvm: Any = SparkContext._jvm
    gateway: Any = SparkContext._gateway
    settings = jvm.org.apache.spark.SparkConf(True)
    for name, value in SETTINGS.items():
        settings.set(name, value)
    deploy = jvm.org.apache.spark.deploy
    started = _object(deploy.master, "Master$").startRpcEnvAndEndpoint(HOSTS[0], 0, 0, settings)
    url = f"spark://{started._1().address().hostPort()}"
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = url
    nothing = _object(jvm.scala, "None$")
    for number, host in enumerate(HOSTS, 1):
        directory, known_as = str(place / f"worker{number}"), jvm.scala.Some(number)
        _object(deploy.worker, "Worker$").startRpcEnvAndEndpoint(
            host, 0, 0, 1, 1024, masters, directory, known_as, settings, nothing
        )
    return local_session(url, settings=SETTINGS)


def _object(package: Any, name: str) -> Any:
    """Return an object of Scala."""
    return getattr(getattr(package, name), "MODULE$")


def straggler(notes: Path, root: Path, first: int, last: int) -> Any:
    """Return a function for a column: at one offset an attempt waits for the next one, at another an executor dies."""

    def act(offset: int, _: bytes) -> int:
        if offset == first and _is_first(notes, "straggler"):  # of the two attempts: either may be the slower one
            note(notes, "straggles")
            end = time.monotonic() + _STRAGGLER_SECONDS
            while "overtaken" not in noted(notes) and time.monotonic() < end:
                time.sleep(0.01)
        elif offset == first:
            note(notes, "overtaken")
        elif offset == last and _is_first(notes, "killed"):
            strike(KILLS_THE_EXECUTOR, notes, root)
        return offset

    return task_function(act)


def _is_first(notes: Path, what: str) -> bool:
    try:
        os.close(os.open(notes.with_name(what), os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def drain_on_a_cluster(path: Path, out: Path, place: Path, batch_count: int) -> None:
    """Drain a queue in two batches of so many messages, and print what the report says."""
    from holdfast.spark import drain

    spark = cluster_session(place)
    spark.sparkContext.setLogLevel("OFF")
    function = straggler(place / "notes", path, first=100, last=batch_count + 100)
    report = drain(
        path,
        spark,
        lambda frame, batch: write_through(function, out, frame, batch),
        max_messages=batch_count,
        group=GROUP,
    )
    spark.stop()
    print(json.dumps({"batch_count": len(report.batch_ids), "message_count": report.message_count}))


if __name__ == "__main__":
    drain_on_a_cluster(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
