"""The options of a stream, as Spark hands them over: strings, with names in lower case. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.arrow.decoding.decoding import Decoding
from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.layout import check_name
from holdfast.persistence.groups.group_files import DEFAULT_GROUP
from holdfast.spark.reading.decode_options import DECODE_NAMES, decode_option
from holdfast.spark.reading.options import (
    PARTITION_BYTES,
    address_option,
    filter_option,
    number_option,
    offset_option,
    processor_count,
    queue_path,
    queues_option,
    time_option,
    truth_option,
)
from holdfast.spark.remote.starting import ServeAddress
from holdfast.spark.unknown_options import unknown_option

RETAIN_BATCHES = 2
"""Batches that Spark has committed and the group still keeps: its checkpoint may lose the latest in a power failure."""

RETAIN_BATCHES_MAX = 1000
"""The offset of each stands in every line of the checkpoint."""

TRIGGER_DELAY_SECONDS = 900.0
"""As that of Spark's source for Kafka."""

_NAMES = (
    "path",
    "queues",
    "group",
    "filter",
    "startingOffset",
    "startingTimestamp",
    "minMessagesPerTrigger",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "retainBatches",
    "partitionBytes",
    "minPartitions",
    "failOnDataLoss",
    "serveAddress",
    *DECODE_NAMES,
)
_KNOWN = {name.lower(): name for name in _NAMES}
_DURATION = re.compile(r"(\d{1,9}) ?(ms|s|m|min|h|d)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream.

    Attributes
    ----------
    path : Path
        The queue; of many, their directory.
    group : str or None
        The stream's own consumer group, which keeps unread messages; None: nothing is marked.
    filter : str or None
        An expression that its rows match; bounds of a batch count the others too.
    offset_start : int or None
        Where a stream without a checkpoint begins; None: with the next put.
    timestamp_start_ns : int
        The same as a time, in nanoseconds since the epoch; 0: none.
    max_messages, max_bytes : int or None
        The most of one batch.
    min_messages : int
        A batch waits for so many messages.
    max_delay : float, seconds
        But no longer than that.
    retain_batches : int
        Committed batches whose messages the group keeps.
    partition_bytes : int
        About how much one task reads.
    partition_count_min : int
        Tasks are made smaller, but not tiny, until there are so many.
    fail_on_data_loss : bool
        Whether messages that are damaged or gone are errors; else the rest is read.
    serve_address : ServeAddress or None
        Where to serve tasks that do not see the queue; None: found by itself.
    queues : str or None
        Names of queues, or patterns; None: there is one.
    decoding : Decoding or None
        How payloads are decoded; None: they are not.
    """

    path: Path
    group: str | None = None
    filter: str | None = None
    offset_start: int | None = 0
    timestamp_start_ns: int = 0
    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int = 1
    max_delay: float = TRIGGER_DELAY_SECONDS
    retain_batches: int = RETAIN_BATCHES
    partition_bytes: int = PARTITION_BYTES
    partition_count_min: int = 1
    fail_on_data_loss: bool = True
    serve_address: ServeAddress | None = None
    queues: str | None = None
    decoding: Decoding | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Return the options; raises ConfigError for one that is not known or cannot be."""
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(given) - set(_KNOWN))
        if unknown:
            raise unknown_option(unknown[0], "a stream of a queue", _NAMES)
        if "startingoffset" in given and "startingtimestamp" in given:
            raise ConfigError("a stream begins at startingOffset or at startingTimestamp: give one of them")
        retain_batches = number_option(given, "retainBatches", RETAIN_BATCHES, 0)
        if retain_batches > RETAIN_BATCHES_MAX:
            raise ConfigError(f"retainBatches is at most {RETAIN_BATCHES_MAX}, not {retain_batches}")
        min_messages = number_option(given, "minMessagesPerTrigger", 1, 1)
        max_messages = number_option(given, "maxMessagesPerTrigger", 0, 1) or None
        if max_messages is not None and min_messages > max_messages:
            raise ConfigError(
                f"minMessagesPerTrigger is at most maxMessagesPerTrigger, which is {max_messages}; not {min_messages}"
            )
        if "maxtriggerdelay" in given and "minmessagespertrigger" not in given:
            raise ConfigError("maxTriggerDelay says how long minMessagesPerTrigger may wait: give both")
        is_latest = given.get("startingoffset") == "latest"
        return cls(
            path=queue_path(given),
            group=None if "group" not in given else own_group(given["group"]),
            filter=filter_option(given),
            offset_start=None if is_latest else offset_option(given, "startingOffset", "earliest", 0),
            timestamp_start_ns=time_option(given, "startingTimestamp", 0),
            max_messages=max_messages,
            max_bytes=number_option(given, "maxBytesPerTrigger", 0, 1) or None,
            min_messages=min_messages,
            max_delay=_duration_option(given, "maxTriggerDelay", TRIGGER_DELAY_SECONDS),
            retain_batches=retain_batches,
            partition_bytes=number_option(given, "partitionBytes", PARTITION_BYTES, 1),
            partition_count_min=number_option(given, "minPartitions", processor_count(), 1),
            fail_on_data_loss=truth_option(given, "failOnDataLoss", default=True),
            serve_address=address_option(given),
            queues=queues_option(given),
            decoding=decode_option(given),
        )


def _duration_option(given: Mapping[str, str], name: str, default: float) -> float:
    """Return an option that is a duration, in seconds."""
    text = given.get(name.lower())
    if text is None:
        return default
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigError(f"{name} is a duration as 500ms, 30s, 15m, 2h or 1d, not {text!r}")
    return int(found[1]) * _UNIT_SECONDS[found[2]]


def own_group(name: str) -> str:
    """Return the name of a stream's group; raises ConfigError for the default one, which would lose its messages."""
    if name == DEFAULT_GROUP:
        raise ConfigError(f"a stream needs a group of its own, and {name!r} is that of the queue's consumers")
    return check_name(name, "group")
