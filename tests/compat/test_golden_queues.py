"""Queues that older versions left behind open, and say what they said."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue, TransactionNotFoundError, TransactionStateError, verify
from holdfast.persistence.format.constants import FORMAT_VERSION
from holdfast.queue.options.settings import DEFAULTS
from support.golden.golden_queue import (
    ABORTED_ID,
    COMMITTED_ACKS_ID,
    COMMITTED_ID,
    DEAD,
    DEAD_DETAIL,
    DELAYED,
    GROUP_SETTINGS,
    HELD,
    KEYED,
    MESSAGE_COUNT,
    PAUSE_REASON,
    PAUSED_SETTINGS,
    PLAIN_COUNT,
    PRIORITIZED,
    QUEUE_SETTINGS,
    RETURNED,
    TRANSACTIONS_END,
    UNDECIDED_ID,
    WAITING,
    payload,
)

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*") if path.is_dir() and path.name != "v1")
"""Version 1 was never released and is not read: test_other_versions_are_refused.py."""


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one version's queue; it was killed, not closed."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "queue"))


def take_all(queue: PersistentQueue) -> list[bytes]:
    """Return the payloads of all that is left."""
    taken: list[bytes] = []
    with suppress(Empty):
        while True:
            taken += queue.get_many(MESSAGE_COUNT, timeout=0)
    return taken


def test_there_is_a_golden_queue_of_the_present_version() -> None:
    """A format version that nobody can read any more would not be noticed otherwise."""
    assert f"v{FORMAT_VERSION}" in VERSIONS


def test_a_golden_queue_verifies(golden: Path) -> None:
    """Every frame, seal, entry and document of an old version is understood."""
    report = verify(golden)
    assert report.ok, str(report)
    assert report.message_count == MESSAGE_COUNT
    assert report.file_count == 3


def test_a_golden_queue_gives_each_group_what_it_has_not_finished(golden: Path) -> None:
    """Payloads, headers, timestamps, delivery counts and acknowledgements of an old version are read as they were."""
    with PersistentQueue(golden, mode="exclusive") as queue:
        assert queue.recovery.lost_count == 0
        assert queue.receive().offset == PRIORITIZED
        again = [queue.receive_many(30) for _ in range(6)]
        assert [[delivery.offset for delivery in batch] for batch in again] == [
            [at] for at in (RETURNED, *range(10, 15))
        ]
        assert {batch[0].delivery_count for batch in again} == {2}
        deliveries = queue.receive_many(30)
        assert (deliveries[0].offset, deliveries[0].delivery_count) == (HELD + 1, 1)
        found = [*(batch[0] for batch in again), *deliveries]
        assert all(delivery.payload == payload(delivery.offset) for delivery in found)
        timestamps = [delivery.timestamp_ns for delivery in found]
        assert timestamps == sorted(timestamps)
        deliveries.ack()
    with PersistentQueue(golden, mode="exclusive", group="audit") as queue:
        in_order = [offset for offset in range(10, MESSAGE_COUNT) if offset not in (DELAYED, PRIORITIZED)]
        assert take_all(queue) == [payload(offset) for offset in (PRIORITIZED, *in_order)]


def test_a_golden_queue_knows_what_failed_and_what_waits(golden: Path) -> None:
    """Delays, dead letters with their notes, order keys and pauses of an old version are what they were."""
    with PersistentQueue(golden, mode="exclusive") as queue:
        offsets = [message.offset for message in queue.peek(MESSAGE_COUNT)]
        assert offsets[0] == PRIORITIZED
        assert offsets[-1] == KEYED
        assert not {DELAYED, WAITING, DEAD} & set(offsets)
        assert [message.offset for message in queue.browse("delayed")] == [WAITING, DELAYED]
        (letter,) = queue.dead.list()
        assert (letter.offset, letter.payload, letter.reason) == (DEAD, payload(DEAD), "rejected")
        assert (letter.delivery_count, letter.detail) == (1, DEAD_DETAIL)
        assert queue.dead.retry(letter) == 1
        assert [queue.receive().offset for _ in range(3)] == [PRIORITIZED, RETURNED, DEAD]
    with PersistentQueue(golden, mode="exclusive", group="paused") as queue:
        assert queue.stats().paused == PAUSE_REASON
        with pytest.raises(Empty):
            queue.get(timeout=0)
        queue.resume()
        assert queue.get(timeout=0) == payload(PRIORITIZED)


def test_a_golden_queue_keeps_its_settings(golden: Path) -> None:
    """Each of the queue, and those of each group; what was never set has its default."""
    with PersistentQueue(golden, mode="exclusive") as queue:
        assert queue.settings == {**DEFAULTS, **QUEUE_SETTINGS, **GROUP_SETTINGS}
    with PersistentQueue(golden, mode="exclusive", group="paused") as queue:
        assert queue.settings == {**DEFAULTS, **QUEUE_SETTINGS, **PAUSED_SETTINGS}
    with PersistentQueue(golden, group="audit", mode="exclusive") as queue:
        assert queue.settings == {**DEFAULTS, **QUEUE_SETTINGS}


def test_a_golden_queue_keeps_its_headers(golden: Path) -> None:
    """Names and values in any script stand beside the payload."""
    with PersistentQueue(golden, mode="exclusive") as queue:
        queue.groups.create("all")
    with PersistentQueue(golden, group="all", mode="exclusive") as queue:
        first = min(queue.peek(MESSAGE_COUNT), key=lambda message: message.offset)
        assert first.headers == {"tenant": "acme", "gr\u00f6\u00dfe": "1"}


def test_a_golden_queue_knows_what_its_transactions_did(golden: Path) -> None:
    """What was committed together is there together, and its messages are finished; what was aborted is not there."""
    with PersistentQueue(golden, mode="exclusive") as queue:
        last = [message for message in queue.peek(MESSAGE_COUNT) if PLAIN_COUNT <= message.offset < TRANSACTIONS_END]
        assert [message.payload for message in last] == [
            payload(offset) for offset in range(PLAIN_COUNT, TRANSACTIONS_END)
        ]
        assert [message.headers for message in last] == [{"step": "2"}, {}, {}]


def test_a_golden_queue_remembers_what_was_decided(golden: Path) -> None:
    """Whoever asks again, a version later, is told."""
    with PersistentQueue(golden, mode="exclusive") as queue:
        assert queue.commit_prepared(COMMITTED_ID) == range(PLAIN_COUNT + 2, TRANSACTIONS_END)
        queue.abort_prepared(ABORTED_ID)
        assert not queue.commit_prepared(COMMITTED_ACKS_ID)
        with pytest.raises(TransactionStateError, match="was aborted"):
            queue.commit_prepared(ABORTED_ID)
        with pytest.raises(TransactionNotFoundError):
            queue.commit_prepared("never-there")


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_golden_queue_has_a_transaction_that_is_still_to_be_decided(golden: Path, is_committed: bool) -> None:
    """A batch file and a vote of an old version wait, and are decided either way."""
    with PersistentQueue(golden, mode="exclusive") as queue:
        (waiting,) = queue.prepared()
        assert (waiting.id, waiting.put_count, waiting.ack_count, waiting.damage) == (UNDECIDED_ID, 1, 1, ())
        offsets = {message.offset for message in queue.peek(MESSAGE_COUNT)}
        assert HELD not in offsets
        assert MESSAGE_COUNT not in offsets
        if is_committed:
            assert queue.commit_prepared(UNDECIDED_ID) == range(MESSAGE_COUNT, MESSAGE_COUNT + 1)
        else:
            queue.abort_prepared(UNDECIDED_ID)
    with PersistentQueue(golden, mode="exclusive") as queue:
        assert queue.prepared() == []
        left = {message.offset: message.payload for message in queue.peek(MESSAGE_COUNT)}
        assert left.get(HELD) == (None if is_committed else payload(HELD))
        assert left.get(MESSAGE_COUNT) == (payload(MESSAGE_COUNT) if is_committed else None)


def test_a_golden_queue_goes_on(golden: Path) -> None:
    """The present version writes behind what an old one wrote, and reads both."""
    with PersistentQueue(golden, mode="exclusive") as queue:
        assert queue.put(b"new") == MESSAGE_COUNT
    with PersistentQueue(golden, mode="shared") as queue:
        assert take_all(queue)[-1] == b"new"
