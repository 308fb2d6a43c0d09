"""What is known of the Spark that plans: whether its tasks run on this machine, and how others reach it.

A read is planned in a process that Spark starts, without a session that could be asked. The command line of the JVM
above it has what Spark was started with; where there is no ``/proc``, nothing is known.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = re.compile(r"(?:^|\0)(?:--master\0|--conf\0spark\.master=|-Dspark\.master=)([^\0]+)")
_HOST = re.compile(r"(?:^|\0)(?:--conf\0|-D)spark\.driver\.host=([^\0]+)")
_LOCAL = re.compile(r"local(\[.*)?")
_SOMEWHERE = ("192.0.2.1", 9)
"""An address that no host has: asking for the way there sends nothing."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A Spark driver.

    Attributes
    ----------
    process : int
        With whose end the application ends.
    is_local : bool
        Whether all tasks run on this machine.
    host : str
        How executors reach the driver; empty if that is unknown.
    """

    process: int
    is_local: bool
    host: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """How other machines may reach this one: as they reach the driver, else by address, else by name."""
        found = [self.host] if self.host else [*_addresses(), socket.gethostname()]
        return tuple(dict.fromkeys(found))


def planning_driver() -> Driver | None:
    """Return the driver for which this process plans; None if no Spark has started this process."""
    for process in _ancestors():
        words = _words(process)
        if words.partition("\0")[0].endswith("java") and "org.apache.spark." in words:
            masters, hosts = _MASTER.findall(words), _HOST.findall(words)
            return Driver(process, bool(masters) and _is_local(masters[-1]), hosts[-1] if hosts else "")
    return None


def session_driver(spark: SparkSession) -> Driver | None:
    """Return the driver of a session, for a plan that this process makes; None if the session does not say."""
    conf = getattr(spark, "conf", None)
    if conf is None:
        return None
    if getattr(spark, "sparkContext", None) is None:  # Spark Connect, whose driver may be on any machine
        return Driver(os.getpid(), is_local=False)
    return Driver(os.getpid(), _is_local(conf.get("spark.master", "local")), conf.get("spark.driver.host", ""))


def _is_local(master: str) -> bool:
    return _LOCAL.fullmatch(master) is not None


def _ancestors() -> Iterator[int]:
    process = os.getppid()
    while process > 1:
        yield process
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def _words(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _addresses() -> Iterator[str]:
    """Yield the address that this machine has towards others."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect(_SOMEWHERE)
        yield way.getsockname()[0]
