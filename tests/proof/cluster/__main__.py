"""``python -m proof.cluster --rows 200000``: a pipeline on a cluster whose workers do not see the queues, and kills."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

import click
import msgspec
from examples.spark.events import DATA, EARTHQUAKES, FLIGHTS, Stream, queues, read_events

from holdfast import PersistentQueue, QueueService
from holdfast.errors import ConfigError
from holdfast.spark.session import check_java, check_spark
from proof.cluster.job import COPIES, DRAIN, STEPS, STREAMED, WRITE
from proof.cluster.standalone import BASE, ClusterError, Standalone, end_group, environment_of_spark, kill_servers
from proof.cluster.strikes import DRIVER, SERVER, VICTIMS, WORKER, done, mark

_PUT_COUNT = 1000
_STEP_SECONDS = 1800.0
"""How long a step may take, with its kills on a busy machine."""

_LOG_CHARACTERS = 3000
_ASKED = {"read": "is read from the range server", "written": "is written through the range server"}


@dataclass
class Counted:
    """What became of the rows of one place.

    Attributes
    ----------
    place : str
        Where they were looked for.
    count, lost, doubled, altered : int
        Rows there; of those that had to be there, the missing ones, the repeated ones, and those with other values.
    """

    place: str
    count: int
    lost: int = 0
    doubled: int = 0
    altered: int = 0

    @classmethod
    def of(cls, place: str, expected: Iterable[Any], found: Iterable[Any]) -> Counted:
        """Compare events, by their ids."""
        put, rows = {each.id: each for each in expected}, list(found)
        times = Counter(each.id for each in rows)
        lost = sum(each not in times for each in put)
        altered = sum(put.get(each.id) != each for each in rows)
        return cls(place, len(rows), lost, sum(times.values()) - len(times), altered)

    @property
    def is_right(self) -> bool:
        """Whether each row is there once, as it was."""
        return not (self.lost or self.doubled or self.altered)

    def __str__(self) -> str:
        wrong = f"{self.lost} lost, {self.doubled} doubled, {self.altered} altered"
        return f"{self.place}: {self.count:,} rows, {wrong}"


@dataclass
class Pipeline:
    """The steps, with what is killed in each.

    Attributes
    ----------
    base : Path
        Holds queues, tables, and what Spark has to say.
    events : dict of Stream to list
        What is put.
    killed : Counter of str
        How many of each victim were killed.
    """

    base: Path
    events: dict[Stream, list[Any]]
    killed: Counter[str] = field(default_factory=Counter)

    def put(self) -> None:
        """Put all events, as an application does."""
        for name, mode in (("tables", 0o777), ("work", 0o777), ("driver", 0o700)):
            (self.base / name).mkdir()
            (self.base / name).chmod(mode)
        with QueueService(queues(self.base)) as service:
            for stream, events in self.events.items():
                queue = service.queue(stream.name, type=stream.type, serializer="json")
                for at in range(0, len(events), _PUT_COUNT):
                    queue.put_many(events[at : at + _PUT_COUNT])

    def run(self, step: str, cluster: Standalone) -> None:
        """Run a step to its end, through its kills; raises ClusterError."""
        work, end = self.base / "work", time.monotonic() + _STEP_SECONDS
        driver, struck = self._driver(step, cluster), set[str]()
        without_server = None
        try:
            while driver.poll() is None or (driver.returncode and driver is without_server):
                if driver.returncode:  # its tasks did not find the server any more: as documented, it runs again
                    driver = self._driver(step, cluster)
                if time.monotonic() > end:
                    raise ClusterError(f"the driver of {step} hangs")
                for victim in VICTIMS:
                    path = mark(work, step, victim)
                    if victim in struck or not path.exists() or not (machine := path.read_text()):
                        continue
                    if victim == WORKER:
                        cluster.kill_worker(int(machine))
                    elif victim == DRIVER:
                        end_group(driver)
                        driver = self._driver(step, cluster)
                    elif victim == SERVER:
                        if not kill_servers(self.base):
                            continue  # the driver has not started it yet
                        without_server = driver
                        done(work, step, victim).touch()
                    struck.add(victim)
                    self.killed[victim] += 1
                    click.echo(f"  {step}: the {victim} is killed in the middle of a batch")
                time.sleep(0.1)
            if driver.returncode or struck != set(VICTIMS):
                raise ClusterError(f"the driver of {step} ended with {driver.returncode}; killed were {sorted(struck)}")
        except ClusterError as error:
            log = (self.base / f"{step}.log").read_text(errors="replace")
            raise ClusterError(f"{error}; the end of its log:\n{log[-_LOG_CHARACTERS:]}") from None
        finally:
            end_group(driver)

    def _driver(self, step: str, cluster: Standalone) -> subprocess.Popen[bytes]:
        import pyspark

        count = len(self.events[FLIGHTS])
        with (self.base / f"{step}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "proof.cluster.job", str(self.base), cluster.url, step, str(count)],
                env=environment_of_spark(Path(pyspark.__file__).parent) | {BASE: str(self.base)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0,
            )

    def counted(self, step: str) -> list[Counted]:
        """Count the rows of each place that a step has filled."""
        if step == DRAIN:
            return [Counted.of(f"Parquet, {each.name}", self.events[each], self._table(each)) for each in self.events]
        name = COPIES if step == WRITE else STREAMED
        return [Counted.of(f"queue {name}", self.events[FLIGHTS], self._queue(name))]

    def _table(self, stream: Stream) -> list[Any]:
        from pyarrow import dataset

        table = dataset.dataset(str(stream.table(self.base)), format="parquet", partitioning="hive")
        rows = table.to_table(columns=list(stream.type.__struct_fields__)).to_pylist()
        if stream is EARTHQUAKES:  # Parquet has the time without its zone
            rows = [row | {"time": row["time"].replace(tzinfo=UTC)} for row in rows]
        return [stream.type(**row) for row in rows]

    def _queue(self, name: str) -> list[Any]:
        with PersistentQueue(queues(self.base) / name, mode="read_only") as queue:
            assert not queue.prepared(), "nothing is in doubt"
            payloads = [each.payload for each in queue.peek(len(self.events[FLIGHTS]) * 2)]
        return [msgspec.json.decode(each, type=FLIGHTS.type) for each in payloads]

    def asked(self, sight: str) -> Counter[str]:
        """Return how many executors have read, and written, through a range server, as their logs say."""
        logs = [each.read_text(errors="replace") for each in (self.base / "work").glob(f"worker-*-{sight}/*/*/stderr")]
        return Counter({verb: sum(line in log for log in logs) for verb, line in _ASKED.items()})


def what_is_missing() -> str:
    """Return why no such cluster can be started here; empty if it can."""
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return "there is no `unshare`: mount namespaces need Linux and util-linux"
    if os.geteuid():
        return "mount namespaces and another user need root"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"], check=False).returncode:
        return "this root may not make mount namespaces, as in a container without that right"
    try:
        check_spark()
        check_java()
    except ConfigError as error:
        return str(error)
    return ""


def make_events(row_count: int, data: Path) -> dict[Stream, list[Any]]:
    """Return so many events: all earthquakes, and the flights again and again, each with an id of its own."""
    quakes, some = read_events(EARTHQUAKES, 0, data), read_events(FLIGHTS, row_count, data)
    flights = [msgspec.structs.replace(some[at % len(some)], id=at) for at in range(row_count - len(quakes))]
    return {EARTHQUAKES: quakes, FLIGHTS: flights}


@click.command()
@click.option(
    "--rows", default=200_000, show_default=True, type=click.IntRange(10_000), help="How many events are put."
)
@click.option("--data", default=DATA, type=click.Path(path_type=Path, exists=True), help="Where the files are.")
@click.option("--keep", type=click.Path(path_type=Path, exists=False), help="Work in this new directory and leave it.")
def main(rows: int, data: Path, keep: Path | None) -> None:
    """Run the pipeline on a cluster whose workers do not see the queues, kill, and count every row."""
    if missing := what_is_missing():
        click.echo(f"cluster: SKIPPED: {missing}")
        return
    began = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="holdfast-cluster-")) if keep is None else keep.absolute()
    base.mkdir(exist_ok=True)
    base.chmod(0o755)
    pipeline = Pipeline(base, make_events(rows, data))
    is_right = False
    try:
        is_right = _run(pipeline)
    except ClusterError as error:
        click.echo(f"cluster: {error}")
    finally:
        if is_right and keep is None:
            shutil.rmtree(base)
        else:
            click.echo(f"cluster: kept {base}")
    click.echo(f"cluster: {'ok' if is_right else 'FAILED'}, {time.monotonic() - began:.0f} s")
    sys.exit(not is_right)


def _run(pipeline: Pipeline) -> bool:
    """Run it all; return whether every row is everywhere once."""
    pipeline.put()
    cluster, counted = Standalone(pipeline.base), list[Counted]()
    try:
        for step in STEPS:
            pipeline.run(step, cluster)
            counted += pipeline.counted(step)
    finally:
        cluster.close()
    for each in counted:
        click.echo(f"cluster: {each}")
    killed = ", ".join(f"{pipeline.killed[each]} {each}s" for each in VICTIMS)
    click.echo(f"cluster: killed in the middle of a batch: {killed}")
    asked = Counter[str]()
    for sight, count in cluster.sights.items():
        asked += (found := pipeline.asked(sight))
        through = ", ".join(f"{found[verb]} have {verb}" for verb in _ASKED)
        click.echo(
            f"cluster: machines to which the queues were {sight}: {count}; executors through a server: {through}"
        )
    return all(each.is_right for each in counted) and all(asked[verb] for verb in _ASKED)


if __name__ == "__main__":
    main()
