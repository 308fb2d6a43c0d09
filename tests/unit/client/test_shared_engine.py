"""A handle of the mode "shared": in one process, and in several."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from holdfast import (
    CommitUnknownError,
    ConfigError,
    FlushPolicy,
    GroupNotFoundError,
    LeaseExpiredError,
    LockTimeoutError,
    PersistentQueue,
    QueueLockedError,
    RecordTooLargeError,
    RetryableError,
    StorageError,
)
from holdfast.errors import Empty, Full
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.commit_record import Run
from holdfast.persistence.groups.vote import Vote
from holdfast.persistence.log.segment_writer import SegmentWriter
from holdfast.persistence.ownership.owner_lock import is_owned
from holdfast.queue.client import link, shared_engine
from holdfast.queue.client.membership import Membership
from holdfast.queue.consumer.read_side import MakeVote, ReadSide
from holdfast.queue.dispatch.taken_runs import TakenRuns
from holdfast.queue.producer.write_side import WriteSide
from support.processes.children import child, run_script
from support.processes.threads import Threads, wait_until


def _hold(path: Path, ready: Path) -> None:
    with PersistentQueue(path, mode="shared"):
        ready.touch()
        signal.pause()


def _wait_for(path: Path) -> None:
    while not path.exists():
        os.sched_yield()


def test_the_first_handle_owns_the_queue_and_the_second_is_its_client(tmp_path: Path) -> None:
    """Both put and take."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared") as first,
        PersistentQueue(tmp_path / "q", mode="shared") as second,
    ):
        assert (first.is_owner, second.is_owner) == (True, False)
        assert [first.put(b"a"), second.put(b"b")] == [0, 1]
        assert [second.get(timeout=5), first.get(timeout=5)] == [b"a", b"b"]


def test_tasks_are_counted_before_the_owner_publishes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is synced: what a handle has put, or has taken, is not yet to be seen in the files."""
    with (
        PersistentQueue(tmp_path / "q", flush=FlushPolicy.never()) as owner,
        PersistentQueue(tmp_path / "q") as putter,
        PersistentQueue(tmp_path / "q") as taker,
    ):
        monkeypatch.setattr(SegmentWriter, "publish", lambda writer: None)
        owner.put(b"1")
        assert owner.unfinished_tasks == 1
        putter.put(b"2")
        assert putter.unfinished_tasks == owner.unfinished_tasks == 2
        assert taker.unfinished_tasks == 0
        assert [taker.get(timeout=5), taker.get(timeout=5)] == [b"1", b"2"]
        assert taker.unfinished_tasks == 2
        for each in (owner, putter, taker):
            each.task_done()
            each.task_done()
            each.join()


def test_a_client_takes_over_if_the_owner_is_killed_and_keeps_what_it_has_in_hand(tmp_path: Path) -> None:
    """Nothing that was put is lost, and nothing that was acknowledged comes again."""
    path, ready = tmp_path / "q", tmp_path / "ready"
    with child(lambda: _hold(path, ready)) as owner:
        _wait_for(ready)
        with PersistentQueue(path, mode="shared") as queue:
            assert not queue.is_owner
            queue.put_many([b"a", b"b"])
            delivery = queue.receive(timeout=5)
            owner.kill()
            owner.wait()
            assert queue.put(b"c") == 2
            assert queue.is_owner
            delivery.ack()
            assert [queue.get(timeout=5), queue.get(timeout=5)] == [b"b", b"c"]
            assert queue.stats().depth == 0


@pytest.mark.parametrize("is_owner", [True, False])
def test_settings_that_a_handle_changes_count_for_it_at_once(tmp_path: Path, is_owner: bool) -> None:
    """Whatever it asked for when it was opened; the owner changes them."""
    path = tmp_path / "q"
    with (
        PersistentQueue(path, mode="shared", record_bytes_max=10) as first,
        PersistentQueue(path, mode="shared", record_bytes_max=10) as second,
    ):
        queue = first if is_owner else second
        queue.configure(record_bytes_max=20, max_deliveries=3)
        assert (queue.settings["record_bytes_max"], queue.settings["max_deliveries"]) == (20, 3)
        assert queue.put(bytes(20)) == 0
        other = second if is_owner else first
        assert other.put_many([bytes(20)]) == range(1, 2)  # what it refused before is looked up anew
        assert (other.settings["record_bytes_max"], other.settings["max_deliveries"]) == (20, 3)
        queue.configure(maxsize=7)
        assert other.maxsize == 7
        with pytest.raises(RecordTooLargeError):
            other.put(bytes(21))
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.settings["record_bytes_max"] == 20


def test_a_handle_that_may_not_own_is_only_a_client(tmp_path: Path) -> None:
    """The owner may be in the same process."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared") as owner,
        PersistentQueue(tmp_path / "q", mode="shared", can_own=False) as client,
    ):
        client.put(b"a")
        assert not client.is_owner
        assert owner.get(timeout=5) == b"a"


def test_a_handle_that_may_not_own_works_alone_and_keeps_what_it_has_in_hand(tmp_path: Path) -> None:
    """It owns for the length of each call, so another process may own between two of them."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="shared", can_own=False) as alone:
        assert alone.put_many([b"a", b"b", b"c"]) == range(3)
        delivery = alone.receive(timeout=5)
        assert not alone.is_owner
        with PersistentQueue(path, mode="exclusive") as between:
            assert between.get(timeout=0) == b"b"
        delivery.ack()
        with alone.transaction() as part:
            part.ack(part.receive(timeout=5))
            part.put(b"d")
        with PersistentQueue(path, mode="shared") as owner:
            assert owner.is_owner
            assert alone.get(timeout=5) == b"d"
        with pytest.raises(Empty):
            alone.get(timeout=0.0)


def test_only_a_shared_handle_may_give_up_owning(tmp_path: Path) -> None:
    """The others own what they open."""
    with pytest.raises(ConfigError, match="can_own"):
        PersistentQueue(tmp_path / "q", mode="exclusive", can_own=False)


def test_an_exclusive_handle_between_two_owners_keeps_what_a_client_has_sent_and_what_it_has_in_hand(
    tmp_path: Path,
) -> None:
    """The client lives: its put is not done twice, and its delivery is given to no other process."""
    path, ready = tmp_path / "q", tmp_path / "ready"
    with child(lambda: _hold(path, ready)) as owner:
        _wait_for(ready)
        with PersistentQueue(path, mode="shared") as client:
            client.put_many([b"a", b"b"])
            delivery = client.receive(timeout=5)
            owner.kill()
            owner.wait()
            with PersistentQueue(path, mode="exclusive") as between:
                assert between.get(timeout=0) == b"b"
                assert between.stats().in_flight == 1
            delivery.ack()
            assert client.stats().depth == 0


def test_a_wait_for_messages_ends_and_takes_nothing(tmp_path: Path) -> None:
    """Of the owner's own handle, and of a client's."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared") as owner,
        PersistentQueue(tmp_path / "q", mode="shared") as client,
    ):
        for queue in (owner, client):
            queue.put(b"a")
            queue.wait_for_more(0.1)
            assert queue.get(timeout=5) == b"a"


def test_verbs_and_settings_go_to_the_owner(tmp_path: Path) -> None:
    """They count for every handle."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared") as owner,
        PersistentQueue(tmp_path / "q", mode="shared") as client,
    ):
        client.pause(reason="maintenance")
        with pytest.raises(Empty):
            owner.get(timeout=0.0)
        owner.resume()
        client.configure(maxsize=1)
        assert (client.maxsize, client.settings["maxsize"]) == (1, 1)
        owner.put(b"a")
        with pytest.raises(Full):
            client.put_nowait(b"b")
        assert client.purge() == 1


def test_handles_of_both_modes_keep_each_other_out_and_say_how_to_share(tmp_path: Path) -> None:
    """Whichever is open first stays."""
    for first, second in (("exclusive", "shared"), ("shared", "exclusive")):
        with (
            PersistentQueue(tmp_path / first, mode=first),  # type: ignore[arg-type]
            pytest.raises(QueueLockedError, match="mode='shared'"),
        ):
            PersistentQueue(tmp_path / first, mode=second)  # type: ignore[arg-type]
        PersistentQueue(tmp_path / first, mode=second).close()  # type: ignore[arg-type]


def test_another_setting_is_refused_and_leaves_nothing_open(tmp_path: Path) -> None:
    """From a client as from the owner's process."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared", maxsize=5),
        pytest.raises(ConfigError, match="maxsize"),
    ):
        PersistentQueue(tmp_path / "q", mode="shared", maxsize=6)
    with pytest.raises(ConfigError, match="maxsize"):
        PersistentQueue(tmp_path / "q", mode="shared", maxsize=6)
    PersistentQueue(tmp_path / "q", mode="exclusive").close()


def test_an_opening_that_fails_late_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither lock nor thread, wherever it fails."""
    for name in ("LocalEngine", "Upkeep", "SharedConsumer"):

        def fail(*_: object, **__: object) -> None:
            raise StorageError("a disk that fails")

        with monkeypatch.context() as patch:
            patch.setattr(shared_engine, name, fail)
            with pytest.raises(StorageError, match="a disk that fails"):
                PersistentQueue(tmp_path / "q", mode="shared")
        PersistentQueue(tmp_path / "q", mode="exclusive").close()


def test_a_handle_that_is_dropped_is_closed_with_a_warning(tmp_path: Path) -> None:
    """The next process may own at once."""
    queues = [PersistentQueue(tmp_path / "q", mode="shared")]
    queues[0].put(b"a")
    with pytest.warns(ResourceWarning, match="dropped and not closed"):
        queues.clear()
    wait_until(lambda: _is_free(tmp_path / "q"))


def test_closing_a_dropped_handle_may_fail_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No caller hears of it."""
    queues = [PersistentQueue(tmp_path / "q", mode="shared")]
    engine = queues[0]._engine
    assert isinstance(engine, shared_engine.SharedEngine)
    leave = engine.membership.leave

    def fail() -> None:
        leave()
        raise StorageError("a disk that fails")

    monkeypatch.setattr(engine.membership, "leave", fail)
    with pytest.warns(ResourceWarning):
        queues.clear()
    wait_until(lambda: "a disk that fails" in caplog.text)
    wait_until(lambda: _is_free(tmp_path / "q"))


def _is_free(path: Path) -> bool:
    try:
        PersistentQueue(path, mode="exclusive").close()
    except QueueLockedError:
        return False
    return True


def test_a_process_that_ends_without_closing_lets_the_next_one_own(tmp_path: Path) -> None:
    """What it had in hand comes again at once, and it does not wait for its threads."""
    run_script(
        "import sys\n"
        "from holdfast import PersistentQueue\n"
        "owner, client = (PersistentQueue(sys.argv[1], mode='shared') for _ in range(2))\n"
        "client.put_many([b'a', b'b'])\n"
        "kept = client.receive(timeout=5), owner.receive(timeout=5)\n",
        tmp_path / "q",
    )
    with PersistentQueue(tmp_path / "q", mode="shared") as queue:
        assert queue.is_owner
        assert [queue.get(timeout=1), queue.get(timeout=1)] == [b"a", b"b"]


def test_an_owner_that_is_stopped_answers_when_it_continues(tmp_path: Path) -> None:
    """A put of a client waits for that; one that waited too long does not know, and was committed once."""
    path, ready = tmp_path / "q", tmp_path / "ready"
    with child(lambda: _hold(path, ready)) as owner:
        _wait_for(ready)
        with PersistentQueue(path, mode="shared") as queue:
            queue.put(b"a")
            owner.stop()
            threads, offsets = Threads(), list[int]()
            threads.start(lambda: offsets.append(queue.put(b"b", timeout=0.1)))
            os.kill(owner.pid, signal.SIGCONT)
            threads.join()
            assert offsets == [1]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(link, "GRACE_SECONDS", 0.2)
                owner.stop()
                with pytest.raises(CommitUnknownError, match="has not answered") as caught:
                    queue.put(b"c", timeout=0.1)
            os.kill(owner.pid, signal.SIGCONT)
            assert len(caught.value.nonce) == 16
            assert queue.put(b"d") in (2, 3)
            assert [queue.get(timeout=5) for _ in range(2)] == [b"a", b"b"]


def test_a_process_that_was_found_dead_has_lost_what_it_had_in_hand(tmp_path: Path) -> None:
    """Its session file is gone, as after a stop beyond the lease: it begins another session by itself."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared"),
        PersistentQueue(tmp_path / "q", mode="shared") as client,
    ):
        client.put(b"a")
        delivery = client.receive(timeout=5)
        engine = client._engine
        assert isinstance(engine, shared_engine.SharedEngine)
        engine._finder._session.end()
        engine.membership._drop(engine.membership._link)  # type: ignore[arg-type]  # as after a stop
        with pytest.raises(LeaseExpiredError):
            delivery.ack()
        assert client.get(timeout=5) == b"a"


def test_a_socket_that_was_removed_is_there_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Within about a second; those that are connected do not notice."""
    socket = tmp_path / "q" / ".owner" / "socket"
    with PersistentQueue(tmp_path / "q", mode="shared") as owner:
        with PersistentQueue(tmp_path / "q", mode="shared") as client:
            socket.unlink()
            assert client.put(b"a") == 0
            wait_until(socket.exists)
        with PersistentQueue(tmp_path / "q", mode="shared") as client:
            assert not client.is_owner
            assert client.put(b"b") == 1
        assert owner.is_owner
    assert "it is there again" in caplog.text
    assert not socket.exists()


def test_an_owner_without_its_lock_file_lets_others_own(tmp_path: Path) -> None:
    """All of ``.owner/`` was removed. Sessions end with it, messages do not; there are never two owners."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared") as first,
        PersistentQueue(tmp_path / "q", mode="shared") as second,
    ):
        assert [first.put(b"a"), second.put(b"b")] == [0, 1]
        shutil.rmtree(tmp_path / "q" / ".owner")
        wait_until(lambda: not first.is_owner)
        assert [first.put(b"c"), second.put(b"d")] == [2, 3]  # the first one waits until it has closed the queue
        assert (first.is_owner, second.is_owner) == (True, False)
        assert [second.get(timeout=5) for _ in range(4)] == [b"a", b"b", b"c", b"d"]


def test_a_queue_that_was_moved_is_owned_at_its_new_place(tmp_path: Path) -> None:
    """The handles of the old place say that it is gone."""
    with ExitStack() as opened:
        queue = opened.enter_context(PersistentQueue(tmp_path / "q", mode="shared"))
        queue.put(b"a")
        (tmp_path / "q").rename(tmp_path / "moved")
        wait_until(lambda: not queue.is_owner)
        with pytest.raises(StorageError, match="No such file"):
            queue.put(b"b")
        with PersistentQueue(tmp_path / "moved", mode="shared") as moved:
            assert moved.is_owner
            assert moved.get(timeout=5) == b"a"


def test_an_owner_that_closes_waits_for_a_reservation_that_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held then, and the next owner has it; its client asks that one, and gets the same."""
    has_begun, may_go_on = threading.Event(), threading.Event()
    reserve, taken = ReadSide.reserve, []

    def held_up(side: ReadSide, runs: TakenRuns, make_vote: MakeVote) -> Vote | None:
        def vote(runs: tuple[Run, ...]) -> Vote:
            has_begun.set()
            assert may_go_on.wait(30)
            return make_vote(runs)

        return reserve(side, runs, vote)

    monkeypatch.setattr(ReadSide, "reserve", held_up)
    owner = PersistentQueue(tmp_path / "q", mode="shared")
    with PersistentQueue(tmp_path / "q", mode="shared") as client:
        client.put_many([b"a", b"b"])
        threads = Threads()
        threads.start(lambda: taken.append(client.reservations.take()))
        assert has_begun.wait(30)
        threads.start(owner.close)
        wait_until(lambda: owner._lifecycle.refusal is not None)
        may_go_on.set()
        threads.join()
        assert client.reservations.held() == taken
        assert [each.payload for each in client.reservations.read(taken[0], pytest.fail)] == [b"a", b"b"]
        client.reservations.commit(taken[0])
        assert client.is_owner
        assert client.stats().depth == 0


def test_a_shared_handle_waits_for_one_that_has_the_queue_alone_as_long_as_it_is_told(
    tmp_path: Path, threads: Threads
) -> None:
    """It is refused at once without lock_timeout."""
    alone = PersistentQueue(tmp_path / "q", mode="exclusive")
    with pytest.raises(QueueLockedError, match="open both with mode='shared'"):
        PersistentQueue(tmp_path / "q", mode="shared")
    with pytest.raises(LockTimeoutError, match=r"after 0\.1 s"):
        PersistentQueue(tmp_path / "q", mode="shared", lock_timeout=0.1)
    threads.start(lambda: PersistentQueue(tmp_path / "q", mode="shared", lock_timeout=60).close())
    wait_until(lambda: is_owned(OsStorage(), tmp_path / "q"))
    alone.close()
    threads.join()


def test_a_group_is_deleted_through_any_handle_once_nothing_of_it_is_in_hand(tmp_path: Path) -> None:
    """Though the owner has had it open. A handle that reads for it finds it gone, and one made anew is empty."""
    path = tmp_path / "q"
    with (
        PersistentQueue(path, mode="shared") as owner,
        PersistentQueue(path, mode="shared", can_own=False) as client,
    ):
        client.groups.create("audit")
        client.put_many([b"a", b"b"])
        with PersistentQueue(path, mode="shared", group="audit") as audit:
            delivery = audit.receive(timeout=5)
            for each in (owner, client):
                with pytest.raises(QueueLockedError, match=r"messages of group 'audit' of .* are in hand"):
                    each.groups.delete("audit")
            delivery.ack()
            with pytest.raises(QueueLockedError, match="this handle reads for group 'audit'"):
                audit.groups.delete("audit")
            client.groups.delete("audit")
            assert "audit" not in owner.groups.list()
            with pytest.raises(GroupNotFoundError):
                audit.get(timeout=0)
            owner.groups.create("audit", start="latest")
            with pytest.raises(Empty):
                audit.get(timeout=0)
            client.put(b"c")
            assert audit.get(timeout=5) == b"c"
        assert owner.get_many(3, timeout=5) == [b"a", b"b", b"c"]
        owner.groups.delete("audit")
        client.groups.create("other")
        client.groups.delete("other")
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.recovery.clean
        assert queue.groups.list() == ["default"]


def test_who_waits_for_messages_of_a_group_that_is_deleted_hears_of_it(tmp_path: Path, threads: Threads) -> None:
    """In the owner's process, and in a client's."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="shared") as owner:
        owner.groups.create("audit")
        with (
            PersistentQueue(path, mode="shared", group="audit") as near,
            PersistentQueue(path, mode="shared", group="audit", can_own=False) as far,
        ):
            raised: list[Exception] = []

            def wait(queue: PersistentQueue) -> None:
                with pytest.raises(GroupNotFoundError) as caught:
                    queue.get(timeout=60)
                raised.append(caught.value)

            for each in (near, far):
                threads.start(partial(wait, each))
            time.sleep(0.1)  # they wait, or will: both hear of it
            owner.groups.delete("audit")
            owner.put(b"a")
            threads.join()
            assert len(raised) == 2


def test_the_queue_may_come_to_ask_for_more_syncs_than_a_handle_that_is_open(tmp_path: Path) -> None:
    """Its own wish counts no more then."""
    path, every = tmp_path / "q", FlushPolicy.every(commits=10, seconds=1.0)
    with (
        PersistentQueue(path, flush=FlushPolicy.never()) as owner,
        PersistentQueue(path, flush=every) as client,
    ):
        assert client.settings["flush"] == FlushPolicy.never()
        owner.configure(flush=FlushPolicy.every_commit())
        assert client.settings["flush"] == FlushPolicy.every_commit()


@pytest.mark.parametrize(("flush", "count"), [(FlushPolicy.never(), 1), (FlushPolicy.every_commit(), 0)], ids=str)
def test_a_client_that_is_closed_has_synced_what_it_has_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: FlushPolicy, count: int
) -> None:
    """By its owner, unless each commit was synced already."""
    flushed: list[int] = []
    monkeypatch.setattr(WriteSide, "flush", lambda side: flushed.append(side.next_offset))
    with PersistentQueue(tmp_path / "q", flush=flush), PersistentQueue(tmp_path / "q") as client:
        client.put(b"a")
        client.close()
        assert flushed == [1] * count


def test_a_client_that_cannot_have_it_synced_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And is closed."""
    with PersistentQueue(tmp_path / "q", flush=FlushPolicy.never()), PersistentQueue(tmp_path / "q") as client:
        client.put(b"a")

        def silent(*_: object) -> None:
            raise RetryableError("the owner is stopped")

        monkeypatch.setattr(Membership, "ask_present", silent)
        client.close()
    assert "may not be synced: the owner is stopped" in caplog.text
