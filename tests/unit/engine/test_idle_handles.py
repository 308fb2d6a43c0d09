"""An idle queue lets go of the handles that it can do without, and nobody notices."""

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from holdfast import PersistentQueue, StorageError
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.queue.engine import idle_handles
from holdfast.queue.protocol.messages import Put
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.owners.sides import owned_queue
from support.processes.threads import Threads, wait_until

HANDLES_MAX = 4  # two locks, the data file being written, the position file

needs_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts what /proc/self/fd shows")


class ScarceStorage(OsStorage):
    """Has no handle left for a file of that name."""

    lacking = ""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        if self.lacking and path.name.endswith(self.lacking):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open(path, create=create, writable=writable)


def handles_in(path: Path) -> list[str]:
    """Return the files below ``path`` that this process has open, once for each handle."""
    names = []
    for each in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{each}")
        except FileNotFoundError:  # the listing's own
            continue
        if name.startswith(f"{path}/"):
            names.append(name)
    return sorted(names)


def rest(queue: PersistentQueue) -> None:
    """Let so much time pass that nothing was used for a while."""
    assert queue._engine.idle_handles is not None
    queue._engine.idle_handles.look()
    queue._engine.idle_handles.look()


@needs_proc
def test_twenty_idle_queues_have_few_handles_each(tmp_path: Path) -> None:
    """After puts and takes, and again after more of them."""
    queues = [PersistentQueue(tmp_path / f"q{number}", mode="exclusive", clock=FakeClock()) for number in range(20)]
    for _ in range(2):
        for queue in queues:
            queue.put_many([b"a", b"b"])
            assert queue.get(timeout=0) == b"a"
            queue.receive(timeout=0).ack()
        for queue in queues:
            rest(queue)
            assert len(handles_in(queue.path)) <= HANDLES_MAX, handles_in(queue.path)
    for queue in queues:
        queue.close()
        assert not handles_in(queue.path)


@needs_proc
def test_a_queue_comes_to_rest_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to ask for it."""
    monkeypatch.setattr(idle_handles, "REST_SECONDS", 0.02)
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put(b"a")
        assert queue.get(timeout=0) == b"a"
        wait_until(lambda: len(handles_in(queue.path)) <= HANDLES_MAX)


@needs_proc
def test_handles_that_are_in_use_stay_open(tmp_path: Path) -> None:
    """A queue that is busy does not open files all the time."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", clock=FakeClock()) as queue:
        queue.put_many([bytes(100)] * 200)
        for _ in range(3):
            queue.put(b"a")
            queue.get_many(64)
            assert queue._engine.idle_handles is not None
            queue._engine.idle_handles.look()
            names = handles_in(queue.path)
            assert any(name.endswith("write.mark") for name in names)
            assert sum(name.endswith(".data") for name in names) > 1, names


@needs_proc
def test_an_owner_that_was_asked_of_no_group_comes_to_rest(tmp_path: Path) -> None:
    """It has a write side only, and puts again."""
    with owned_queue(OsStorage(), tmp_path / "orders") as owner:
        idle = owner._writes.idle_handles
        assert idle is not None
        for number in range(2):
            put = Put(number.to_bytes(16, "little"), True, "", {}, 0)
            assert owner.append(1, put, (b"a",)) == (range(number, number + 1), True)
            owner.write_side.settle(number + 1, 1, synced=True)
            assert any(name.endswith("write.mark") for name in handles_in(tmp_path))
            for _ in range(2):
                idle.look()
            assert not any(name.endswith("write.mark") for name in handles_in(tmp_path))


def test_a_reader_goes_on_where_it_was(tmp_path: Path) -> None:
    """In the middle of a file, at its end, and from one file to the next."""
    payloads = [b"%d " % number * 300 for number in range(400)]
    taken: list[bytes] = []
    with PersistentQueue(tmp_path / "orders", mode="exclusive", data_file_bytes=2**16) as queue:
        for start in range(0, len(payloads), 40):
            queue.put_many(payloads[start : start + 40])
            rest(queue)
            taken += queue.get_many(15)
            rest(queue)
        while len(taken) < len(payloads):
            taken += queue.get_many(33, timeout=0)
            rest(queue)
        assert not queue.recovery.damage
    assert taken == payloads


def test_messages_that_wait_aside_are_found_after_a_rest(tmp_path: Path) -> None:
    """They are read again where they stand in the log."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", backoff=[], max_deliveries=None) as queue:
        queue.put_many([b"a", b"b", b"c"])
        queue.put(b"first", priority=9)
        queue.receive(timeout=0).nack()
        rest(queue)
        assert [queue.get(timeout=0) for _ in range(4)] == [b"first", b"a", b"b", b"c"]


def test_who_looks_from_outside_sees_what_is_put_after_a_rest(tmp_path: Path) -> None:
    """``write.mark`` is opened again for it."""
    with (
        PersistentQueue(tmp_path / "orders", mode="exclusive") as queue,
        PersistentQueue(queue.path, mode="read_only") as outside,
    ):
        for number in range(3):
            queue.put(b"%d" % number)
            assert [message.payload for message in outside.peek(9)] == [b"%d" % each for each in range(number + 1)]
            rest(queue)


def test_a_take_that_cannot_open_the_file_again_loses_nothing(tmp_path: Path) -> None:
    """The process has no handle left for a moment; then all messages come in order."""
    storage = ScarceStorage()
    with PersistentQueue(tmp_path / "orders", mode="exclusive", storage=storage) as queue:
        queue.put_many([b"a", b"b"])
        assert queue.get(timeout=0) == b"a"
        handle_of(queue).require_read_side()._dispatcher._ready.clear()  # what was read ahead is read from the file now
        handle_of(queue).require_read_side()._dispatcher.must_read_anew = True
        rest(queue)
        queue.put(b"c")
        storage.lacking = ".data"
        for _ in range(2):
            with pytest.raises(StorageError):
                queue.get(timeout=0)
        storage.lacking = ""
        assert [queue.get(timeout=0) for _ in range(2)] == [b"b", b"c"]
        assert not queue.recovery.damage


def test_a_reader_that_cannot_open_its_file_again_stays_at_its_place(tmp_path: Path) -> None:
    """It reads on there, and reports nothing as lost."""
    storage = ScarceStorage()
    with PersistentQueue(tmp_path / "orders", mode="exclusive", storage=storage) as queue:
        queue.put(b"a")
        assert queue.get(timeout=0) == b"a"
        rest(queue)
        queue.put_many([b"b", b"c"])
        reader = handle_of(queue).require_read_side()._dispatcher._cursor._reader
        storage.lacking = ".data"
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            reader.read(9, handle_of(queue).require_read_side().log_end)
        storage.lacking = ""
        assert queue.get_many(9, timeout=0) == [b"b", b"c"]
        assert not queue.recovery.damage


def test_a_mark_that_cannot_be_opened_again_fails_the_put_before_anything_is_written(tmp_path: Path) -> None:
    """Without it nobody knows whether another owner has opened the queue; the next put may succeed."""
    storage = ScarceStorage()
    with (
        PersistentQueue(tmp_path / "orders", mode="exclusive", storage=storage) as queue,
        PersistentQueue(queue.path, mode="read_only") as outside,
    ):
        queue.put(b"a")
        rest(queue)
        storage.lacking = "write.mark"
        with pytest.raises(StorageError, match="looking for other owners"):
            queue.put(b"b")
        assert len(outside.peek(9)) == 1
        storage.lacking = ""
        assert queue.put(b"c") == 1
        assert len(outside.peek(9)) == 2


def test_a_rest_waits_for_nobody_who_is_at_work(tmp_path: Path, threads: Threads) -> None:
    """Neither for a take nor for a sync: the thread that looks has other queues to look at."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put(b"a")
        read_side, writer = handle_of(queue).require_read_side(), handle_of(queue).require_write_side()._writer
        is_over = threading.Event()
        with read_side._take_lock, writer._sync_lock:
            threads.start(lambda: (rest(queue), is_over.set()))
            assert is_over.wait(10)
        assert queue.get(timeout=0) == b"a"
