"""Queues that older versions left behind open, and say what they said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import PersistentQueue, verify
from support.golden_queue import MESSAGE_COUNT, payload

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*") if path.is_dir())


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one version's queue; it was killed, not closed."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "queue"))


def take_all(queue: PersistentQueue) -> list[bytes]:
    """Return the payloads of all that is left."""
    taken: list[bytes] = []
    while not queue.empty():
        taken += queue.get_many(MESSAGE_COUNT)
    return taken


def test_there_is_a_golden_queue_of_the_present_version() -> None:
    """A format version that nobody can read any more would not be noticed otherwise."""
    assert "v1" in VERSIONS


def test_a_golden_queue_verifies(golden: Path) -> None:
    """Every frame, seal, entry and document of an old version is understood."""
    report = verify(golden)
    assert report.ok, str(report)
    assert report.message_count == MESSAGE_COUNT
    assert report.file_count == 3


def test_a_golden_queue_gives_each_group_what_it_has_not_finished(golden: Path) -> None:
    """Payloads, headers, timestamps, delivery counts and acknowledgements of an old version are read as they were."""
    with PersistentQueue(golden) as queue:
        assert queue.recovery.lost_count == 0
        deliveries = queue.receive_many(30)
        assert [delivery.offset for delivery in deliveries][:9] == [5, 6, 8, 10, 11, 12, 13, 14, 15]
        assert [delivery.delivery_count for delivery in deliveries][:9] == [2] * 8 + [1]
        assert all(delivery.payload == payload(delivery.offset) for delivery in deliveries)
        timestamps = [delivery.timestamp_ns for delivery in deliveries]
        assert timestamps == sorted(timestamps)
        deliveries.ack()
    with PersistentQueue(golden, group="audit") as queue:
        assert take_all(queue) == [payload(offset) for offset in range(10, MESSAGE_COUNT)]


def test_a_golden_queue_keeps_its_headers(golden: Path) -> None:
    """Names and values in any script stand beside the payload."""
    with PersistentQueue(golden, mode="produce") as queue:
        queue.groups.create("all")
    with PersistentQueue(golden, group="all", mode="consume") as queue:
        assert queue.receive().headers == {"tenant": "acme", "gr\u00f6\u00dfe": "1"}


def test_a_golden_queue_goes_on(golden: Path) -> None:
    """The present version writes behind what an old one wrote, and reads both."""
    with PersistentQueue(golden) as queue:
        assert queue.put(b"new") == MESSAGE_COUNT
    with PersistentQueue(golden, mode="consume") as queue:
        assert take_all(queue)[-1] == b"new"
