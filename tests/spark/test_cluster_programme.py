"""The programme of `make cluster`: what it puts, what it counts as wrong, and what it does where it cannot run."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

pytestmark = pytest.mark.usefixtures("arrow_packages")


def test_each_event_has_an_id_of_its_own() -> None:
    """The flights are there again and again, up to the number that was asked for."""
    from examples.spark.events import DATA, EARTHQUAKES, FLIGHTS

    from proof.cluster.__main__ import make_events

    events = make_events(50_000, DATA)
    assert sum(map(len, events.values())) == 50_000
    for stream in (EARTHQUAKES, FLIGHTS):
        assert len({each.id for each in events[stream]}) == len(events[stream])
    assert msgspec.structs.replace(events[FLIGHTS][20_000], id=0) == events[FLIGHTS][0]


def test_a_row_that_is_missing_or_there_twice_or_another_is_counted() -> None:
    """And only then is a place not right."""
    from examples.spark.events import DATA, FLIGHTS

    from proof.cluster.__main__ import Counted, make_events

    put = make_events(10_000, DATA)[FLIGHTS]
    assert Counted.of("here", put, reversed(put)).is_right
    altered = msgspec.structs.replace(put[3], origin="XXX")
    found = Counted.of("here", put, [*put[5:], put[6], put[6], *put[:3], altered])
    assert (found.lost, found.doubled, found.altered, found.is_right) == (1, 2, 1, False)


def test_without_root_the_programme_says_that_it_was_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no failure of `make matrix`."""
    from proof.cluster.__main__ import main

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 0
    assert "SKIPPED" in done.output


def test_the_way_to_what_a_worker_needs_is_found_where_it_is_closed(tmp_path: Path) -> None:
    """Python may be in the home of root, which others cannot enter."""
    from proof.cluster.machine import closed_above

    for name in ("home", "home/python", "home/python/bin"):
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)
    before = closed_above(tmp_path / "home" / "python" / "bin")
    (tmp_path / "home").chmod(0o700)
    assert closed_above(tmp_path / "home" / "python" / "bin") == (before or tmp_path / "home")
    (tmp_path / "home").chmod(0o755)
