"""How often a message is handed out, how long it waits in between, and options that cannot work."""

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Backoff, ConfigError, PersistentQueue
from holdfast.persistence.format.constants import NOTE_CHARACTERS_MAX
from holdfast.queue.options.failure import TRACEBACK_CHARACTERS_MAX, failure_of, shortened
from holdfast.queue.options.retry_policy import RetryPolicy, retry_policy


def test_the_wait_doubles_with_each_failure_up_to_the_cap() -> None:
    """Without jitter exactly so."""
    backoff = Backoff(base=1, cap=100, jitter=False)
    assert [backoff.seconds(count) for count in range(1, 10)] == [1, 2, 4, 8, 16, 32, 64, 100, 100]
    assert Backoff(base=0, cap=0, jitter=False).seconds(3) == 0


@given(st.integers(1, 2**40), st.floats(0, 1e9), st.floats(0, 1e9))
def test_jitter_takes_away_up_to_a_half(count: int, one: float, other: float) -> None:
    """Whatever the count: no overflow, never beyond the cap."""
    base, cap = sorted((one, other))
    full = Backoff(base, cap, jitter=False).seconds(count)
    assert base <= full <= cap
    assert full / 2 <= Backoff(base, cap).seconds(count) <= full


def test_jitter_scatters() -> None:
    """Messages that failed together do not come again together."""
    assert len({Backoff().seconds(5) for _ in range(20)}) > 10


def test_the_last_wait_of_a_list_goes_on_and_an_empty_one_is_none() -> None:
    """Ints and floats."""
    policy = RetryPolicy(backoff=[1, 2.5, 10])
    assert [policy.wait_seconds(count) for count in (1, 2, 3, 4, 400)] == [1, 2.5, 10, 10, 10]
    assert RetryPolicy(backoff=()).wait_seconds(1) == 0


def test_no_count_is_larger_than_an_entry_has_room_for() -> None:
    """A larger bound would never be reached once the process has ended in between."""
    policy = retry_policy(100_000, (), 30, 30, "drop")
    assert (policy.is_last(65_534), policy.is_last(65_535)) == (False, True)


def test_the_last_delivery_is_number_max_deliveries() -> None:
    """Also where more were counted, under another policy; None: never."""
    policy = RetryPolicy(max_deliveries=3)
    assert [policy.is_last(count) for count in (1, 2, 3, 4, 70_000)] == [False, False, True, True, True]
    assert not RetryPolicy(max_deliveries=None).is_last(10**9)


def test_the_defaults_are_those_of_the_documentation() -> None:
    """Five deliveries, a second to an hour with jitter, 30 s, 14 days, dropped."""
    policy = RetryPolicy()
    assert policy == retry_policy(5, Backoff(1, 3600, jitter=True), timedelta(seconds=30), timedelta(days=14), "drop")
    assert not policy.keeps_expired
    assert RetryPolicy(expired="dead").keeps_expired


@pytest.mark.parametrize(
    "options",
    [
        {"max_deliveries": 0},
        {"max_deliveries": -1},
        {"max_deliveries": 2.0},
        {"max_deliveries": True},
        {"backoff": "1"},
        {"backoff": 1},
        {"backoff": None},
        {"backoff": [1, -1]},
        {"backoff": [math.nan]},
        {"backoff": [math.inf]},
        {"backoff": ["1"]},
        {"backoff": {1: 2}},
        {"lease_seconds": 0},
        {"lease_seconds": -1},
        {"lease_seconds": math.nan},
        {"lease_seconds": math.inf},
        {"dead_letter_seconds": 0},
        {"dead_letter_seconds": -5},
        {"expired": "keep"},
        {"expired": None},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused_and_nothing_is_made(tmp_path: Path, options: dict[str, Any]) -> None:
    """With an error of ours that says which."""
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        PersistentQueue(tmp_path / "orders", **{"mode": "exclusive", **options})
    assert not (tmp_path / "orders").exists()


@pytest.mark.parametrize(("base", "cap"), [(2, 1), (-1, 1), (math.nan, 1), (1, math.nan), (1, math.inf)])
def test_a_backoff_that_cannot_work_is_refused(base: float, cap: float) -> None:
    """When it is made."""
    with pytest.raises(ConfigError):
        Backoff(base, cap)


# -- What is kept of an exception ------------------------------------------------------------------------------------


class CannotSayError(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


def caught(error: BaseException) -> BaseException:
    """Return an exception that was raised."""
    try:
        raise error
    except BaseException as raised:
        return raised


def test_of_an_exception_its_type_text_and_traceback_are_kept() -> None:
    """With module, cause and place."""
    failure = failure_of(caught(KeyError("größe")))
    assert (failure.reason, failure.detail, failure.exception) == ("exception", "'größe'", "builtins.KeyError")
    assert "test_retry_policy.py" in failure.trace


def test_of_a_long_traceback_the_end_is_kept() -> None:
    """Text and traceback have a bound."""
    failure = shortened(failure_of(caught(ValueError("x" * 10**6 + "end"))))
    assert len(failure.detail) <= NOTE_CHARACTERS_MAX
    assert len(failure.trace) <= TRACEBACK_CHARACTERS_MAX + 10
    assert failure.trace.rstrip().endswith("end")


def test_an_exception_whose_text_cannot_be_had_hides_nothing() -> None:
    """Somebody else's ``__str__`` is no reason to lose a message."""
    failure = failure_of(caught(CannotSayError()))
    assert failure.exception.endswith("CannotSayError")
    assert failure.detail


class NeitherError(Exception):
    """Is neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("neither")


def test_an_exception_whose_traceback_cannot_be_had_hides_nothing() -> None:
    """Python asks for its truth value there, and for that of one behind it; a log record would ask again."""
    failure = failure_of(caught(NeitherError("there")))
    assert (failure.detail, failure.trace, failure.cause) == ("there", "", None)
    assert failure.exception.endswith("NeitherError")


def test_what_was_kept_of_an_exception_already_stays_as_it_is() -> None:
    """Another process has made it of one that cannot come here itself."""
    kept = failure_of(caught(ValueError("there")), "undecodable")
    assert failure_of(kept) is kept
