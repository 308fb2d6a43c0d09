"""Says what a real call and its answer mean in plain values, for the judge."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from holdfast import Backoff, DeadLetter, HoldfastError, Put
from holdfast.queue.inspect.log_reading import LogReading
from holdfast.queue.inspect.stats import QueueStats
from proof.second_model.facts import SECOND_NS, DisagreementError
from proof.second_model.history import Seen

ASKS = ("payload", "delay", "not_before", "priority", "ttl", "order_key", "headers")
OPTIONS: tuple[str, ...] = ("max_deliveries", "lease_seconds", "dead_letter_seconds", "expired", "max_lag_bytes")
OPTIONS += (
    "maxsize",
    "max_bytes",
    "record_bytes_max",
    "data_file_bytes",
    "dedup_window",
    "dedup_max",
    "data_file_max_age",
    "max_lag_age",
    "retain_age",
    "retain_bytes",
    "retain_messages",
)
DURATIONS = {"lease_seconds", "dedup_window", "dead_letter_seconds", "data_file_max_age", "max_lag_age", "retain_age"}


def seconds(value: Any) -> float | None:
    """Return a duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def instant_ns(value: Any) -> int | None:
    """Return a moment in nanoseconds since the epoch."""
    if not isinstance(value, datetime):
        return None if value is None else round(value * SECOND_NS)
    since = value - datetime.fromtimestamp(0, value.tzinfo)
    return (since // timedelta(microseconds=1)) * 1000


def ask(wishes: dict[str, Any]) -> dict[str, Any]:
    """Return what one message asks for, without what is left out."""
    given = {name: wishes[name] for name in ASKS if wishes.get(name) is not None}
    for name in {"delay", "ttl"} & given.keys():
        given[name] = seconds(given[name])
    if "not_before" in given:
        given["not_before"] = instant_ns(given["not_before"])
    given["payload"] = bytes(given["payload"])
    return given


def asks(payloads: Iterable[Any]) -> list[dict[str, Any]]:
    """Return what the messages of a batch ask for."""
    wishes = [each if isinstance(each, Put) else Put(each) for each in payloads]
    return [ask({name: getattr(each, name) for name in ASKS}) for each in wishes]


def start(value: Any) -> Any:
    """Return a start: a word, a number, or a time as ("since", nanoseconds) or ("ago", seconds)."""
    if isinstance(value, datetime):
        return "since", instant_ns(value)
    return ("ago", seconds(value)) if isinstance(value, timedelta) else value


def read(reading: LogReading) -> tuple[list[Seen], list[tuple[int, int]], int]:
    """Return what a reading of the log shows to its end, its gaps, and how much damage there is."""
    try:
        found = [Seen(message.offset, message.payload) for message in reading]
    except HoldfastError as error:
        raise DisagreementError(f"a reading of the log ends with {error!r}") from error
    return found, [(gap.start, gap.stop) for gap in reading.gaps], len(reading.damage)


def settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings among keyword arguments, as the judge has them."""
    known = {name: given[name] for name in OPTIONS if name in given}
    for name in DURATIONS & known.keys():
        known[name] = seconds(known[name])
    if "backoff" in given:
        backoff = given["backoff"]
        is_doubling = isinstance(backoff, Backoff)
        known["backoff"] = ("doubling", backoff.base, backoff.cap, backoff.jitter) if is_doubling else tuple(backoff)
    return known


def letter(found: DeadLetter) -> Seen:
    """Return a dead letter as the judge sees it."""
    return Seen(found.offset, found.payload, found.delivery_count, reason=found.reason, detail=found.detail)


def message(found: Any) -> Seen:
    """Return a message that was shown."""
    state, until = getattr(found, "state", ""), getattr(found, "until_ns", None)
    return Seen(found.offset, found.payload, found.delivery_count, state=state, until=until)


def offsets_of(which: Any) -> list[int] | None:
    """Return the offsets that dead letters were named by."""
    if which is None:
        return None
    several = [which] if isinstance(which, int | DeadLetter) else which
    return [each if isinstance(each, int) else each.offset for each in several]


def figures(found: QueueStats) -> dict[str, Any]:
    """Return figures by name."""
    names = ("depth", "in_flight", "delayed", "dead", "dropped", "next_offset", "first_offset", "lost", "paused")
    return {name: getattr(found, name) for name in (*names, "dedup_forgotten", "skipped", "filtered", "filter_failed")}
