"""docs/spark-kafka.md names every option of Spark's connector for Kafka, and no option of ours that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast import ConfigError

pytest.importorskip("pyarrow")

from holdfast.spark.reading import options as reading
from holdfast.spark.streaming import options as streaming
from holdfast.spark.writing import options as writing

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark-kafka.md").read_text(encoding="utf-8")

OF_KAFKA = [
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "startingOffsetsByTimestampStrategy",
    "topic",
]
"""Those of its guide, for batches and streams, source and sink."""

OURS = {*reading._NAMES, *streaming._NAMES, *writing._NAMES}

PARSERS = [reading.ReadOptions.parse, streaming.StreamOptions.parse, writing.WriteOptions.parse]

OPTION = re.compile(r"`([a-z]+[A-Z]\w*)`")


def test_the_page_names_every_option_of_kafkas() -> None:
    """Each in backticks."""
    assert [name for name in OF_KAFKA if f"`{name}`" not in PAGE] == []


def test_each_option_that_the_page_calls_ours_is_one() -> None:
    """The second column of the tables, as far as words look like options."""
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 4]
    found = {name for row in rows for name in OPTION.findall(row[2])}
    assert {"startingOffset", "maxBytesPerTrigger", "minPartitions"} <= found
    assert found <= OURS


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("name", [name for name in OF_KAFKA if "Consumer" not in name and "fetch" not in name])
def test_an_option_of_kafkas_is_ours_too_or_its_error_says_what_to_say(parse: object, name: str) -> None:
    """The name in the advice is one of ours."""
    assert callable(parse)
    if name in OURS:
        return
    with pytest.raises(ConfigError, match=rf"(?i)no option '{name}' for .*: say ") as raised:
        parse({"path": "q", name: "1"})
    assert set(re.findall(r"\b[a-z]+[A-Z]\w*", str(raised.value).partition(": say ")[2])) <= OURS
