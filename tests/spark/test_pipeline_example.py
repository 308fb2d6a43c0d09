"""The example pipeline: killed and resumed as it says, and it would say so if a row were lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import PersistentQueue

ROOT = Path(__file__).resolve().parents[2]
OWN_SETTINGS = {"PYSPARK_SUBMIT_ARGS": "pyspark-shell"}  # none of the tests: where its sockets go is its own matter
EVENT = {"time": datetime(2018, 2, 7, tzinfo=UTC), "kind": "earthquake"}


def start(temporary: Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start the example, with its temporary directory inside ``temporary``."""
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "examples.spark", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | OWN_SETTINGS | {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, arrow_packages: None) -> SimpleNamespace:
    """The modules of the example."""
    monkeypatch.syspath_prepend(str(ROOT))
    names = {"count": "count", "events": "events", "pipeline": "__main__", "tables": "tables"}
    return SimpleNamespace(**{name: import_module(f"examples.spark.{module}") for name, module in names.items()})


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)  # it starts Spark twice, which takes its time on a busy machine
def test_the_job_is_killed_while_it_writes_and_every_row_counts_once(spark: Any, tmp_path: Path) -> None:
    """The batch that was being written is the one that the next run begins with; the tables and the plot are whole."""
    kept, plot = tmp_path / "kept", tmp_path / "plot" / "pipeline.svg"
    # All of its processes hold the same pipe for output: that it ends here proves that they are gone.
    pipeline = start(tmp_path / "temporary", "--flights", 10_000, "--keep", kept, "--plot", plot)
    output, errors = pipeline.communicate()
    assert (pipeline.returncode, errors) == (0, ""), output + errors

    (killed,) = re.findall(r"kill -9 +while batch (\S+) was being written", output)
    assert killed.endswith("-5000")  # the third of four batches
    assert "holds its 2,500 messages under that id; with them 5,000 are left" in output
    assert "2 batches drained" in output
    assert f"Killed and resumed: batch {killed}\n" in output
    assert re.search(r"earthquakes +1,707 +1,707 +1,707 +0 +0 +0 +1\b", output)
    assert re.search(r"flights +10,000 +10,000 +10,000 +0 +0 +0 +4\b", output)
    assert "1,679 earthquakes of a week" in output

    flights = spark.read.parquet(str(kept / "tables" / "flights"))
    assert flights.count() == flights.select("id").distinct().count() == 10_000
    resumed = flights.where(flights.batch_id == killed).selectExpr("min(id)", "max(id)", "count(*)").first()
    assert tuple(resumed) == (5000, 7499, 2500)
    assert ET.parse(plot).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert {path.name for path in kept.iterdir()} == {"queues", "tables", "job.journal", "spark.log"}
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")  # for what has to be installed
def test_an_interrupted_pipeline_ends_its_processes_and_cleans_up(tmp_path: Path) -> None:
    """Ctrl-C while Spark starts leaves neither a process nor a file."""
    temporary = tmp_path / "temporary"
    pipeline = start(temporary)
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in temporary.glob("*/spark.log")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pipeline.send_signal(signal.SIGINT)
    _, errors = pipeline.communicate(timeout=30)
    assert (pipeline.returncode, errors) == (128 + signal.SIGINT, "\nInterrupted.\n")
    assert list(temporary.iterdir()) == []


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    """That is what ``make demo`` shows; the status tells it to go no further."""
    pipeline = start(tmp_path / "temporary", "--check-java", JAVA_HOME=str(tmp_path))
    output, errors = pipeline.communicate()
    assert (pipeline.returncode, output) == (1, "")
    assert re.fullmatch(r"The Spark pipeline is left out: Spark needs Java 17 or newer .*: install one\n", errors)


@pytest.mark.parametrize(("arguments", "why"), [(("--flights", 7499), "7,500 at least"), (("--keep", "."), "already")])
def test_options_that_cannot_work_are_refused(tmp_path: Path, arguments: tuple[object, ...], why: str) -> None:
    """Before anything is done."""
    pipeline = start(tmp_path / "temporary", *arguments)
    _, errors = pipeline.communicate()
    assert pipeline.returncode == 2
    assert why in errors


def test_a_batch_that_the_queue_does_not_hold_is_no_success(example: SimpleNamespace, tmp_path: Path) -> None:
    """What was being written has to be reserved, or the kill has lost it."""
    example.events.queues(tmp_path).mkdir()
    with PersistentQueue(example.events.FLIGHTS.queue(tmp_path), mode="exclusive") as queue:
        queue.groups.create(example.events.GROUP)
    with pytest.raises(example.pipeline.LostPlaceError, match="batch drain-1 was being written, and the queue does"):
        example.pipeline.tell_what_is_held(tmp_path, "drain-1")


@pytest.mark.spark
def test_rows_that_are_lost_doubled_or_altered_are_named(spark: Any, example: SimpleNamespace) -> None:
    """Of four events one is missing, one is there twice, and one has another magnitude."""
    stream = example.events.EARTHQUAKES
    put = [example.events.Earthquake(f"e{number}", place="here", magnitude=1.0, **EVENT) for number in range(4)]
    rows = [(f"e{n}", EVENT["time"], "here", 2.0 if n == 3 else 1.0, "earthquake", f"b{n}") for n in (1, 2, 2, 3)]
    count = example.count.Count.of(stream, put, spark.createDataFrame(rows, f"{stream.schema}, batch_id STRING"))
    assert (count.put_count, count.row_count, count.distinct_count, count.batch_count) == (4, 4, 3, 3)
    assert count.violations == "earthquakes: 1 lost (e0), earthquakes: 1 doubled (e2), earthquakes: 1 altered (e3)"
    sound = example.count.Count.of(
        stream, put[1:3], spark.createDataFrame(rows[:2], f"{stream.schema}, batch_id STRING")
    )
    assert sound.violations == ""


@pytest.mark.spark
def test_regions_and_bands_are_those_computed_by_hand(spark: Any, example: SimpleNamespace) -> None:
    """The text behind the last comma, under one name; the lower end of a band is in, the upper one is not."""
    expected = [
        ("4km W of Castaic, CA", -0.5, "California", 0),
        ("3km N of The Geysers, California", 0.99, "California", 0),
        ("10km S of Anza, near Mexico, MX", 1.0, "Mexico", 1),
        ("21km SSW of Warm Springs, Nevada", 2.9, "Nevada", 2),
        ("Reykjanes Ridge", 4.0, "Reykjanes Ridge", 4),
        ("48km NW of Bristol Island, South Sandwich Islands", 5.0, "South Sandwich Islands", 5),
        ("15km E of Hualian, Taiwan", 6.4, "Taiwan", 5),
    ]
    frame = spark.createDataFrame([row[:2] for row in expected], "place STRING, magnitude DOUBLE")
    tables = example.tables
    found = frame.select(tables.region(frame.place), tables.band(frame.magnitude)).collect()
    assert [tuple(row) for row in found] == [row[2:] for row in expected]


@pytest.mark.spark
def test_earthquakes_are_counted_by_region_and_magnitude(spark: Any, example: SimpleNamespace) -> None:
    """The region with most comes first; an explosion is no earthquake."""
    rows = [
        ("a, Alaska", 1.5, "earthquake"),
        ("b, CA", 1.2, "earthquake"),
        ("c, California", 1.9, "earthquake"),
        ("d, CA", 5.1, "earthquake"),
        ("e, CA", 1.1, "quarry blast"),
    ]
    regions = example.tables.earthquakes_by_region(
        spark.createDataFrame(rows, "place STRING, magnitude DOUBLE, kind STRING")
    )
    assert [(each.name, each.counts) for each in regions] == [
        ("California", (0, 2, 0, 0, 0, 1)),
        ("Alaska", (0, 1, 0, 0, 0, 0)),
    ]


@pytest.mark.spark
def test_routes_are_ordered_by_mean_delay_and_need_flights_enough(spark: Any, example: SimpleNamespace) -> None:
    """Mean, median and the ninth decile of 0, 1, ..., 40 and of 26 times 30, by hand; 24 flights are too few."""
    rows = [("SEA", "SFO", delay) for delay in range(41)]
    rows += [("DFW", "ATL", 30)] * 26 + [("ORD", "BOS", 500)] * 24
    routes = example.tables.routes_by_delay(
        spark.createDataFrame(rows, "origin STRING, destination STRING, delay_minutes INT")
    )
    assert [(each.name, each.flight_count, each.mean, each.median, each.p90) for each in routes] == [
        ("DFW → ATL", 26, 30.0, 30.0, 30.0),
        ("SEA → SFO", 41, 20.0, 20.0, 36.0),
    ]
