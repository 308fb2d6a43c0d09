"""Settings of retention: their bounds, and what a queue keeps by them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import ConfigError
from holdfast.persistence.groups.retention import NOTHING, Bounds, Retention
from holdfast.queue.options.retention import lag_of, retention_of
from holdfast.queue.options.settings import DEFAULTS, checked

MIB = 2**20


def kept(**settings: Any) -> Bounds:
    """Return what a queue with these settings keeps of what is finished."""
    return retention_of({**DEFAULTS, **checked(settings)}).kept  # type: ignore[arg-type]


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    """And no group is moved on."""
    assert retention_of(DEFAULTS) == Retention(NOTHING, Bounds(), 0, None, DEFAULTS["data_file_bytes"])
    assert not lag_of(DEFAULTS).is_any


def test_one_bound_is_enough_to_keep_and_the_others_are_none() -> None:
    """A time may be a timedelta."""
    assert kept(retain_age=timedelta(days=7)) == Bounds(7 * 86400 * 10**9)
    assert kept(retain_bytes=5) == Bounds(size_bytes=5)
    assert kept(retain_messages=1, retain_age=0.5) == Bounds(5 * 10**8, None, 1)


def test_what_is_kept_leaves_room_for_puts_below_max_bytes() -> None:
    """For the next file and one that was full a moment ago, or for a larger put that waits."""
    settings = {**DEFAULTS, "max_bytes": 10 * MIB, "data_file_bytes": MIB}
    assert retention_of(DEFAULTS).total_bytes_max is None
    assert retention_of(settings).total_bytes_max == 8 * MIB
    assert retention_of(settings, 1000).total_bytes_max == 8 * MIB
    assert retention_of(settings, 4 * MIB).total_bytes_max == 5 * MIB
    assert retention_of(settings, 40 * MIB).total_bytes_max == 0


def test_a_lag_has_an_age_and_bytes() -> None:
    """They count for the default group while there is none; the space of the disk is a setting of the queue."""
    settings = {**DEFAULTS, **checked({"max_lag_age": 2, "max_lag_bytes": 7, "min_free_bytes": 9})}
    assert lag_of(settings) == Bounds(2 * 10**9, 7)  # type: ignore[arg-type]
    assert retention_of(settings) == Retention(NOTHING, Bounds(2 * 10**9, 7), 9, None, DEFAULTS["data_file_bytes"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"retain_age": 0}, "retain_age is a time above 0, or None for no bound, not 0"),
        ({"retain_age": -1}, "retain_age takes seconds from 0 on"),
        ({"data_file_max_age": "1h"}, "data_file_max_age takes seconds or a timedelta, not str"),
        ({"max_lag_age": True}, "max_lag_age takes seconds or a timedelta, not bool"),
        ({"retain_bytes": 0}, "retain_bytes is a number of bytes from 1 on, or None for no bound, not 0"),
        ({"retain_messages": 1.5}, "retain_messages is a number of messages from 1 on"),
        ({"min_free_bytes": True}, "min_free_bytes is a number of bytes from 1 on"),
        ({"max_lag_bytes": -5}, "max_lag_bytes is a number of bytes from 1 on"),
        ({"max_lag_bytes": 2**63}, r"max_lag_bytes is a number of bytes, or \"none\", below 2\^63"),
    ],
)
def test_bounds_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    """In one line that names the setting."""
    with pytest.raises(ConfigError, match=message):
        checked(settings)
