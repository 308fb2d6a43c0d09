"""``holdfast.toml``: what is set for which queue, and what a mistake says."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Backoff, ConfigError, FlushPolicy, PersistentQueue
from holdfast.service.configuration.config import load_config
from holdfast.service.configuration.options import OPTIONS

EVERYTHING = """\
[defaults]
flush = { commits = 100, seconds = 0.5 }
data_file_bytes = 1_048_576
lease_seconds = 60

[queues.orders]
flush = "every_commit"
record_bytes_max = 1000
maxsize = 10
max_bytes = 4194304
dedup_window = 60
dedup_max = 50
max_deliveries = "none"
backoff = [1, 2.5]
dead_letter_seconds = 3600
expired = "dead"
retain_age = 604800
retain_bytes = "none"
retain_messages = 1000
data_file_max_age = 3600
min_free_bytes = 1000000
compact_ratio = 2.5
max_lag_age = "none"
max_lag_bytes = 5000000
lock_timeout = 5
any_file_system = true
compress_bytes = 2000
also_read = ["../node7/orders", "/mnt/node8/orders"]

[queues."eu.invoices"]
backoff.base = 2
backoff.jitter = false
flush = "never"
max_bytes = "none"
"""


def written(directory: Path, text: str) -> Path:
    """Write ``holdfast.toml`` and return its directory."""
    (directory / "holdfast.toml").write_text(text)
    return directory


def error_of(directory: Path, text: str) -> ConfigError:
    """Return what reading a ``holdfast.toml`` with a mistake raises; its text is without the path."""
    with pytest.raises(ConfigError) as caught:
        load_config(written(directory, text), {})
    assert caught.value.path == str(directory / "holdfast.toml")
    assert str(caught.value).startswith(f"{directory / 'holdfast.toml'}, line {caught.value.line}: ")
    return caught.value


def test_without_a_file_and_variables_nothing_is_set(tmp_path: Path) -> None:
    """What is built in counts then."""
    assert load_config(tmp_path, {}).options("orders") == {}


def test_every_option_is_read_as_the_queue_takes_it(tmp_path: Path) -> None:
    """Objects are made, paths are seen from the service's directory, and defaults stand behind."""
    config = load_config(written(tmp_path, EVERYTHING), {})
    orders = config.options("orders")
    assert orders == {
        "flush": FlushPolicy.every_commit(),
        "data_file_bytes": 2**20,
        "record_bytes_max": 1000,
        "maxsize": 10,
        "max_bytes": 4 * 2**20,
        "dedup_window": 60,
        "dedup_max": 50,
        "max_deliveries": None,
        "backoff": (1, 2.5),
        "lease_seconds": 60,
        "dead_letter_seconds": 3600,
        "expired": "dead",
        "retain_age": 604800,
        "retain_bytes": None,
        "retain_messages": 1000,
        "data_file_max_age": 3600,
        "min_free_bytes": 10**6,
        "compact_ratio": 2.5,
        "max_lag_age": None,
        "max_lag_bytes": 5 * 10**6,
        "lock_timeout": 5,
        "any_file_system": True,
        "compress_bytes": 2000,
        "also_read": (tmp_path / "../node7/orders", Path("/mnt/node8/orders")),
    }
    assert orders.keys() == OPTIONS, "the test has an option too few"
    assert config.options("eu.invoices") == {
        "flush": FlushPolicy.never(),
        "data_file_bytes": 2**20,
        "lease_seconds": 60,
        "max_bytes": None,
        "backoff": Backoff(base=2, jitter=False),
    }
    assert config.options("others") == {
        "flush": FlushPolicy.every(commits=100, seconds=0.5),
        "data_file_bytes": 2**20,
        "lease_seconds": 60,
    }


def test_a_queue_opens_with_what_is_set(tmp_path: Path) -> None:
    """The names and values are those of ``PersistentQueue``."""
    options = load_config(written(tmp_path, EVERYTHING), {}).options("orders")
    queues_own = {name: value for name, value in options.items() if name not in ("compress_bytes", "also_read")}
    with PersistentQueue(tmp_path / "orders", mode="exclusive", **queues_own) as queue:
        queue.put(b"x")
        assert queue.get() == b"x"


def test_the_nearest_setting_counts(tmp_path: Path) -> None:
    """Argument, variable for the queue, variable for all, the queue's table, the defaults: in this order."""
    text = "[defaults]\nlease_seconds = 1\n[queues.orders]\nlease_seconds = 2\n"
    layers: list[tuple[str, dict[str, str]]] = [
        ("[defaults]\nlease_seconds = 1\n", {}),
        (text, {}),
        (text, {"HOLDFAST_LEASE_SECONDS": "3"}),
        (text, {"HOLDFAST_LEASE_SECONDS": "3", "HOLDFAST_ORDERS__LEASE_SECONDS": "4"}),
    ]
    found = [load_config(written(tmp_path, text), variables).options("orders") for text, variables in layers]
    assert [options["lease_seconds"] for options in found] == [1, 2, 3, 4]
    config = load_config(tmp_path, layers[-1][1])
    assert config.options("orders", {"lease_seconds": 5})["lease_seconds"] == 5
    assert config.options("invoices")["lease_seconds"] == 3


def test_an_error_names_file_line_and_key(tmp_path: Path) -> None:
    """In the text, for people, and as attributes, for tools."""
    text = "# for the night shift\n\n[defaults]\nmaxsize = 5\n\n[queues.orders]\nlease_seconds = 'soon'\n"
    error = error_of(tmp_path, text)
    place = f"{tmp_path / 'holdfast.toml'}, line 7: "
    assert str(error) == f'{place}queues.orders.lease_seconds is a number of seconds above 0, not "soon"'
    assert (error.line, error.key) == (7, "queues.orders.lease_seconds")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[queues.a]\nlease_seconds = 0", 2, "queues.a.lease_seconds is a number of seconds above 0, not 0.0"),
        ("[queues.a]\nlease_seconds = nan", 2, "queues.a.lease_seconds is a number of seconds above 0, not nan"),
        ("[queues.a]\nlock_timeout = true", 2, "queues.a.lock_timeout is a number of seconds from 0 on, not true"),
        ("[queues.a]\nlock_timeout = -1", 2, "queues.a.lock_timeout is at least 0 seconds, not -1.0"),
        ("[queues.a]\ndedup_window = -1", 2, "queues.a.dedup_window takes seconds from 0 on, not -1.0"),
        ("[queues.a]\ndedup_max = 0", 2, "queues.a.dedup_max is from 1 to 10000000, not 0"),
        ("[queues.a]\nmaxsize = 1.5", 2, "queues.a.maxsize is 0 for no bound, or a number of messages, not 1.5"),
        ("[queues.a]\nmaxsize = -1", 2, "queues.a.maxsize is 0 for no bound, or a number of messages, not -1"),
        ("[queues.a]\ndata_file_bytes = 5", 2, "queues.a.data_file_bytes is from 16384 to 4294967295, not 5"),
        ("[queues.a]\nmax_bytes = 'all'", 2, 'queues.a.max_bytes is a number of bytes, or "none", not "all"'),
        (
            "[queues.a]\nmax_deliveries = 0",
            2,
            'queues.a.max_deliveries is a number from 1 on, or "none" for no bound; not 0',
        ),
        ("[queues.a]\nexpired = 'gone'", 2, 'queues.a.expired is "drop" or "dead", not \'gone\''),
        (
            "[queues.a]\nflush = 'often'",
            2,
            'queues.a.flush is "every_commit", "never", or a table such as {commits = 1000, seconds = 0.05}, '
            'not "often"',
        ),
        (
            "[queues.a.flush]\nseconds = 1\ncommits = 'x'",
            3,
            'queues.a.flush.commits is a number of commits from 1 on, not "x"',
        ),
        ("[queues.a]\nflush = {commit = 1}", 2, "queues.a.flush.commit is no key of this table; did you mean commits?"),
        (
            "[queues.a]\nflush = {commits = 0}",
            2,
            "queues.a.flush: every() takes at least 1 commit and more than 0 seconds, not 0 and 0.05",
        ),
        ("[queues.a]\nbackoff = [1, true]", 2, "queues.a.backoff is a list of seconds from 0 on, not true"),
        ("[queues.a]\nbackoff = [\n1,\n-1,\n]", 2, "queues.a.backoff takes seconds from 0 on, not [1.0, -1.0]"),
        (
            "[queues.a]\nbackoff = {base = 5, cap = 1}",
            2,
            "queues.a.backoff: Backoff takes 0 <= base <= cap, in seconds; not base=5, cap=1",
        ),
        ("[queues.a]\nbackoff.jitter = 1", 2, "queues.a.backoff.jitter is true or false, not 1"),
        ("[queues.a]\ncompress_bytes = 0", 2, "queues.a.compress_bytes is a number of bytes from 1 on, not 0"),
        ("[queues.a]\nalso_read = 'x'", 2, 'queues.a.also_read is a list of paths of queue directories, not "x"'),
        ("[queues.a]\nalso_read = ['']", 2, 'queues.a.also_read is a list of paths of queue directories, not [""]'),
    ],
)
def test_a_value_that_cannot_be_says_what_can(tmp_path: Path, text: str, line: int, message: str) -> None:
    """With the bounds that the queue itself has."""
    error = error_of(tmp_path, text)
    assert str(error).partition(": ")[2] == message
    assert error.line == line


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[defaults]\nlease_second = 5", 2, "defaults.lease_second is no option; did you mean lease_seconds?"),
        ("\n[queue.orders]\nmaxsize = 5", 2, "queue is no table of this file; did you mean queues?"),
        ("[defaults]\nmaxsize = 5\n[orders]", 3, "orders is no table of this file; there are defaults, queues"),
        ("defaults = 5", 1, "defaults is a table: [defaults], not 5"),
        ("queues = []", 1, "queues is a table: [queues], not []"),
        ("[queues]\norders = 5", 2, "queues.orders is a table: [queues.orders], not 5"),
        (
            "[defaults]\nalso_read = ['x']",
            2,
            "defaults.also_read is for one queue: set it in [queues.<name>]",
        ),
        (
            "[queues.orders]\nmode = 'exclusive'",
            2,
            "queues.orders.mode is set by the program, in service.queue(); it cannot be configured",
        ),
        (
            "[queues.orders]\nallow_pickle = true",
            2,
            "queues.orders.allow_pickle is set by the program, in service.queue(); it cannot be configured",
        ),
        ("[defaults]\nany_file_system = 1", 2, "defaults.any_file_system is true or false, not 1"),
        (
            "[queues.eu.orders]\nmaxsize = 5",
            1,
            'queues.eu.orders is no option; the name of a queue with a dot is quoted: [queues."eu.orders"]',
        ),
        (
            '\n[queues.".orders"]',
            2,
            "queues.\".orders\": '.orders' cannot name a queue: use 1 to 100 of the characters A-Z a-z 0-9 . _ - "
            "without a leading dot",
        ),
        (
            "[queues.'catalog.db']",
            1,
            "queues.\"catalog.db\": 'catalog.db' cannot name a queue: the service keeps a file of its own there; "
            "choose another",
        ),
    ],
)
def test_a_key_that_is_not_known_says_which_was_meant(tmp_path: Path, text: str, line: int, message: str) -> None:
    """A misspelt option must not be passed over: it would be found when it is needed."""
    error = error_of(tmp_path, text)
    assert str(error).split(": ", 1)[1] == message
    assert error.line == line


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"[defaults]\nmaxsize 5\n", 2, "no valid TOML: Expected '=' after a key in a key/value pair"),
        (b"[defaults]\nmaxsize = 5\nmaxsize = 6\n", 3, "no valid TOML: Cannot overwrite a value"),
        (b"[defaults]\n\nbackoff = [1,\n", 3, "no valid TOML: Invalid value"),
        (b"[defaults]\r\n# f\xfcr\r\n", 2, "not UTF-8, which TOML has to be"),
    ],
)
def test_a_file_that_is_no_toml_names_the_line(tmp_path: Path, data: bytes, line: int, message: str) -> None:
    """Syntax errors too."""
    (tmp_path / "holdfast.toml").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path, {})
    assert str(caught.value) == f"{tmp_path / 'holdfast.toml'}, line {line}: {message}"
    assert (caught.value.line, caught.value.key) == (line, None)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Settings must not be gone without a word."""
    (tmp_path / "holdfast.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, {})


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [_fifo, _device, _link_to_a_fifo, _link_to_itself])
def test_what_is_no_file_is_an_error_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A FIFO that nobody writes into would hang the start for ever, and a device never ends."""
    make(tmp_path / "holdfast.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, {})


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    """That is how clusters hand settings to a program."""
    written(tmp_path, "[queues.orders]\nmaxsize = 5\n")
    (tmp_path / "holdfast.toml").rename(tmp_path / "mounted")
    (tmp_path / "holdfast.toml").symlink_to("mounted")
    assert load_config(tmp_path, {}).options("orders") == {"maxsize": 5}


@pytest.mark.parametrize("name", ["catalog.db", "Catalog.DB", "catalog.db-wal", "holdfast.toml", "a/b", "..", ""])
def test_options_of_what_cannot_be_a_queue_are_refused(tmp_path: Path, name: str) -> None:
    """Names of the service's own files among them."""
    with pytest.raises(ConfigError, match="cannot name a queue"):
        load_config(tmp_path, {}).options(name)


# -- Lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("queues.orders.maxsize = -1", 1),
        ("queues = { orders = { maxsize = -1 } }", 1),
        ("[queues]\norders.maxsize = -1", 2),
        ('["queues"]\n"orders" . \'maxsize\' = -1', 2),
        ("[queues.orders]\n# maxsize = 1\nexpired = 'drop' # maxsize = 2\n\n\nmaxsize = -1\n", 6),
        ("[queues.others]\nmaxsize = 5\n[queues.orders]\nmaxsize = -1\n[defaults]\nmaxsize = 5\n", 4),
        ("[queues.orders]\nbackoff = [\n  1, # maxsize = 3\n\n  2,\n]\nmaxsize = -1", 7),
        ("[queues.orders]\r\n\r\nmaxsize = -1\r\n", 3),
    ],
)
def test_the_line_is_that_of_the_key_however_it_is_written(tmp_path: Path, text: str, line: int) -> None:
    """Dotted, quoted, in an inline table, behind comments that look alike, behind values of several lines."""
    (tmp_path / "holdfast.toml").write_bytes(text.encode())
    with pytest.raises(ConfigError, match=r"queues\.orders\.maxsize is 0 for no bound") as caught:
        load_config(tmp_path, {})
    assert caught.value.line == line


# -- Environment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "text", "options"),
    [
        ("HOLDFAST_FLUSH", "never", {"flush": FlushPolicy.never()}),
        ("HOLDFAST_FLUSH", '"never"', {"flush": FlushPolicy.never()}),
        ("HOLDFAST_FLUSH", "{seconds = 2}", {"flush": FlushPolicy.every(seconds=2)}),
        ("HOLDFAST_MAX_DELIVERIES", "none", {"max_deliveries": None}),
        ("HOLDFAST_BACKOFF", "[]", {"backoff": ()}),
        ("HOLDFAST_EU_ORDERS_2__EXPIRED", "dead", {"expired": "dead"}),
        ("HOLDFAST_EU_ORDERS_2__LOCK_TIMEOUT", "1e1", {"lock_timeout": 10}),
        ("HOLDFAST_INVOICES__LOCK_TIMEOUT", "1", {}),
        ("HOLDFAST_TEST_KILL_ROUNDS", "soon", {}),
        ("HOLD", "x", {}),
    ],
)
def test_variables_are_toml_values_or_words(tmp_path: Path, variable: str, text: str, options: dict[str, Any]) -> None:
    """For all queues or for one, whose name is written in capitals and underscores."""
    assert load_config(tmp_path, {variable: text}).options("eu.orders-2") == options


def test_a_queue_called_test_can_be_configured_too(tmp_path: Path) -> None:
    """Only what is no option of a queue is left to the tests."""
    assert load_config(tmp_path, {"HOLDFAST_TEST__MAXSIZE": "5"}).options("test") == {"maxsize": 5}


def test_paths_in_variables_are_seen_from_the_services_directory(tmp_path: Path) -> None:
    """As in the file."""
    config = load_config(tmp_path, {"HOLDFAST_ORDERS__ALSO_READ": '["../node7/orders"]'})
    assert config.options("orders") == {"also_read": (tmp_path / "../node7/orders",)}


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        (
            "HOLDFAST_MAXSIZ",
            "5",
            "HOLDFAST_MAXSIZ in the environment means nothing to Holdfast; did you mean HOLDFAST_MAXSIZE?",
        ),
        (
            "HOLDFAST_ORDERS__LEASE_SECOND",
            "5",
            "HOLDFAST_ORDERS__LEASE_SECOND in the environment means nothing to Holdfast; did you mean "
            "HOLDFAST_ORDERS__LEASE_SECONDS?",
        ),
        (
            "HOLDFAST_maxsize",
            "5",
            "HOLDFAST_maxsize in the environment means nothing to Holdfast; did you mean HOLDFAST_MAXSIZE?",
        ),
        (
            "HOLDFAST_MODE",
            "read_only",
            "HOLDFAST_MODE in the environment is set by the program, in service.queue(); it cannot be configured",
        ),
        (
            "HOLDFAST_ALSO_READ",
            "[]",
            "HOLDFAST_ALSO_READ in the environment is for one queue: HOLDFAST_<QUEUE>__ALSO_READ",
        ),
        (
            "HOLDFAST_ORDERS__LEASE_SECONDS",
            "soon",
            'HOLDFAST_ORDERS__LEASE_SECONDS in the environment is a number of seconds above 0, not "soon"',
        ),
        (
            "HOLDFAST_FLUSH",
            "{commits = 'x'}",
            'HOLDFAST_FLUSH.commits in the environment is a number of commits from 1 on, not "x"',
        ),
        (
            "HOLDFAST_FLUSH",
            "",
            "HOLDFAST_FLUSH in the environment holds '', which is not a value of TOML; quote texts, or unset it",
        ),
        (
            "HOLDFAST_MAXSIZE",
            "5\nlease_seconds = 3",
            "HOLDFAST_MAXSIZE in the environment holds '5\\nlease_seconds = 3', which is not a value of TOML; "
            "quote texts, or unset it",
        ),
    ],
)
def test_a_variable_with_a_mistake_is_named(tmp_path: Path, variable: str, text: str, message: str) -> None:
    """One that says nothing to us is a mistake too: somebody thinks that it does something."""
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path, {variable: text})
    assert str(caught.value) == message
    assert (caught.value.path, caught.value.line) == (None, None)
    assert caught.value.key.startswith(variable)


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000])
def test_what_is_too_much_for_the_parser_is_a_mistake_like_others(tmp_path: Path, value: str) -> None:
    """Brackets without end, a number of thousands of digits: no error but ours, and a short one."""
    with pytest.raises(ConfigError, match="not a value of TOML") as found:
        load_config(tmp_path, {"HOLDFAST_MAXSIZE": value})
    assert len(str(found.value)) < 300
    (tmp_path / "holdfast.toml").write_text(f"[defaults]\nmaxsize = {value}\n")
    with pytest.raises(ConfigError, match="no TOML that can be read"):
        load_config(tmp_path, {})
