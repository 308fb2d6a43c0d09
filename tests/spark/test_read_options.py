"""The options of a read: what they may be, and what the error says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import ConfigError
from holdfast.arrow.reading.selection import NO_END
from holdfast.spark.reading.options import PARTITION_BYTES, ReadOptions
from holdfast.spark.streaming.options import StreamOptions


@pytest.mark.parametrize("path", ["/data/orders", "file:/data/orders", "file:///data/orders"])
def test_a_path_is_all_that_a_read_needs(path: str) -> None:
    """As Spark or Hadoop spells it. Everything that is in the data files, and damage is an error."""
    options = ReadOptions.parse({"path": path})
    assert str(options.selection.path) == "/data/orders"
    wanted = options.selection
    assert (wanted.offset_start, wanted.offset_end, wanted.group) == (0, NO_END, None)
    assert (options.partition_bytes, options.fail_on_data_loss) == (PARTITION_BYTES, True)


def test_the_case_of_a_name_does_not_matter() -> None:
    """Spark hands names over in lower case."""
    one = ReadOptions.parse({"path": "/q", "startingoffset": "5", "failondataloss": "FALSE"})
    assert one == ReadOptions.parse({"path": "/q", "startingOffset": "5", "failOnDataLoss": "false"})
    assert (one.selection.offset_start, one.fail_on_data_loss) == (5, False)


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31T12:00:00"])
def test_a_time_is_iso_8601_and_utc_where_nothing_is_said(text: str) -> None:
    """All three are the same moment."""
    assert (
        ReadOptions.parse({"path": "/q", "startingTimestamp": text}).selection.timestamp_start_ns == 1769860800 * 10**9
    )


def test_a_time_may_be_nanoseconds() -> None:
    """As the column ``timestamp_ns`` gives them."""
    assert (
        ReadOptions.parse({"path": "/q", "endingTimestamp": "1769860800000000001"}).selection.timestamp_end_ns % 10 == 1
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "which queue"),
        ({"path": "s3a://bucket/q"}, "not on a file system of this machine"),
        ({"path": "/q", "startingOffsets": "5"}, "no option 'startingoffsets'"),
        ({"path": "/q", "startingOffset": "-1"}, "startingOffset is a whole number from 0"),
        ({"path": "/q", "startingOffset": "latest"}, "not 'latest'"),
        ({"path": "/q", "partitionBytes": "0"}, "partitionBytes is a whole number from 1"),
        ({"path": "/q", "endingTimestamp": "noon"}, "endingTimestamp is a time"),
        ({"path": "/q", "startingTimestamp": "1769860800"}, "startingTimestamp is in nanoseconds.* seconds by"),
        ({"path": "/q", "startingTimestamp": "1769860800000"}, "which 1769860800000 cannot be.* milliseconds by"),
        ({"path": "/q", "endingTimestamp": "1769860800000000"}, "endingTimestamp is in nanoseconds"),
        ({"path": "/q", "endingTimestamp": "9999999999999999999"}, "endingTimestamp is in nanoseconds"),
        ({"path": "/q", "failOnDataLoss": "no"}, "failOnDataLoss is true or false"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, str], said: str) -> None:
    """One line says which option it is, and what it may be."""
    with pytest.raises(ConfigError, match=said):
        ReadOptions.parse(options)


@pytest.mark.extra("filter")
@pytest.mark.parametrize("parse", [ReadOptions.parse, StreamOptions.parse])
def test_a_filter_is_an_expression_that_can_be_one(parse: Any) -> None:
    """It is checked where the query is planned."""
    found = parse({"path": "q", "filter": "size > 3"})
    assert (found.filter if isinstance(found, StreamOptions) else found.selection.filter) == "size > 3"
    with pytest.raises(ConfigError, match="there is no 'offset'"):
        parse({"path": "q", "filter": "offset > 3"})
