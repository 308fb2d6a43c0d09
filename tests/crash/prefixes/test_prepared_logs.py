"""The prepared log crashed at each change of the disk, and what it promises to those beside it."""

import logging
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import CommitUnknownError, FencedError, FlushPolicy, PersistentQueue
from holdfast.persistence.format.constants import FRAMES_START
from proof.crash_states.search import Care, Search, Task
from support.builders.handles import handle_of
from support.builders.transactions import prepared_ids, waiting
from support.models.prepared_log_model import ModelLog, read_log
from support.storages.no_locks import UnlockedStorage
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
FULL = bytes(1900)
"""Two of them fill a segment."""


@pytest.fixture(autouse=True)
def _alone(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails here is logged; and nothing moves by itself."""
    caplog.set_level(logging.CRITICAL, "holdfast")
    for verb in ("watch", "unwatch"):
        monkeypatch.setattr(f"holdfast.queue.prepared.log_moves.{verb}", lambda *_: None)


def open_queue(storage: SimulatedStorage) -> PersistentQueue:
    """Open the queue, with the smallest files."""
    return PersistentQueue(
        ROOT, mode="exclusive", flush=FlushPolicy.every_commit(), data_file_bytes=16 * 2**10, storage=storage
    )


def prepare(queue: PersistentQueue, name: str, *payloads: bytes, takes: bool = False) -> None:
    """Prepare puts under an id, and perhaps an acknowledgement."""
    tx = queue.begin()
    if takes:
        tx.ack(tx.receive(timeout=0))
    tx.put_many(payloads)
    tx.prepare(name)


def log_of(storage: SimulatedStorage) -> ModelLog:
    """Return what the second reader finds."""
    files = {path.name: content for path, content in storage.tree().items() if path.parent == ROOT / "prepared"}
    return read_log({name: content for name, content in files.items() if content is not None})


@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    "workload",
    [
        "prepare_small commit_first",
        "prepare_taking abort_first",
        "prepare_small prepare_full move commit_first",
        "prepare_full prepare_full commit_first commit_first kill",
        "prepare_small prepare_taking commit_last reopen abort_first",
        "begin prepare prepare_small kill commit move",
    ],
)
@pytest.mark.parametrize("policy", ["every_commit", "never"])
def test_what_is_prepared_survives_a_crash_at_any_instant(workload: str, policy: str) -> None:
    """While segments are begun, filled, left by moves, emptied by an opening, and removed."""
    search = Search(Task("used", policy))
    search.alone(tuple(workload.split()), 0, Care(1))
    assert len(search.tally.digests) > 20


def test_a_commit_record_ends_once_its_entry_is_void_on_the_disk() -> None:
    """The record may go then: nothing else may say any more that the entry was committed."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        for name in ("one", "two"):
            prepare(queue, name, name.encode())
        queue.commit_prepared("one")
        assert handle_of(queue).require_batches().prepared.sync()
        left = log_of(storage.crash_dropping_unsynced())
        assert [entry.id for entry in left.not_ended] == ["two"]


def test_segments_go_one_by_one_and_the_oldest_first() -> None:
    """Each removal is durable before the next one, while the queue is open and at its opening."""
    for opens in (False, True):
        storage = SimulatedStorage()
        with open_queue(storage) as queue:
            for number in range(4):
                prepare(queue, f"t{number}", FULL, FULL)
            assert len(log_of(storage).segments) == 4
            crashed = storage.crash_keeping_all() if opens else storage
            removed: list[str] = []

            def note(verb: str, path: Path, disk: SimulatedStorage = crashed, removed: list[str] = removed) -> None:
                if verb == "remove" and path.suffix == ".log":
                    durable = [each.name for each in log_of(disk.crash_dropping_unsynced()).segments]
                    assert not set(removed) & set(durable), f"{removed} went, and may be back: {durable}"
                    removed.append(path.name)

            crashed.before_verb = note
            if opens:
                with open_queue(crashed) as again:
                    assert len(again.prepared()) == 4
            else:
                for number in range(4):
                    queue.commit_prepared(f"t{number}")
                handle_of(queue).require_batches().prepared.sync()
            crashed.before_verb = None
            assert removed == sorted(removed)
            assert len(removed) >= 3


def test_an_owner_that_was_replaced_does_not_say_that_it_has_prepared() -> None:
    """Where locks do not hold, the token tells: behind the sync, as in the data log."""
    storage = UnlockedStorage()
    first = open_queue(storage)
    prepare(first, "before", b"one")
    with open_queue(storage) as second:
        with pytest.raises((CommitUnknownError, FencedError)):
            prepare(first, "late", b"two")
        assert prepared_ids(second) == ["before"]
    with suppress(FencedError):
        first.close()


def test_a_vote_whose_puts_are_among_lost_bytes_stays_in_doubt() -> None:
    """It is not taken for aborted: who prepared it may have been told. Its caller aborts it by its id."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put_many([b"one", b"two"])
        prepare(queue, "lost", b"new", takes=True)
        prepare(queue, "other", b"other")
    path = ROOT / "prepared" / "0000000001.log"
    entry = log_of(storage).segments[0].entries[0]
    content = storage.tree()[path]
    assert content is not None
    assert entry.puts == (b"new",)
    with storage.open(path) as file:
        end = content.rindex(b'"id"', 0, content.index(b"other")) if b'"id"' in content else FRAMES_START + 300
        file.write_at((bytes(end - FRAMES_START + 100),), FRAMES_START)
        file.sync()
    with open_queue(storage) as queue:
        found = {each.id: each for each in queue.prepared()}
        assert found["lost"].damage
        queue.abort_prepared("lost")
        assert set(prepared_ids(queue)) <= {"other"}
        assert waiting(queue) == [b"one", b"two"]
