"""The options of a write: what they may be, and what the error says otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import ConfigError
from holdfast.spark.writing.options import WriteOptions


def test_a_path_is_all_that_a_write_needs() -> None:
    """Payloads, into a queue that is there."""
    options = WriteOptions.parse({"path": "file:///data/orders"})
    assert str(options.path) == "/data/orders"
    assert (options.create, options.txnid, options.txnversion, options.serializer) == (False, None, 0, None)


def test_the_case_of_a_name_does_not_matter() -> None:
    """Spark hands names over in lower case."""
    one = WriteOptions.parse({"path": "/q", "serializer": "json", "type": "Order", "typeversion": "2"})
    assert one == WriteOptions.parse({"path": "/q", "serializer": "json", "type": "Order", "typeVersion": "2"})
    assert one.type_version == 2


def test_a_stream_has_options_of_spark_besides() -> None:
    """The checkpoint is synced; its name is no business of the queue."""
    options = {"path": "/q", "checkpointlocation": "file:/c", "queryname": "n"}
    expected = replace(WriteOptions.parse({"path": "/q"}), checkpoint=Path("/c"))
    assert WriteOptions.parse(options, is_stream=True) == expected
    with pytest.raises(ConfigError, match="checkpointlocation"):
        WriteOptions.parse(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": ""}, "which queue"),
        ({"txnId ": "a"}, "no option 'txnid '.*there are path, create, txnid"),
        ({"txnid": ""}, "txnid"),
        ({"txnid": "a b"}, "'a b' cannot name a txnid"),
        ({"txnid": "x" * 101}, "1 to 100"),
        ({"txnversion": "1"}, "give txnid too"),
        ({"txnid": "a", "txnversion": "-1"}, "txnversion is a whole number"),
        ({"txnid": "a", "txnversion": str(2**63)}, "a version is a whole number"),
        ({"serializer": "pickle"}, "json or msgpack, not 'pickle'"),
        ({"type": "Order"}, "give serializer too"),
        ({"serializer": "json", "typeVersion": "2"}, "give type too"),
        ({"serializer": "json", "type": "Order", "typeVersion": "0"}, "typeVersion is a whole number from 1"),
        ({"create": "yes"}, "create is true or false"),
        ({"recordBytesMax": "1"}, "no option 'recordbytesmax'"),
        ({"stagedRetentionSeconds": "1.5"}, "stagedRetentionSeconds is a whole number"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, str], said: str) -> None:
    """With what to do."""
    with pytest.raises(ConfigError, match=said):
        WriteOptions.parse({"path": "/q", **options})


@pytest.mark.parametrize("name", ["txnid", "txnversion"])
def test_a_stream_has_no_txnid(name: str) -> None:
    """Its query and its batch are one."""
    with pytest.raises(ConfigError, match="its query and its batch"):
        WriteOptions.parse({"path": "/q", name: "1"}, is_stream=True)
