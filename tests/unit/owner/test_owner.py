"""The owner in a process: requests of its own handles, what it finds out about itself, and its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast import Empty, FlushPolicy, ForkedError, Full, LeaseExpiredError, PersistentQueue, StaleReceiptError
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.ownership.owner_lock import OwnerLock
from holdfast.queue.client.shared_engine import SharedEngine
from holdfast.queue.options.queue_options import Options
from holdfast.queue.owner import direct
from holdfast.queue.owner.owned_queue import Committing
from holdfast.queue.owner.owner import Owner
from holdfast.queue.producer.nonces import next_nonce
from holdfast.queue.protocol.messages import Arrived, Done, Offsets, Put, Resume, Settle, Take, Taken
from support.processes.thread_starts import no_threads
from support.processes.threads import wait_until


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PersistentQueue]:
    """A handle that owns its queue."""
    with PersistentQueue(tmp_path / "q", mode="shared", flush=FlushPolicy.never()) as queue:
        yield queue


def owner_of(queue: PersistentQueue) -> Owner:
    """Return the owner in this process."""
    assert isinstance(queue._engine, SharedEngine)
    owner = queue._engine._finder.owner
    assert owner is not None
    return owner


def never() -> bool:
    """No wait is over."""
    return False


@pytest.mark.parametrize("payloads", [[b"a"], [b"a", b"b"]])
def test_a_put_that_asks_for_a_sync_gets_it_under_any_policy(queue: PersistentQueue, payloads: list[bytes]) -> None:
    """The queue's policy never syncs."""
    owner = owner_of(queue)
    writer = owner.queue.write_side._writer
    put = Put(next_nonce(), True, "", {}, None)
    assert owner.perform(1, put, payloads, never) == (Offsets(0, len(payloads)), [])
    assert writer.synced == writer.end


def test_a_put_that_an_earlier_owner_has_done_is_not_done_again(queue: PersistentQueue) -> None:
    """Until its thread has the answer."""
    owner = owner_of(queue)
    session, nonce = queue._engine.membership.session, next_nonce()  # type: ignore[union-attr]
    record = CommitRecord(nonce.hex(), nonce, 1, 0, session=session)
    owner.queue.write_side.append_requested([b"a"], {}, record, "")
    put = Put(nonce, False, "", {}, None)
    assert owner.perform(session, put, [b"a"], never) == (Offsets(0, 1), [])
    owner.perform(session, Arrived(nonce[:8], int.from_bytes(nonce[8:], "little")), (), never)
    assert owner.queue.write_side.answer_to(nonce) is None
    again = Put(next_nonce(), False, "", {}, None)
    assert owner.perform(session, again, [b"b"], never) == (Offsets(1, 1), [])


@pytest.mark.parametrize("dedup_id", ["", "id"])
def test_a_put_of_the_owner_s_process_asks_for_a_sync_as_its_handle_does(tmp_path: Path, dedup_id: str) -> None:
    """The queue's own policy never syncs."""
    with PersistentQueue(tmp_path / "q", mode="shared", flush=FlushPolicy.never()):
        pass
    with PersistentQueue(tmp_path / "q", mode="shared", flush=FlushPolicy.every_commit()) as queue:
        writer = owner_of(queue).queue.write_side._writer
        queue.put(b"a", dedup_id=dedup_id or None)
        assert writer.synced == writer.end
        assert queue.put_many([b"b", b"c"]) == range(1, 3)
        assert writer.synced == writer.end


def test_a_put_of_the_owner_s_process_that_was_asked_before_waits_for_space(tmp_path: Path) -> None:
    """As one that comes from its own handle."""
    with PersistentQueue(tmp_path / "q", mode="shared", maxsize=1) as queue:
        owner, session = owner_of(queue), queue._engine.membership.session  # type: ignore[union-attr]
        queue.put(b"first")
        with pytest.raises(Full):
            owner.perform(session, Put(next_nonce(), False, "", {}, 0.01), [b"a"], never)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(owner.perform, session, Put(next_nonce(), False, "", {}, None), [b"a"], never)
            wait_until(lambda: bool(owner.queue.handle.capacity.space_available.waiting))
            assert queue.get(timeout=5) == b"first"
            assert waiting.result() == (Offsets(1, 1), [])


def test_poison_and_a_lost_lock_are_told_once_and_in_another_thread(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that finds out serves clients, and cannot close the owner."""
    owner, heard = owner_of(queue), threading.Semaphore(0)
    threads: list[threading.Thread] = []

    def hear() -> None:
        threads.append(threading.current_thread())
        heard.release()

    owner.on_poisoned = owner.on_displaced = hear
    monkeypatch.setattr(owner._lock, "is_in_place", lambda: False)
    for _ in range(2):
        owner._poisoned()
        owner._look_for_itself()
    assert heard.acquire(timeout=30)
    assert heard.acquire(timeout=30)
    assert not heard.acquire(blocking=False)
    assert threading.current_thread() not in threads


def test_poison_that_no_thread_can_be_started_for_is_told_later(queue: PersistentQueue) -> None:
    """Else the owner would stay, and serve no client."""
    owner, heard = owner_of(queue), threading.Semaphore(0)
    owner.on_poisoned = owner.on_displaced = heard.release
    with no_threads():
        assert not owner._poisoned()
        assert not owner._displaced()
    assert not heard.acquire(blocking=False)
    assert owner._poisoned()
    assert owner._displaced()
    assert heard.acquire(timeout=30)
    assert heard.acquire(timeout=30)


def test_an_owner_that_cannot_look_for_itself_says_so(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It looks again a second later."""

    def fail() -> NoReturn:
        raise OSError("no more handles")

    monkeypatch.setattr(owner_of(queue)._lock, "is_in_place", fail)
    owner_of(queue)._look_for_itself()
    assert "no more handles" in caplog.text


def test_a_failed_close_of_the_owner_leaves_none_that_is_closed(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a handle would ask it again and again."""
    assert isinstance(queue._engine, SharedEngine)
    finder, owner = queue._engine._finder, owner_of(queue)
    close = owner.close

    def fail() -> NoReturn:
        close()
        raise OSError("the disk is gone")

    monkeypatch.setattr(owner, "close", fail)
    with pytest.raises(OSError, match="gone"):
        finder._close_owner()
    assert finder.owner is None
    queue.put(b"a")
    assert owner_of(queue) is not owner


def test_a_close_of_the_owner_that_was_interrupted_is_continued(
    queue: PersistentQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next one that looks for an owner."""
    assert isinstance(queue._engine, SharedEngine)
    finder, owner = queue._engine._finder, owner_of(queue)
    close = owner.queue.close

    def interrupt() -> NoReturn:
        close()
        raise KeyboardInterrupt

    owner._closing.callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        finder._close_owner()
    assert finder.owner is owner
    queue.put(b"a")
    assert owner_of(queue) is not owner


def test_a_handle_of_this_process_is_told_once_that_a_lease_has_ended(queue: PersistentQueue) -> None:
    """Its call returns for sure; what else was taken away is still remembered."""
    owner = owner_of(queue)
    queue.put_many([b"a", b"b"])
    session = queue._engine.membership.session  # type: ignore[union-attr]
    number = session << 32 | 1000
    owner.perform(session, Take("default", number, 2, 0.001, None), (), never)
    side = owner.queue.group("default")
    wait_until(lambda: side.in_flight_count == 0)
    receipts = [(number, 0), (number, 1)]
    for verb in ("ack", "release"):
        with pytest.raises(LeaseExpiredError):
            owner.perform(session, Settle("default", verb, receipts), (), never)
        receipts.reverse()
    assert side.progress.taken_away == {}


def test_a_take_that_is_asked_again_has_what_it_took(queue: PersistentQueue) -> None:
    """An earlier owner may have done it; one that has nothing in hand takes."""
    owner = owner_of(queue)
    queue.put_many([b"a", b"b", b"c"])
    session = queue._engine.membership.session  # type: ignore[union-attr]
    numbers = [session << 32 | 1000, session << 32 | 1001]

    def taken(number: int) -> Sequence[bytes]:
        reply, payloads = owner.perform(session, Take("default", number, 1, None, 0.0), (), never)
        assert isinstance(reply, Taken)
        return payloads

    assert taken(numbers[0]) == [b"a"]
    assert taken(numbers[0]) == [b"a"]
    assert taken(numbers[1]) == [b"b"]


def test_a_take_of_the_owner_s_process_waits_for_messages(queue: PersistentQueue) -> None:
    """For its time, until it is not wanted any more, or until one comes; so does a fetch."""
    with pytest.raises(Empty):
        queue.receive(timeout=0.01)
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    for take in (lambda: queue.receive(timeout=60).payload, lambda: queue.get(timeout=60)):
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(take)
            wait_until(lambda: bool(owner_of(queue).queue.write_side.data_available.waiting))
            queue.put(b"a")
            assert waiting.result() == b"a"


def test_a_take_that_was_asked_before_waits_and_finishes_others_first(queue: PersistentQueue) -> None:
    """Its process has become the owner meanwhile."""
    owner, session = owner_of(queue), queue._engine.membership.session  # type: ignore[union-attr]
    queue.put(b"a")
    first, second = session << 32 | 1000, session << 32 | 1001
    owner.perform(session, Take("default", first, 1, None, 0.0), (), never)
    with ThreadPoolExecutor() as pool:
        take = Take("default", second, 1, None, 60.0, [(first, 0)])
        waiting = pool.submit(owner.perform, session, take, (), never)
        wait_until(lambda: bool(owner.queue.write_side.data_available.waiting))
        assert queue.depth() == 0
        queue.put(b"b")
        assert waiting.result()[1] == [b"b"]


def test_an_acknowledgement_in_the_owner_s_process_tells_why_it_is_refused(queue: PersistentQueue) -> None:
    """That a lease has ended is told once; what was finished before is finished."""
    owner, session = owner_of(queue), queue._engine.membership.session  # type: ignore[union-attr]
    queue.put_many([b"a", b"b"])
    ended, done = session << 32 | 1000, session << 32 | 1001
    owner.perform(session, Take("default", ended, 1, 0.001, None), (), never)
    side = owner.queue.group("default")
    wait_until(lambda: side.in_flight_count == 0)
    with pytest.raises(LeaseExpiredError):
        owner.perform(session, Settle("default", "ack", [(ended, 0)]), (), never)
    assert side.progress.taken_away == {}
    owner.perform(session, Take("default", done, 1, None, None), (), never)
    offset = next(iter(side.leased))
    for _ in range(2):
        assert owner.perform(session, Settle("default", "ack", [(done, offset)]), (), never) == (Done({}), [])


def test_a_fetch_that_is_over_takes_nothing(queue: PersistentQueue) -> None:
    """A handle that ends gives back what it has in hand; its own threads must not take that."""
    queue.put(b"a")
    with pytest.raises(Empty):
        direct.fetch(owner_of(queue).queue, "default", 1, 60.0, lambda: True)
    assert queue.get(timeout=0) == b"a"


def test_messages_that_a_transaction_commits_are_its_own() -> None:
    """For the moment of the commit."""
    assert isinstance(Committing().refusal(), StaleReceiptError)
    with pytest.raises(AssertionError):
        Committing().leave(None, is_clean=True)  # type: ignore[arg-type]


def test_two_threads_that_name_a_group_at_once_open_it_once(queue: PersistentQueue) -> None:
    """The second one finds it open behind the lock."""
    owned = owner_of(queue).queue
    assert owned._open_group("default") is owned._open_group("default")


def test_what_only_clients_of_other_processes_ask_changes_nothing_here(queue: PersistentQueue) -> None:
    """The handle of this process was known when the owner began."""
    assert owner_of(queue).perform(1, Resume("default", []), (), never) == (Done({}), [])


def test_a_forked_copy_of_an_owner_refuses_and_touches_nothing(tmp_path: Path) -> None:
    """The parent owns the queue."""
    path = tmp_path / "q"
    PersistentQueue(path, mode="exclusive").close()
    lock = OwnerLock.try_take(OsStorage(), path)
    assert lock is not None
    owner = Owner(OsStorage(), SystemClock(), path, Options("shared", "default"), lock)
    owner.begin()
    endpoint = owner._endpoint.path
    parts = owner._closing.pop_all()
    owner.forget_after_fork()
    with pytest.raises(ForkedError):
        owner.perform(1, Put(next_nonce(), False, "", {}, None), [b"a"], never)
    assert endpoint.exists()
    parts.close()
