"""``holdfast ls`` and ``holdfast stats``."""

import json
import os
import time
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.persistence.filesystem.storage import OsStorage
from support.builders.clocks import NS_PER_SECOND, FakeClock
from support.processes.cli import done, run

FIGURES = {"name", "path", "error", "message", "depth", "dead", "in_doubt", "bytes_on_disk", "file_count"} | {
    "oldest_age_seconds",
    "clock_back_seconds",
    "paused",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two queues beside something else."""
    with PersistentQueue(tmp_path / "mail", mode="exclusive", max_deliveries=1) as mail:
        mail.put_many([b"bad", b"good", b"held"])
        mail.receive().nack()
        mail.pause(reason="moves [bold]")
        transaction = mail.begin()
        transaction.put(b"perhaps")
        transaction.prepare("t")
    PersistentQueue(tmp_path / "orders", mode="exclusive").close()
    (tmp_path / "catalog.db").touch()
    (tmp_path / "reports").mkdir()
    return tmp_path


def test_ls_lists_the_queues_below_a_directory(directory: Path) -> None:
    """With their figures; what is no queue is left out."""
    mail, orders = done("ls", directory, "--json").document
    assert set(mail) == FIGURES
    assert (mail["name"], mail["path"], mail["error"]) == ("mail", str(directory / "mail"), None)
    assert (mail["depth"], mail["dead"], mail["in_doubt"], mail["paused"]) == (2, 1, 1, "moves [bold]")
    assert mail["bytes_on_disk"] > 0
    assert mail["file_count"] == 1
    assert mail["oldest_age_seconds"] > 0
    assert (orders["name"], orders["depth"], orders["oldest_age_seconds"]) == ("orders", 0, None)
    shown = done("ls", directory).text.splitlines()
    assert shown[0].split() == ["NAME", "DEPTH", "DEAD", "IN", "DOUBT", "SIZE", "FILES", "OLDEST", "PAUSED"]
    assert [line.split()[:4] for line in shown[1:]] == [["mail", "2", "1", "1"], ["orders", "0", "0", "0"]]
    assert shown[1].endswith("moves [bold]")


def test_ls_takes_one_queue_and_the_directory_it_stands_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument it is the working directory, which may be a queue."""
    assert [row["name"] for row in done("ls", directory / "mail", "--json").document] == ["mail"]
    monkeypatch.chdir(directory)
    assert [row["name"] for row in done("ls", "--json").document] == ["mail", "orders"]
    monkeypatch.chdir(directory / "orders")
    assert [row["name"] for row in done("ls", "--json").document] == ["orders"]


def test_ls_of_a_directory_without_queues_is_empty(tmp_path: Path) -> None:
    """That is no error; a directory that is not there is one."""
    assert done("ls", tmp_path, "--json").document == []
    assert done("ls", tmp_path).text == f"no queues in {tmp_path}\n"
    assert run("ls", tmp_path / "nowhere").code == 1


def test_ls_shows_no_queue_that_was_deleted(directory: Path) -> None:
    """It has a hidden name until its files are gone."""
    (directory / "orders").rename(directory / ".orders.removed")
    assert [each["name"] for each in done("ls", directory, "--json").documents[0]] == ["mail"]


def test_ls_passes_by_what_this_user_may_not_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the directory of lost files that a file system has."""
    list_names = OsStorage.list

    def refuse(storage: OsStorage, path: Path) -> list[str]:
        if path.name == "lost+found":
            raise PermissionError(path)
        return list_names(storage, path)

    (directory / "lost+found").mkdir()
    monkeypatch.setattr(OsStorage, "list", refuse)
    assert len(done("ls", directory, "--json").document) == 2


def test_ls_shows_the_others_beside_a_queue_that_cannot_be_opened(directory: Path) -> None:
    """Its row says why, and the exit code is 2 where that is damage."""
    (directory / "orders" / "queue.json").write_text("rot")
    (directory / "orders" / "write.mark").unlink()
    ran = run("ls", directory, "--json")
    mail, orders = ran.document
    assert (mail["depth"], mail["error"]) == (2, None)
    assert orders["error"] == "corruption"
    assert "depth" not in orders
    assert (ran.code, ran.err) == (2, "")
    shown = run("ls", directory)
    assert shown.code == 2
    assert shown.err == f"error: {orders['message']}\n"
    assert shown.text.splitlines()[2].split()[:3] == ["orders", "?", "?"]


def test_a_queue_that_has_lost_its_identity_is_no_missing_one(directory: Path) -> None:
    """Every command says what to do, and none makes another queue in its place; what it says works."""
    mail = directory / "mail"
    (mail / "queue.json").unlink()
    for words in (["ls", directory], ["ls", mail], ["stats", mail], ["verify", mail], ["put", mail, "x", "--create"]):
        ran = run(*words)
        assert (ran.code, f"`holdfast set {mail} --rebuilt`" in ran.err) == (2, True)
    assert not (mail / "queue.json").exists()
    assert done("set", mail, "--rebuilt", "maxsize=9")
    assert done("stats", mail, "--json").document["depth"] == 2
    assert done("ls", mail, "--json").document[0]["error"] is None


def test_stats_shows_the_figures_of_a_queue(directory: Path) -> None:
    """Those that can be known from outside, and who was there last."""
    told = done("stats", directory / "mail", "--json").document
    assert set(told) == FIGURES - {"error", "message"} | {"group", "leased", "lost", "first_offset", "next_offset"} | {
        "last_writer",
        "last_reader",
        "skipped",
        "oldest_prepared_seconds",
    }
    assert (told["skipped"], told["oldest_prepared_seconds"]) == (0, None)
    assert (told["depth"], told["dead"], told["in_doubt"], told["leased"], told["lost"]) == (2, 1, 1, 0, 0)
    assert (told["first_offset"], told["next_offset"]) == (0, 3)
    assert told["last_writer"]["pid"] == told["last_reader"]["pid"] == os.getpid()
    shown = done("stats", directory / "mail").text
    assert f"process {os.getpid()} on " in shown
    assert "moves [bold]" in shown


def test_stats_are_those_of_a_group(directory: Path) -> None:
    """What is in a consumer's hands is leased."""
    with PersistentQueue(directory / "orders", mode="exclusive") as queue:
        queue.groups.create("audit")
        queue.put_many([b"one", b"two"])
        queue.receive()
        told = done("stats", directory / "orders", "--json").document
        assert (told["depth"], told["leased"]) == (2, 1)
        told = done("stats", directory / "orders", "--group", "audit", "--json").document
        assert (told["depth"], told["leased"], told["last_reader"]) == (2, 0, None)
    ran = run("stats", directory / "orders", "--group", "nobody", "--json")
    assert (ran.code, json.loads(ran.err)["error"]) == (1, "group_not_found")


def test_of_a_message_that_was_put_by_a_clock_since_set_back_the_age_is_not_known(tmp_path: Path) -> None:
    """A process that has just begun knows no more than that; how far the clock was set back it says."""
    ahead = FakeClock(time.time_ns() + 3600 * NS_PER_SECOND)
    with PersistentQueue(tmp_path / "orders", mode="exclusive", clock=ahead) as queue:
        queue.put(b"waits")
    assert done("ls", tmp_path).text.splitlines()[1].split()[-2:] == ["?", "-"]
    (row,) = done("ls", tmp_path, "--json").document
    assert 3000 < row["clock_back_seconds"] <= 3600
    assert row["oldest_age_seconds"] < 600
    figures = dict(line.rsplit(maxsplit=1) for line in done("stats", tmp_path / "orders").text.splitlines())
    assert figures["oldest age"] == "?"
