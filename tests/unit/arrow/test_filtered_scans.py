"""Scans with an expression in the Common Expression Language: what a group with that filter would get."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import ConfigError, PersistentQueue
from holdfast.arrow import scan

pytestmark = [pytest.mark.extra("arrow"), pytest.mark.extra("filter")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a queue whose messages have a kind, a priority or an order key, or nothing."""
    with PersistentQueue(tmp_path / "q", data_file_bytes=16 * 2**10) as queue:
        for number in range(100):
            headers = {"kind": "paid" if number % 3 else "open"} if number % 2 else {}
            order_key = "eu" if number % 5 == 0 else None
            queue.put(b"x" * number * 10, headers=headers, priority=0 if order_key else number % 4, order_key=order_key)
    return tmp_path / "q"


@pytest.mark.parametrize(
    "expression",
    [
        "has(headers.kind) && headers.kind == 'paid'",
        "priority > 1 || key == 'eu'",
        "size >= 500 && time > timestamp('2026-01-01T00:00:00Z')",
        "false",
        "headers.kind == 'paid'",
    ],
)
def test_a_scan_has_what_a_group_with_that_filter_gets(path: Path, expression: str) -> None:
    """Also the messages that it cannot judge; offsets, payloads and headers are those of the messages."""
    found = scan(path, columns=["offset", "payload", "headers"], filter=expression).read_all().to_pylist()
    with PersistentQueue(path) as queue:
        browsed = queue.browse(limit=1000, filter=expression)
        queue.groups.create("some", filter=expression)
    assert [(each.offset, each.payload, dict(each.headers)) for each in browsed] == [
        (row["offset"], row["payload"], dict(row["headers"])) for row in found
    ]
    with PersistentQueue(path, group="some") as queue:
        messages = queue.peek(1000)
        assert sorted(each.offset for each in messages) == [row["offset"] for row in found]


def test_bounds_and_a_filter_both_count(path: Path) -> None:
    """A scan of some offsets shows those of them that match."""
    assert scan(path, columns=["offset"], start=10, stop=20, filter="key == 'eu'").read_all().to_pylist() == [
        {"offset": 10},
        {"offset": 15},
    ]


def test_what_cannot_be_a_filter_is_refused_before_anything_is_read(path: Path) -> None:
    """By a scan and by a look."""
    with pytest.raises(ConfigError, match="there is no 'offset'"):
        scan(path, filter="offset > 3")
    with PersistentQueue(path) as queue, pytest.raises(ConfigError, match="there is no 'offset'"):
        queue.browse(filter="offset > 3")
