"""``holdfast groups`` and ``holdfast tail``: groups moved from the shell, and the log shown without one."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import click
import pytest

from holdfast import PersistentQueue
from holdfast.cli.starts import StartType
from holdfast.persistence.format.constants import FRAMES_START
from support.processes.cli import command, done, run

COUNT = 40


@pytest.fixture(params=[True, False], ids=["shared", "closed"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A queue whose default group has taken all, but a group keeps it; open beside the commands, or not."""
    with PersistentQueue(tmp_path / "orders", data_file_bytes=16 * 2**10) as queue:
        queue.groups.create("keeps")
        for number in range(COUNT):
            queue.put(b"%06d" % number + bytes(994), headers={"n": str(number)})
        while queue.stats().depth:
            queue.get_many(100)
        if request.param:
            yield queue.path
            return
    yield queue.path


def depths(path: Path) -> dict[str, int]:
    """Return the depth of each group."""
    return {each["group"]: each["depth"] for each in done("groups", "list", path, "--json").documents}


@pytest.mark.extra("filter")
def test_a_group_is_made_with_a_filter(path: Path) -> None:
    """It gets what matches; an expression that cannot be one is refused in one line."""
    done("groups", "create", path, "some", "--filter", "headers.n in ['3', '33']")
    with PersistentQueue(path, group="some") as queue:
        assert [each.offset for each in queue.receive_many(9, timeout=5)] == [3, 33]
    refused = run("groups", "create", path, "other", "--filter", "headers.n ==")
    assert refused.code != 0
    assert "other" not in depths(path)


def test_groups_are_listed_made_moved_and_deleted(path: Path) -> None:
    """Each command says what it did, for people and for programs."""
    assert depths(path) == {"default": 0, "keeps": COUNT}
    shown = done("groups", "list", path).text.splitlines()
    assert shown[0].split() == ["GROUP", "DEPTH", "IN", "HAND", "DELAYED", "DEAD", "PAUSED"]
    assert shown[2].split() == ["keeps", str(COUNT), "0", "0", "0", "-"]
    assert done("groups", "create", path, "audit", "--from", "-3").text == "group audit starts at offset 37\n"
    assert done("groups", "create", path, "audit", "--json").document == {"group": "audit", "offset": 37}
    assert done("groups", "seek", path, "default", "--from", "30").text == "group default continues at offset 30\n"
    moved = done("groups", "seek", path, "audit", "--from", "7d", "--json").document
    assert moved == {"group": "audit", "offset": 0, "is_complete": True}
    assert depths(path) == {"audit": COUNT, "default": 10, "keeps": COUNT}
    assert done("groups", "delete", path, "audit", "--yes").text == "group audit is deleted\n"
    assert done("groups", "delete", path, "keeps", "--yes", "--json").document == {"group": "keeps"}
    assert depths(path) == {"default": 10}


def test_a_group_is_deleted_only_if_somebody_says_yes(path: Path) -> None:
    """No answer is a no."""
    for answer in (b"", b"no\n"):
        ran = run("groups", "delete", path, "keeps", stdin=answer)
        assert ran.code == 1
        assert "delete group keeps of" in ran.err
        assert "nothing was deleted" in ran.err
    assert run("groups", "delete", path, "keeps", stdin=b"y\n").code == 0
    assert depths(path) == {"default": 0}


def test_a_group_that_cannot_be_read_is_listed_with_its_error(path: Path) -> None:
    """Its row says why, and so do the exit code and a line behind the table."""
    done("groups", "create", path, "audit")
    with PersistentQueue(path, group="audit") as queue:
        queue.get()
    for positions in (path / "groups" / "audit").glob("*.position"):
        with positions.open("r+b") as file:
            for at in (10, 4106):  # the features in both copies of its header
                file.seek(at)
                file.write(b"\xff" * 20)
    ran = run("groups", "list", path, "--json")
    rows = {each["group"]: each for each in ran.documents}
    audit = rows["audit"]
    assert (ran.code, ran.err, sorted(rows)) == (1, "", ["audit", "default", "keeps"])
    assert (audit["error"], rows["keeps"]["error"], rows["keeps"]["depth"]) == ("unsupported_version", None, COUNT)
    shown = run("groups", "list", path)
    assert (shown.code, shown.err) == (1, f"error: {audit['message']}\n")
    assert shown.text.splitlines()[1].split()[0] == "audit"


def test_a_log_that_is_not_kept_so_far_back_is_told(path: Path) -> None:
    """The group continues at what is there."""
    done("groups", "delete", path, "keeps", "--yes")
    done("groups", "seek", path, "default", "--from", "latest")
    moved = done("groups", "seek", path, "default", "--from", "0")
    assert "; the log is not kept back to there" in moved.text
    assert int(moved.text.split("offset ")[1].split(";")[0]) > 0


def test_a_start_that_is_none_is_wrong_usage(path: Path) -> None:
    """The error says what there is; one behind the log fails."""
    ran = run("groups", "seek", path, "default", "--from", "yesterday")
    assert ran.code == 64
    assert "'yesterday' is no start: earliest, latest" in ran.err
    assert run("groups", "seek", path, "default").code == 64
    ran = run("groups", "seek", path, "default", "--from", "41")
    assert ran.code == 1
    assert "the log ends at offset 40" in ran.err
    assert run("groups", "seek", path, "nightly", "--from", "0").code == 1


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("12", 12),
        ("-12", -12),
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("2026-05-04T12:30", datetime(2026, 5, 4, 12, 30).astimezone()),  # of this machine's zone
        ("2026-05-04 12:30:15+02:00", datetime.fromisoformat("2026-05-04T10:30:15+00:00")),
        ("2026-05-04", datetime(2026, 5, 4).astimezone()),
    ],
)
def test_each_form_of_a_start_is_read(text: str, start: object) -> None:
    """As groups.create takes it."""
    assert StartType().convert(text, None, None) == start


@pytest.mark.parametrize("text", ["", "7 days", "1w", "1.5", "0001-01-01", "--"])
def test_what_is_no_start_is_refused(text: str) -> None:
    """With all forms."""
    with pytest.raises(click.BadParameter, match="no start: earliest, latest, an offset"):
        StartType().convert(text, None, None)


# -- tail --------------------------------------------------------------------------------------------------------------


def test_tail_shows_the_last_messages_of_the_log(path: Path) -> None:
    """Ten, or from where it is told; finished ones too."""
    shown = done("tail", path).text.splitlines()
    assert [int(line.split()[0]) for line in shown] == list(range(30, 40))
    assert "n=30" in shown[0]
    assert "000030" in shown[0]
    messages = done("tail", path, "--from", "5", "--to", "8", "--json").documents
    assert [message["offset"] for message in messages] == [5, 6, 7]
    assert messages[0].keys() == {"offset", "timestamp_ns", "headers", "payload_text"}
    assert depths(path) == {"default": 0, "keeps": COUNT}


@pytest.mark.extra("filter")
def test_tail_shows_what_matches(path: Path) -> None:
    """By an expression over headers."""
    found = done("tail", path, "--from", "0", "--filter", "headers.n in ['3', '33']", "--json").documents
    assert [message["offset"] for message in found] == [3, 33]


def test_tail_names_what_is_not_there(path: Path) -> None:
    """On standard error, so that the output is messages only."""
    done("groups", "delete", path, "keeps", "--yes")
    done("groups", "seek", path, "default", "--from", "latest")
    ran = run("tail", path, "--from", "0", "--json")
    assert ran.code == 0
    assert ran.err.startswith("offsets 0 to ")
    assert "not there any more" in ran.err
    assert ran.documents[-1]["offset"] == 39


def test_tail_passes_damage_and_tells_it(path: Path) -> None:
    """At the end, by its exit code too."""
    first = sorted((path / "data").iterdir())[0]
    with first.open("r+b") as file:
        file.seek(FRAMES_START + 500)
        file.write(b"\xff" * 4)
    ran = run("tail", path, "--from", "0", "--json")
    assert ran.code == 2
    assert [message["offset"] for message in ran.documents] == list(range(1, COUNT))
    assert "holdfast verify" in ran.err


def test_tail_follows_what_is_put(tmp_path: Path) -> None:
    """Message by message, until nothing comes."""
    with PersistentQueue(tmp_path / "orders") as queue:
        queue.put(b"first")
        arguments = command("tail", queue.path, "--from", "earliest", "-f", "--timeout", "2", "--json")
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["payload_text"] == "first"
            time.sleep(0.1)
            queue.put(b"second")
            assert json.loads(tail.stdout.readline())["offset"] == 1
            assert tail.stdout.read() == ""
            assert tail.wait(30) == 0
