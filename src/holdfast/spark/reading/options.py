"""The options of a read, as Spark hands them over: strings, with names in lower case. Pure."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.arrow.decoding.decoding import Decoding
from holdfast.arrow.reading.many_queues import check_patterns
from holdfast.arrow.reading.selection import NO_END, Selection, nanoseconds_of
from holdfast.errors import ConfigError
from holdfast.queue.options.filter_expression import check_filter
from holdfast.spark.reading.decode_options import DECODE_NAMES, decode_option
from holdfast.spark.remote.starting import ServeAddress
from holdfast.spark.unknown_options import unknown_option

PARTITION_BYTES = 128 * 2**20
"""As Spark's own for files (``spark.sql.files.maxPartitionBytes``): a quarter of a second, so starts do not show."""

_NANOSECONDS_MIN = 10**17
"""In March 1973; as microseconds it is in the year 5138. 0 is the beginning of all."""

_NAMES = (
    "path",
    "queues",
    "startingOffset",
    "endingOffset",
    "startingTimestamp",
    "endingTimestamp",
    "group",
    "filter",
    "partitionBytes",
    "minPartitions",
    "failOnDataLoss",
    "serveAddress",
    *DECODE_NAMES,
)
_KNOWN = {name.lower(): name for name in _NAMES}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read.

    Attributes
    ----------
    selection : Selection
        The messages; of many queues, its path is their directory.
    partition_bytes : int
        About how much one task reads.
    partition_count_min : int
        Tasks are made smaller, but not tiny, until there are so many.
    fail_on_data_loss : bool
        Whether damage and files that are gone are errors; else the rest is read.
    serve_address : ServeAddress or None
        Where to serve tasks that do not see the queue; None: found by itself.
    queues : str or None
        Names of queues, or patterns; None: there is one.
    decoding : Decoding or None
        How payloads are decoded; None: they are not.
    """

    selection: Selection
    partition_bytes: int = PARTITION_BYTES
    partition_count_min: int = 1
    fail_on_data_loss: bool = True
    serve_address: ServeAddress | None = None
    queues: str | None = None
    decoding: Decoding | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Return the options; raises ConfigError for one that is not known or cannot be."""
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(given) - set(_KNOWN))
        if unknown:
            raise unknown_option(unknown[0], "reading a queue", _NAMES)
        return cls(
            selection=Selection(
                path=queue_path(given),
                offset_start=offset_option(given, "startingOffset", "earliest", 0),
                offset_end=offset_option(given, "endingOffset", "latest", NO_END),
                timestamp_start_ns=time_option(given, "startingTimestamp", 0),
                timestamp_end_ns=time_option(given, "endingTimestamp", NO_END),
                group=given.get("group"),
                filter=filter_option(given),
            ),
            partition_bytes=number_option(given, "partitionBytes", PARTITION_BYTES, 1),
            partition_count_min=number_option(given, "minPartitions", processor_count(), 1),
            fail_on_data_loss=truth_option(given, "failOnDataLoss", default=True),
            serve_address=address_option(given),
            queues=queues_option(given),
            decoding=decode_option(given),
        )


def queue_path(given: Mapping[str, str]) -> Path:
    """Return the absolute path of the queue; raises ConfigError if none can be."""
    if not given.get("path"):
        raise ConfigError(
            "which queue? say load('data/orders'), or in SQL CREATE TEMPORARY VIEW orders USING holdfast OPTIONS (path "
            "'data/orders'): CREATE TABLE tells a Python source no path"
        )
    path = local_path(given["path"])
    if path is None:
        raise ConfigError(f"{given['path']} is not on a file system of this machine: a queue is a directory there")
    return path


def queues_option(given: Mapping[str, str]) -> str | None:
    """Return the option ``queues``; None if it is not given. Raises as :func:`check_patterns`."""
    text = given.get("queues")
    if text is not None:
        check_patterns(text)
    return text


def local_path(location: str) -> Path | None:
    """Return the path that Spark or Hadoop spells as they like; None if it is not one of this machine."""
    path = location.removeprefix("file://").removeprefix("file:")
    return None if ":" in path.split("/", 1)[0] else Path(path).absolute()


def processor_count() -> int:
    """Return how many processors the driver may use, which does not know how many tasks run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def number_option(given: Mapping[str, str], name: str, default: int, smallest: int) -> int:
    """Return an option that is a whole number; ``given`` has names in lower case, as for all of these."""
    text = given.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or int(text) < smallest:
        raise ConfigError(f"{name} is a whole number from {smallest}, not {text!r}")
    return int(text)


def address_option(given: Mapping[str, str]) -> ServeAddress | None:
    """Return the option ``serveAddress``; None if it is not given."""
    text = given.get("serveaddress")
    return None if text is None else ServeAddress.parse(text)


def filter_option(given: Mapping[str, str]) -> str | None:
    """Return the option ``filter``: an expression that can be one."""
    text = given.get("filter")
    return None if text is None else check_filter(text)


def offset_option(given: Mapping[str, str], name: str, word: str, default: int) -> int:
    """Return an option that is an offset or the word for its default."""
    return default if given.get(name.lower()) == word else number_option(given, name, default, 0)


def time_option(given: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a time, in nanoseconds since the epoch.

    It is given as such, or in ISO 8601; UTC if no zone is given.
    """
    text = given.get(name.lower())
    if text is None:
        return default
    if text.isdecimal():
        return _nanoseconds(name, int(text))
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{name} is a time as 2026-01-31T12:00:00Z, or nanoseconds since the epoch; not {text!r}"
        ) from None
    return nanoseconds_of(time)


def _nanoseconds(name: str, number: int) -> int:
    """Return nanoseconds since the epoch; refuses seconds, milliseconds and microseconds, which are far smaller."""
    if number and not _NANOSECONDS_MIN <= number <= NO_END:
        raise ConfigError(
            f"{name} is in nanoseconds since the epoch, which {number} cannot be: multiply seconds by 1_000_000_000, "
            "milliseconds by 1_000_000, microseconds by 1_000; or say a time as 2026-01-31T12:00:00Z"
        )
    return number


def truth_option(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return an option that is true or false."""
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is true or false, not {text!r}")
    return text == "true"
