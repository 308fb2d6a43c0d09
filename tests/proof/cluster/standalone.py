"""Starts and kills the processes of a standalone cluster: the master, and workers on machines of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import cycle
from pathlib import Path

from proof.cluster.machine import SIGHTS

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Of the workers; Spark tells machines apart by that."""

BASE = "HOLDFAST_CLUSTER"
"""The variable by which a driver's processes are known: it names the programme's directory."""

_SERVER = b"holdfast.spark.serving"

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Dspark.worker.timeout=15"
_STARTS_SECONDS = 120.0


class ClusterError(Exception):
    """The cluster does not do what it has to."""


class Standalone:
    """A master and one worker for each of :data:`HOSTS`.

    Parameters
    ----------
    base : Path
        The programme's directory; workers see ``tables`` and ``work`` of it.

    Attributes
    ----------
    url : str
        What drivers connect to.
    sights : dict of str to int
        How many machines were started, by what they see of the queues.
    """

    def __init__(self, base: Path) -> None:
        import pyspark

        self._base = base
        self._home = Path(pyspark.__file__).parent
        self._next_sight = cycle(SIGHTS)
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self.sights = dict.fromkeys(SIGHTS, 0)
        port = _free_port()
        self.url = f"spark://{HOSTS[0]}:{port}"
        arguments = ["--host", HOSTS[0], "--port", str(port), "--webui-port", "0"]
        self._master = self._started("master", [self._spark_class, _MASTER, *arguments])
        try:
            self._wait_for("master", "I have been elected leader")
            for number in range(len(HOSTS)):
                self.start_worker(number)
        except BaseException:
            self.close()
            raise

    @property
    def _spark_class(self) -> str:
        return str(self._home / "bin" / "spark-class")

    def start_worker(self, number: int) -> None:
        """Start a worker, on a machine that sees the queues in another way than the one before."""
        sight = next(self._next_sight)
        self.sights[sight] += 1
        name = f"worker-{sum(self.sights.values())}-{sight}"
        directory = self._base / "work" / name
        directory.mkdir(mode=0o777)
        directory.chmod(0o777)
        machine = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        worker = [self._spark_class, _WORKER, "--host", HOSTS[number], "--cores", "1", "--memory", "1g"]
        worker += ["--webui-port", "0", "--work-dir", str(directory), self.url]
        program = [sys.executable, "-m", "proof.cluster.machine", str(self._base), sight]
        self._workers[number] = self._started(name, [*machine, *program, *worker], HOLDFAST_MACHINE=str(number))
        self._wait_for(name, "Successfully registered with master")

    def kill_worker(self, number: int) -> None:
        """Kill a machine with everything on it, and start another one."""
        worker = self._workers.pop(number)
        worker.kill()
        worker.wait()
        self.start_worker(number)

    def close(self) -> None:
        """Kill everything."""
        for process in (*self._workers.values(), self._master):
            process.kill()
            process.wait()

    def _started(self, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        with (self._base / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                env=environment_of_spark(self._home) | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for(self, name: str, line: str) -> None:
        log = self._base / f"{name}.log"
        end = time.monotonic() + _STARTS_SECONDS
        while line not in log.read_text(errors="replace"):
            if time.monotonic() > end:
                raise ClusterError(f"the {name} did not start; the end of its log:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)


def environment_of_spark(home: Path) -> dict[str, str]:
    """Return the environment of Spark's processes: the packages of this one, and no home."""
    path = os.pathsep.join(filter(None, sys.path))
    return os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOSTS[0],
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _JAVA,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "HOME": "/tmp",  # of a user without one
    }


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_servers(base: Path) -> int:
    """Kill the range servers of this programme's drivers; return how many there were."""
    mine, count = f"{BASE}={base}".encode(), 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if _SERVER in (process / "cmdline").read_bytes() and mine in (process / "environ").read_bytes().split(
                b"\0"
            ):
                os.kill(int(process.name), signal.SIGKILL)
                count += 1
    return count


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOSTS[0], 0))
        return int(one.getsockname()[1])
