"""Damaged batch files in ``prepared/``: reported, never half applied, and nothing else is touched."""

import random
from pathlib import Path

import pytest

from holdfast import CorruptionError, PersistentQueue, PreparedTransaction, TransactionStateError, verify
from holdfast.persistence.format.constants import (
    FRAME_HEADER_BYTES,
    FRAMES_START,
    HEADER_BLOCK_BYTES,
    HEADER_COPY_POSITIONS,
)
from support.builders.log_parts import put
from support.builders.transactions import ORDERS, cut_power, open_queue, waiting
from support.storages.simulated_storage import SimulatedStorage

FILE = ORDERS / "prepared" / "t.batch"
PUTS = {"small": [b"message number %d" % n for n in range(4)], "large": [b"%d" % n * 6000 for n in range(4)]}


def build(size: str = "small", *, acks: bool = True) -> tuple[SimulatedStorage, bytes]:
    """Return a closed queue with one prepared transaction, and the bytes of its batch file."""
    storage = SimulatedStorage()
    queue = open_queue(storage)
    queue.put_many([b"one", b"two"])
    tx = queue.begin()
    if acks:
        tx.ack(tx.receive(timeout=0))
    tx.put_many(PUTS[size])
    tx.prepare("t")
    storage = cut_power(storage, queue)
    open_queue(storage).close()  # what is small has a file of its own from here on
    content = storage.tree()[FILE]
    assert content is not None
    return storage, content


def described(queue: PersistentQueue) -> PreparedTransaction:
    """Return the one transaction that is in doubt."""
    (found,) = queue.prepared()
    assert found.id == "t"
    return found


def judge(storage: SimulatedStorage, puts: list[bytes]) -> bool:
    """Open a queue whose prepared file was damaged and hold it to the promises; return whether it was reported.

    Where it can be committed what comes is right; where not nothing is applied, and aborting gives everything back.
    """
    report = verify(ORDERS, storage=storage)
    assert report.lost == ()
    assert any("prepared" in note for note in report.notes)
    with open_queue(storage.crash_keeping_all()) as queue:
        found = described(queue)
        assert found.ack_count == 1
        assert waiting(queue) == [b"two"]
        if not found.damage:
            assert queue.commit_prepared("t") == range(2, 2 + len(puts))
            assert waiting(queue) == [b"two", *puts]
            return not report.ok
        assert not report.ok, "verify has missed it"
        with pytest.raises(CorruptionError, match="abort it"):
            queue.commit_prepared("t")
        assert described(queue).damage
        assert waiting(queue) == [b"two"], "half of it was applied"
        assert queue.stats().next_offset == 2
        queue.abort_prepared("t")
        queue.abort_prepared("t")
        with pytest.raises(TransactionStateError, match="was aborted"):
            queue.commit_prepared("t")
        assert queue.prepared() == []
        assert waiting(queue) == [b"one", b"two"], "the vote's messages come back"
    return True


def regions(content: bytes) -> dict[str, range]:
    """Return the parts of a batch file of small messages."""
    first, second = HEADER_COPY_POSITIONS
    decision, seal = content.index(b'{"id"'), content.rindex(b"\x02", 0, len(content) - 20)
    return {
        "first copy of the header": range(first, first + HEADER_BLOCK_BYTES),
        "second copy of the header": range(second, second + HEADER_BLOCK_BYTES),
        "frame of the first message": range(FRAMES_START, FRAMES_START + FRAME_HEADER_BYTES),
        "first message": range(FRAMES_START + FRAME_HEADER_BYTES, FRAMES_START + FRAME_HEADER_BYTES + 16),
        "messages": range(FRAMES_START, decision - FRAME_HEADER_BYTES),
        "frame of the decision": range(decision - FRAME_HEADER_BYTES, decision),
        "decision": range(decision, seal),
        "end": range(seal, len(content)),
    }


REGIONS = (
    "first copy of the header",
    "second copy of the header",
    "frame of the first message",
    "first message",
    "messages",
    "frame of the decision",
    "decision",
    "end",
)


@pytest.mark.parametrize("name", REGIONS)
def test_single_bits_are_reported_or_do_no_harm(name: str) -> None:
    """In every region of the file."""
    storage, content = build()
    region, rng = regions(content)[name], random.Random(name)
    for at in sorted(rng.sample(region, min(len(region), 12))):
        damaged = storage.crash_keeping_all()
        put(damaged, FILE, content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        reported = judge(damaged, PUTS["small"])
        assert reported or "header" in name, f"bit at {at}"


@pytest.mark.parametrize("name", REGIONS)
def test_regions_that_are_zeros_are_reported_or_do_no_harm(name: str) -> None:
    """As a disk that lost a block shows them."""
    storage, content = build()
    region = regions(content)[name]
    put(storage, FILE, content[: region.start] + bytes(len(region)) + content[region.stop :])
    assert judge(storage, PUTS["small"])


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("size", PUTS)
def test_a_file_that_was_cut_off_is_reported_or_does_no_harm(size: str, share: float) -> None:
    """Anywhere; where only its seal is gone, all that counts is there."""
    storage, content = build(size)
    put(storage, FILE, content[: int(len(content) * share)])
    assert judge(storage, PUTS[size])


def test_a_damaged_message_of_a_large_batch_is_reported_before_it_is_adopted() -> None:
    """Adoption copies nothing, so it reads everything first."""
    storage, content = build("large")
    at = FRAMES_START + 10_000
    put(storage, FILE, content[:at] + b"?" + content[at + 1 :])
    assert judge(storage, PUTS["large"])


def test_one_bad_copy_of_the_header_hinders_nothing() -> None:
    """Verify reports it; the other one is enough."""
    for position in HEADER_COPY_POSITIONS:
        storage, content = build("large")
        put(storage, FILE, content[:position] + bytes(20) + content[position + 20 :])
        assert not verify(ORDERS, storage=storage).ok
        with open_queue(storage) as queue:
            queue.commit_prepared("t")
            assert waiting(queue) == [b"two", *PUTS["large"]]
        assert verify(ORDERS, storage=storage).ok, "both copies are new"


def test_the_file_of_another_queue_is_reported_and_not_applied() -> None:
    """Somebody has copied it there."""
    storage, content = build(acks=False)
    with open_queue(storage, Path("/other")) as other:
        tx = other.begin()
        tx.put(bytes(20_000))  # in a file of its own
        tx.prepare("t")
        put(storage, Path("/other/prepared/t.batch"), content)
        assert "another queue" in described(other).damage[0].reason
        with pytest.raises(CorruptionError):
            other.commit_prepared("t")
        with pytest.raises(CorruptionError):
            tx.commit()
        tx.abort()
        assert other.prepared() == []
        assert waiting(other) == []


def test_a_file_under_another_name_is_reported_and_not_applied() -> None:
    """Somebody has copied it; the one under its own name can be decided."""
    storage, content = build(acks=False)
    put(storage, FILE.with_name("u.batch"), content)
    assert "holds transaction t" in str(verify(ORDERS, storage=storage))
    with open_queue(storage) as queue:
        assert {each.id: bool(each.damage) for each in queue.prepared()} == {"t": False, "u": True}
        with pytest.raises(CorruptionError, match="holds transaction t"):
            queue.commit_prepared("u")
        queue.abort_prepared("u")
        queue.commit_prepared("t")
        assert queue.prepared() == []
        assert waiting(queue) == [b"one", b"two", *PUTS["small"]]


def test_other_files_in_the_directory_are_left_alone() -> None:
    """Nobody knows whose they are."""
    storage, _ = build(acks=False)
    for name in ("notes.txt", ".t.batch", "t.batch~"):
        put(storage, FILE.with_name(name), b"?")
    with open_queue(storage) as queue:
        assert [each.id for each in queue.prepared()] == ["t"]
        assert queue.commit_prepared("t") == range(2, 6)
    assert "notes.txt" in storage.list(FILE.parent)


def test_verify_counts_what_is_prepared_and_changes_nothing() -> None:
    """Batches, votes, and both together as one."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two", b"three"])
        for name in ("puts", "acks", "both"):
            tx = queue.begin()
            if name != "puts":
                tx.ack(tx.receive(timeout=0))
            if name != "acks":
                tx.put(b"new")
            tx.prepare(name)
        changes = storage.mutation_count
        report = verify(ORDERS, storage=storage)
        assert report.ok
        assert report.notes == ("3 transactions are prepared",)
        assert storage.mutation_count == changes
        for name in ("puts", "acks", "both"):
            queue.commit_prepared(name)
        assert verify(ORDERS, storage=storage).notes == ()
