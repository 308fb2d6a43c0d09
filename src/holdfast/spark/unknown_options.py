"""The error for an option that is not known, which names ours if it is one of Spark's connector for Kafka. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import ConfigError

_INSTEAD = {
    "assign": "startingOffset and endingOffset: a queue has no partitions",
    "endingoffsets": "endingOffset",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "groupidprefix": "group",
    "includeheaders": "nothing: headers is always a column",
    "kafka.bootstrap.servers": "the path of the queue: there is no server",
    "kafka.group.id": "group",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "startingoffsets": "startingOffset",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "startingoffsetsbytimestampstrategy": "nothing: a time behind the last message is not an error",
    "subscribe": "the path of the queue",
    "subscribepattern": "queues, as in queues='orders-*', and the path of their directory",
    "topic": "the path of the queue",
}
"""What corresponds to an option of Kafka's: docs/spark-kafka.md has all of them, and why."""


def unknown_option(name: str, what: str, known: Sequence[str]) -> ConfigError:
    """Return the error for an option.

    Parameters
    ----------
    name : str
        In lower case, as Spark hands it over.
    what : str
        What it was given for.
    known : sequence of str
        The options that there are.
    """
    instead = _INSTEAD.get(name)
    advice = f"there are {', '.join(known)}" if instead is None else f"say {instead}"
    return ConfigError(f"no option {name!r} for {what}{';' if instead is None else ':'} {advice}")
