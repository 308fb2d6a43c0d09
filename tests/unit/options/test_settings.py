"""The settings of a queue: their values, their bounds, and how documents have them."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Backoff, ConfigError, FlushPolicy, UnsupportedVersionError
from holdfast.queue.options.settings import (
    DEFAULTS,
    GROUP_SETTINGS,
    QUEUE_SETTINGS,
    check_names,
    checked,
    read_stored,
    retry_of,
    shown,
    stored,
)

EVERY = QUEUE_SETTINGS | GROUP_SETTINGS

VALUES: list[tuple[str, Any, Any]] = [
    ("flush", FlushPolicy.never(), "never"),
    ("flush", FlushPolicy.every_commit(), "every_commit"),
    ("flush", FlushPolicy.every(commits=10, seconds=0.5), {"commits": 10, "seconds": 0.5}),
    ("data_file_bytes", 2**20, 2**20),
    ("record_bytes_max", 1000, 1000),
    ("maxsize", 7, 7),
    ("max_bytes", 2**30, 2**30),
    ("max_bytes", None, None),
    ("dedup_window", 60.0, 60.0),
    ("dedup_max", 50, 50),
    ("max_deliveries", None, None),
    ("max_deliveries", 3, 3),
    ("backoff", Backoff(2, 600, jitter=False), {"base": 2, "cap": 600, "jitter": False}),
    ("backoff", (1.0, 10.0), [1.0, 10.0]),
    ("backoff", (), []),
    ("lease_seconds", 5.0, 5.0),
    ("dead_letter_seconds", 3600.0, 3600.0),
    ("expired", "dead", "dead"),
    ("retain_age", 60.0, 60.0),
    ("retain_age", None, None),
    ("retain_bytes", 10**9, 10**9),
    ("retain_messages", 1, 1),
    ("data_file_max_age", 3600.0, 3600.0),
    ("min_free_bytes", 2**30, 2**30),
    ("compact_ratio", 2, 2.0),
    ("compact_ratio", None, None),
    ("max_lag_age", 0.5, 0.5),
    ("max_lag_bytes", None, None),
]


@pytest.mark.parametrize(("name", "value", "document"), VALUES, ids=lambda each: str(each)[:30])
def test_a_document_gives_back_what_was_stored(name: str, value: object, document: object) -> None:
    """As JSON, which has no objects of Python."""
    settings = checked({name: value})
    assert stored(settings, EVERY) == {name: document}
    assert read_stored(json.loads(json.dumps({name: document})), "queue.json") == {name: value}


def test_every_setting_has_a_default_and_belongs_to_a_queue_or_a_group() -> None:
    """To one of them; and the defaults can work together."""
    assert DEFAULTS.keys() == EVERY == {name for name, _, _ in VALUES}
    assert not QUEUE_SETTINGS & GROUP_SETTINGS
    assert checked(DEFAULTS) == DEFAULTS
    assert retry_of({}) == retry_of(DEFAULTS)


def test_only_what_was_given_is_checked_and_stored() -> None:
    """A later default reaches the queues that never chose."""
    assert checked({}) == {}
    settings = checked({"lease_seconds": timedelta(minutes=1), "maxsize": 3, "backoff": [1, 2]})
    assert settings == {"lease_seconds": 60.0, "maxsize": 3, "backoff": (1.0, 2.0)}
    assert stored(settings, QUEUE_SETTINGS) == {"maxsize": 3}
    assert stored(settings, GROUP_SETTINGS) == {"lease_seconds": 60.0, "backoff": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flush": "never"}, "flush takes FlushPolicy"),
        ({"dedup_max": 0}, "dedup_max is from 1 to"),
        ({"dedup_max": True}, "dedup_max is from 1 to"),
        ({"dedup_window": -1}, "dedup_window takes seconds from 0 on"),
        ({"dedup_window": "long"}, "dedup_window takes seconds or a timedelta"),
        ({**DEFAULTS, "max_bytes": 2**20}, "leaves no room for two data files"),
        ({"max_bytes": 2**20, "data_file_bytes": 2**20}, "leaves no room for two data files"),
        ({"expired": "kept"}, "expired is"),
        ({"backoff": [1] * 1001}, "up to 1000 waits, not 1001"),
        ({"maxsize": -1}, "maxsize is 0 for no bound"),
        ({"maxsize": 2**63}, r"maxsize is 0 for no bound, or a number of messages, below 2\^63, not 0x8000"),
        ({"maxsize": 10**5000}, r"below 2\^63, not 0x"),
        ({"flush": FlushPolicy.every(commits=10**5000)}, r"flush\.commits is a number of commits from 1 on, below 2"),
        ({"backoff": b"abc"}, "backoff takes a Backoff or a list of seconds"),
        ({"backoff": [True]}, "backoff takes seconds from 0 on"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    """Alone, or with the others that are given."""
    with pytest.raises(ConfigError, match=message):
        checked(settings)


def test_sizes_that_work_together_are_taken() -> None:
    """Though one of them does not work with the other's default."""
    assert checked({"max_bytes": 2**21, "data_file_bytes": 2**20})["max_bytes"] == 2**21
    assert checked({"max_bytes": 2**21})["max_bytes"] == 2**21  # the queue may have small data files
    assert len(checked({"backoff": [1] * 1000})["backoff"]) == 1000  # type: ignore[arg-type]


def test_waits_longer_than_136_years_are_136_years() -> None:
    """No later sum of times leaves 64 bits, and no thread waits longer than it can."""
    assert checked({"backoff": [10**400, 1e308]})["backoff"] == (2.0**32, 2.0**32)
    assert Backoff(base=1e308, cap=1.7e308, jitter=False).seconds(64) == 2**32
    assert FlushPolicy.every(seconds=10**400).seconds == 2**32
    with pytest.raises(ConfigError, match="Backoff takes 0 <= base <= cap"):
        Backoff(cap=10**400)


@pytest.mark.parametrize(
    "document",
    [
        {"later": 1},
        {"maxsize": "many"},
        {"flush": "sometimes"},
        {"maxsize": -1},
        {"maxsize": 2**63},
        {"maxsize": {"later": [1] * 100}},
        {"backoff": {"factor": 2}},
        {"backoff": 5},
        {"expired": 5},
        {"backoff": {"base": 1, "cap": 10**400}},
        {"dedup_window": 10**400},
        {"max_bytes": 2**14},
    ],
    ids=lambda document: str(document)[:30],
)
def test_a_document_of_a_later_version_is_refused(document: dict[str, Any]) -> None:
    """A name or a value that this version does not know; the error names the setting, and is short."""
    known = r"queue\.json has a setting that this Holdfast does not know"
    with pytest.raises(UnsupportedVersionError, match=rf"{known} \('?{next(iter(document))}") as caught:
        read_stored(document, "queue.json")
    assert len(str(caught.value)) < 400


def test_a_misspelt_name_gets_a_hint() -> None:
    """As Python refuses a keyword argument."""
    check_names(["maxsize"], "configure")
    with pytest.raises(TypeError, match=r"configure\(\) has no option 'max_size'; did you mean maxsize\?"):
        check_names(["max_size"], "configure")
    with pytest.raises(TypeError, match=r"create\(\) has no option 'maxsize'"):
        check_names(["maxsize"], "create", "name", known=GROUP_SETTINGS)
    with pytest.raises(TypeError, match=r"did you mean lock_timeout\?"):
        check_names(["lock_timeuot"], "PersistentQueue", "lock_timeout")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (30.0, "30"),
        (0.5, "0.5"),
        ((1.0, 2.5), "[1, 2.5]"),
        (FlushPolicy.never(), "never"),
        (FlushPolicy.every(commits=10, seconds=0.5), "{commits=10, seconds=0.5}"),
        (Backoff(), "{base=1, cap=3600, jitter=true}"),
    ],
    ids=str,
)
def test_values_are_shown_as_the_command_takes_them(value: object, text: str) -> None:
    """On one line."""
    assert shown(value) == text


@pytest.mark.parametrize(
    ("first", "second", "covers", "is_covered"),
    [
        (FlushPolicy.every_commit(), FlushPolicy.never(), True, False),
        (FlushPolicy.every_commit(), FlushPolicy.every(), True, False),
        (FlushPolicy.every_commit(), FlushPolicy.every_commit(), True, True),
        (FlushPolicy.every(), FlushPolicy.never(), True, False),
        (FlushPolicy.every(commits=10, seconds=1), FlushPolicy.every(commits=20, seconds=1), True, False),
        (FlushPolicy.every(commits=10, seconds=2), FlushPolicy.every(commits=20, seconds=1), False, False),
        (FlushPolicy.every(commits=1, seconds=2), FlushPolicy.every_commit(), True, True),
        (FlushPolicy.never(), FlushPolicy.never(), True, True),
    ],
    ids=str,
)
def test_a_policy_covers_those_that_promise_less(
    first: FlushPolicy, second: FlushPolicy, covers: bool, is_covered: bool
) -> None:
    """Two that bound different things cover neither each other."""
    assert first.covers(second) is covers
    assert second.covers(first) is is_covered
