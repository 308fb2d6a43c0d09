"""``holdfast set``: the settings of a queue and a group, shown and changed."""

import logging
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import Backoff, ConfigError, CorruptionError, FlushPolicy, PersistentQueue
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.engine.configuring import configure_closed
from holdfast.queue.options.settings import DEFAULTS, GROUP_SETTINGS, checked
from support.processes.children import child
from support.processes.cli import done, run, run_alone
from support.processes.threads import wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with a default group that has begun, in a directory whose name a shell has to quote."""
    (tmp_path / "my data").mkdir()
    with PersistentQueue(tmp_path / "my data/orders", mode="exclusive", maxsize=7, backoff=[1, 2.5]) as queue:
        queue.put(b"x")
        queue.get()
    return tmp_path / "my data/orders"


def states(path: Path, *more: object) -> dict[str, tuple[Any, str, str | None]]:
    """Return value, state and group of each setting that is not the default."""
    return {
        each["name"]: (each["value"], each["state"], each["group"])
        for each in done("set", path, *more, "--json").document
        if each["state"] != "default"
    }


def lose(path: Path) -> None:
    """Damage a document, so that it is rebuilt without settings."""
    path.write_bytes(path.read_bytes().replace(b'"crc32c"', b'"crc32x"'))


def advised(error: Exception) -> list[str]:
    """Return the words of the command that an error prints, as a shell reads them."""
    found = re.search("`holdfast ([^`]+)`", str(error))
    assert found is not None
    return shlex.split(found[1])


def test_without_values_it_shows_all_settings(path: Path) -> None:
    """In columns: name, value, whether it was set, and whose it is."""
    lines = [re.split("  +", line) for line in done("set", path).text.splitlines()]
    assert lines[0] == ["SETTING", "VALUE", "STATE", "OF"]
    assert [line[0] for line in lines[1:]] == list(DEFAULTS)
    assert ["flush", "every_commit", "default", "queue"] in lines
    assert ["maxsize", "7", "set", "queue"] in lines
    assert ["max_bytes", "none", "default", "queue"] in lines
    assert ["backoff", "[1, 2.5]", "set", "group default"] in lines


def test_it_shows_the_settings_of_another_group(path: Path) -> None:
    """Each group has its own."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create("billing", lease_seconds=9)
    assert states(path, "--group", "billing") == {"maxsize": (7, "set", None), "lease_seconds": (9, "set", "billing")}
    ran = run("set", path, "--group", "nix")
    assert (ran.code, ran.out) == (1, b"")
    assert "no group 'nix'" in ran.err


def test_a_default_group_that_has_not_begun_gets_them_when_it_does(tmp_path: Path) -> None:
    """They wait in queue.json."""
    PersistentQueue(tmp_path / "orders", mode="exclusive", maxsize=3).close()
    shutil.rmtree(tmp_path / "orders/groups/default")
    assert states(tmp_path / "orders") == {"maxsize": (3, "set", None)}
    expected = {"maxsize": (3, "set", None), "lease_seconds": (5.0, "set", "default")}
    for more in ((), ("--rebuilt",)):
        assert done("set", tmp_path / "orders", "lease_seconds=5", *more)
        assert states(tmp_path / "orders") == expected
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put(b"x")
        queue.get()
    assert states(tmp_path / "orders") == expected
    assert done("set", tmp_path / "orders", "--rebuilt", "maxsize=4")
    assert states(tmp_path / "orders") == expected | {"maxsize": (4, "set", None)}


def test_values_are_those_of_toml_or_words(path: Path) -> None:
    """Tables and lists as in holdfast.toml; a word needs no quotes, and none cancels a bound."""
    changed = done(
        *("set", path, "flush={commits=10, seconds=0.5}", "expired=dead", "max_deliveries=none", "backoff=[3]"),
        *("max_bytes=10_737_418_240", "--json"),
    )
    assert {each["name"]: each["value"] for each in changed.document}["max_deliveries"] is None
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.settings["flush"] == FlushPolicy.every(commits=10, seconds=0.5)
        assert queue.settings["expired"] == "dead"
        assert queue.settings["max_deliveries"] is None
        assert queue.settings["backoff"] == (3,)
        assert queue.settings["max_bytes"] == 10 * 2**30
        assert queue.settings["maxsize"] == 7


def test_reset_gives_a_setting_its_default_again(path: Path) -> None:
    """It may be repeated, and be combined with values."""
    assert done("set", path, "dedup_max=5", "--reset", "maxsize", "--reset", "backoff")
    assert states(path) == {"dedup_max": (5, "set", None)}


def test_changes_are_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With all that was set, for the queue and for the group."""
    with caplog.at_level(logging.INFO, "holdfast"):
        configure_closed(OsStorage(), SystemClock(), path, {"maxsize": 3, "lease_seconds": 4.0})
    assert [each.getMessage() for each in caplog.records] == [
        f"{path}: its settings are {{'maxsize': 3}} from now on",
        f"{path}/groups/default: its settings are {{'backoff': [1.0, 2.5], 'lease_seconds': 4.0}} from now on",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["maxsiz=8"], "'maxsiz' is no setting; did you mean maxsize?"),
        (["--reset", "lease_second"], "'lease_second' is no setting; did you mean lease_seconds?"),
        (["maxsize"], "'maxsize' sets nothing: write maxsize=VALUE, or --reset maxsize"),
        (["maxsize="], "maxsize holds '', which is not a value of TOML; quote texts"),
        (["backoff=[1, 2"], "backoff holds '[1, 2', which is not a value of TOML; quote texts"),
        (["maxsize=x"], 'maxsize is 0 for no bound, or a number of messages, not "x"'),
        (["backoff={bas=4}"], "backoff.bas is no key of this table; did you mean base?"),
        (["maxsize=-1"], "maxsize is 0 for no bound, or a number of messages, not -1"),
        (["maxsize=1", "maxsize=2"], "maxsize is given twice: choose one value"),
        (["maxsize=1", "--reset", "maxsize"], "maxsize is to be set and to be reset: choose one of them"),
        (["max_bytes=5"], "max_bytes=5 leaves no room for two data files of 67108864 bytes"),
        (["--group", ".", "expired=dead"], "'.' cannot name a group"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(path: Path, arguments: list[str], message: str) -> None:
    """With the name of the setting, and what to do."""
    before = states(path)
    ran = run_alone("set", path, *arguments)
    assert (ran.code, ran.out) == (1, b"")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"error: {message}")
    assert states(path) == before


def test_an_open_queue_is_configured_by_its_owner(path: Path) -> None:
    """If one has it alone, the command says so, for the queue and for the group."""
    before = states(path)
    with child(lambda: own(path)) as process:
        wait_until((path.parent / "ready").exists)
        for argument, what in (("maxsize=9", "write side of"), ("lease_seconds=5", "group 'default' of")):
            ran = run_alone("set", path, argument)
            assert ran.code == 75
            (line,) = ran.err.splitlines()
            assert f"{what} {path} is owned by process {process.pid} on " in line
            assert line.endswith(
                ": open it with mode='shared' there; or call configure() in that process, or stop it first"
            )
        assert states(path) == before


def own(path: Path) -> None:
    """Have the queue alone, until this process is killed."""
    with PersistentQueue(path, mode="exclusive"):
        (path.parent / "ready").touch()
        signal.pause()


def test_what_the_configuration_has_chosen_is_changed_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner would change it back. A variable is of one process, and forbids nothing."""
    (path.parent / "holdfast.toml").write_text("[queues.orders]\nlease_seconds = 4\n[defaults]\nmaxsize = 3\n")
    monkeypatch.setenv("HOLDFAST_DEDUP_MAX", "5")
    for arguments, place in [
        (["lease_seconds=5"], "line 2: queues.orders.lease_seconds"),
        (["--reset", "maxsize"], "line 4: defaults.maxsize"),
    ]:
        ran = run("set", path, *arguments)
        assert ran.code == 1
        name = place.rpartition(".")[2]
        file = path.parent / "holdfast.toml"
        assert ran.err == f"error: {name} of {path} is set in {file}, {place}: change it there\n"
    assert done("set", path, "dedup_max=6")
    assert states(path)["dedup_max"] == (6, "set", None)


@pytest.mark.parametrize(
    ("group", "asked"),
    [
        ("default", {"maxsize": 8}),
        ("default", {"flush": FlushPolicy.every(commits=100)}),
        ("default", {"backoff": Backoff(jitter=False)}),
        ("default", {"backoff": [0.25, 1]}),
        ("billing", {"max_deliveries": None}),
        ("billing", {"expired": "dead"}),
        ("billing", {"dedup_window": 1e-05}),
    ],
)
def test_the_command_that_an_error_prints_makes_the_program_open(path: Path, group: str, asked: dict[str, Any]) -> None:
    """Copied into a shell as it is."""
    with PersistentQueue(path, mode="exclusive", dedup_window=60) as queue:
        queue.groups.create("billing", max_deliveries=2, expired="drop")
    with pytest.raises(ConfigError) as caught:
        PersistentQueue(path, mode="exclusive", group=group, **asked)
    assert run_alone(*advised(caught.value)).code == 0
    with PersistentQueue(path, mode="exclusive", group=group, **asked) as queue:
        assert {name: queue.settings[name] for name in asked} == checked(asked)  # type: ignore[literal-required]


@pytest.mark.parametrize("group", ["default", "billing"])
def test_settings_of_a_group_that_were_lost_are_set_anew(path: Path, group: str) -> None:
    """By the command that the error prints; the queue keeps its own."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create("billing", max_deliveries=2)
    with PersistentQueue(path, mode="exclusive", group="billing") as queue:
        assert queue.get() == b"x"
    lose(path / f"groups/{group}/group.json")
    ran = run("set", path, "--group", group, "--json")
    assert ran.code == 2
    lost = {each["name"]: each["value"] for each in ran.document if each["state"] == "lost"}
    assert lost == dict.fromkeys(GROUP_SETTINGS)
    with pytest.raises(CorruptionError) as caught:
        PersistentQueue(path, mode="exclusive", group=group)
    ran = run("set", path, "--group", group, "lease_seconds=5")
    assert (ran.code, ran.out) == (2, b"")
    assert advised(RuntimeError(ran.err)) == advised(caught.value)
    assert done(*advised(caught.value), "lease_seconds=5")
    assert states(path, "--group", group) == {"maxsize": (7, "set", None), "lease_seconds": (5, "set", group)}
    with PersistentQueue(path, mode="exclusive", group=group) as queue:
        assert queue.settings["lease_seconds"] == 5


def test_a_damaged_document_is_made_whole_with_the_settings_that_are_given(path: Path) -> None:
    """Before any handle has rebuilt it; the progress of the group stays."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"y")
    lose(path / "groups/default/group.json")
    assert done("set", path, "--rebuilt", "lease_seconds=5")
    assert states(path) == {"maxsize": (7, "set", None), "lease_seconds": (5, "set", "default")}
    with PersistentQueue(path, mode="exclusive") as queue:
        assert (queue.recovery.clean, queue.get(timeout=0)) == (True, b"y")


def test_a_setting_is_not_set_and_reset_at_once(path: Path) -> None:
    """By the command or by a program."""
    with pytest.raises(ConfigError, match="maxsize is to be set and to be reset: choose one of them"):
        configure_closed(OsStorage(), SystemClock(), path, {"maxsize": 3}, ["maxsize"])
    assert states(path)["maxsize"] == (7, "set", None)


def test_settings_of_a_queue_that_were_lost_are_set_anew(path: Path) -> None:
    """By the command that the error prints; the group keeps its own."""
    lose(path / "queue.json")
    ran = run("set", path)
    assert ran.code == 2
    assert re.search("^maxsize +- +lost +queue$", ran.text, re.MULTILINE)
    with pytest.raises(CorruptionError) as caught:
        PersistentQueue(path, mode="exclusive")
    assert run("set", path, "lease_seconds=5").code == 2
    assert done(*advised(caught.value), "dedup_max=9")
    assert states(path) == {"dedup_max": (9, "set", None), "backoff": ([1, 2.5], "set", "default")}
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.settings["dedup_max"] == 9


def test_a_path_without_a_queue_is_an_error(tmp_path: Path) -> None:
    """And nothing is made there."""
    assert run("set", tmp_path / "nix", "maxsize=1").code == 1
    assert not (tmp_path / "nix").exists()
