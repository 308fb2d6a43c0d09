"""``mode="submit"``: putting into a queue that another handle owns, or nobody."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from holdfast import (
    ClosedError,
    CommitUnknownError,
    ConfigError,
    DiskFullError,
    FlushPolicy,
    Full,
    GroupNotFoundError,
    PersistentQueue,
    PoisonedError,
    QueueLockedError,
    RecordTooLargeError,
    RetryableError,
    ShutDown,
    TransactionNotFoundError,
    TransactionStateError,
    UsageError,
    transaction,
)
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.queue.remote import requester
from support.builders.handles import handle_of
from support.builders.settings import change_settings
from support.processes.children import Child, Signal, run_script
from support.processes.threads import Threads

SMALL = 64 * 2**10  # a data file; a batch of more than a quarter of it is adopted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the queue is."""
    return tmp_path / "orders"


@pytest.fixture
def owner(path: Path) -> Iterator[PersistentQueue]:
    """Who owns both sides."""
    with PersistentQueue(path, data_file_bytes=SMALL) as queue:
        yield queue


@pytest.fixture
def submitter(owner: PersistentQueue) -> Iterator[PersistentQueue]:
    """Who owns none."""
    with PersistentQueue(owner.path, mode="submit", data_file_bytes=SMALL) as queue:
        yield queue


def payloads(queue: PersistentQueue) -> list[bytes]:
    """Return all that waits."""
    return [message.payload for message in queue.peek(10_000)]


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def requests_of(queue: PersistentQueue) -> list[str]:
    """Return the names of the requests that wait."""
    return [name for name in os.listdir(queue.path / "requests") if not name.endswith(".answers")]


# -- Putting -----------------------------------------------------------------------------------------------------------


def test_puts_return_the_offsets_under_which_the_owner_has_them(
    owner: PersistentQueue, submitter: PersistentQueue
) -> None:
    """One by one, as a batch, empty, with headers; and none of the requests is left."""
    assert owner.put(b"own") == 0
    assert submitter.put(b"first") == 1
    assert submitter.put_many([b"", b"second"]) == range(2, 4)
    assert submitter.put_many([]) == range(4, 4)
    assert submitter.put_nowait(b"third") == 4
    assert submitter.put(b"fourth", headers={"from": "afar"}) == 5
    assert payloads(owner) == [b"own", b"first", b"", b"second", b"third", b"fourth"]
    assert owner.peek(6)[5].headers == {"from": "afar"}
    until(lambda: not requests_of(owner))  # answered first, then removed


def test_a_large_batch_becomes_a_data_file_as_it_is(owner: PersistentQueue, submitter: PersistentQueue) -> None:
    """It is not copied: its file leaves ``requests/`` for ``data/``."""
    submitter.put(b"before")
    files = owner.stats().file_count
    large = [bytes([number]) * 5000 for number in range(20)]
    assert submitter.put_many(large) == range(1, 21)
    assert owner.stats().file_count == files + 1
    assert submitter.put(b"behind") == 21
    assert payloads(owner) == [b"before", *large, b"behind"]
    until(lambda: not requests_of(owner))  # answered first, then removed


def test_threads_share_one_handle(owner: PersistentQueue, submitter: PersistentQueue, threads: Threads) -> None:
    """More threads than answers have slots: every put gets its own offset, each thread's in its order."""

    def work(number: int) -> None:
        offsets = [submitter.put(b"%d:%d" % (number, each)) for each in range(3)]
        assert offsets == sorted(offsets)
        for each, offset in enumerate(offsets):
            assert owner.peek(10_000)[offset].payload == b"%d:%d" % (number, each)

    for number in range(70):
        threads.start(partial(work, number))
    threads.join()
    assert owner.qsize() == 210


def test_what_is_put_is_durable_as_the_owner_says(path: Path) -> None:
    """Under every_commit the log is synced before the answer; under never it is not."""
    for policy, expected in ((FlushPolicy.every_commit(), True), (FlushPolicy.never(), False)):
        PersistentQueue(path).close()
        change_settings(path, flush=policy)
        with PersistentQueue(path, flush=policy) as owner, PersistentQueue(path, mode="submit") as submitter:
            submitter.put(b"x")
            writer = handle_of(owner).write_side
            assert writer is not None
            assert (writer._writer.synced == writer._writer.end) is expected


def test_figures_are_those_that_a_look_gives(owner: PersistentQueue, submitter: PersistentQueue) -> None:
    """``stats``, ``qsize``, ``peek`` and ``prepared`` work; what takes raises UsageError."""
    submitter.put_many([b"a", b"b"])
    owner.get()
    assert submitter.stats().depth == submitter.qsize() == 1
    assert submitter.stats().next_offset == 2
    assert payloads(submitter) == [b"b"]
    assert submitter.prepared() == []
    submitter.flush()
    for take in (submitter.get, submitter.receive, lambda: submitter.get_many(1), lambda: submitter.begin().receive()):
        with pytest.raises(UsageError, match="does not take"):
            take()
    with pytest.raises(UsageError, match="several queues"):
        transaction(submitter)
    with pytest.raises(ConfigError, match="submit"):
        PersistentQueue(owner.path, mode="nothing")
    with pytest.raises(GroupNotFoundError):
        PersistentQueue(owner.path, mode="submit", group="other")


# -- Nobody owns the queue ---------------------------------------------------------------------------------------------


def test_without_an_owner_the_submitter_commits_by_itself(path: Path) -> None:
    """It makes the queue where there is none, and lets go soon."""
    with PersistentQueue(path, mode="submit") as submitter:
        assert [submitter.put(b"%d" % number) for number in range(20)] == list(range(20))
        side = handle_of(submitter).submit_side
        assert side is not None
        until(lambda: not side._requester._helper.is_there)
        with PersistentQueue(path) as owner:
            assert owner.recovery.clean
            assert submitter.put(b"20") == 20
            assert len(payloads(owner)) == 21
        assert submitter.put(b"21") == 21


def test_an_owner_that_comes_waits_for_a_visitor_and_not_the_other_way_round(path: Path, threads: Threads) -> None:
    """``lock_timeout=0`` fails because of another owner, never because of somebody who commits for a moment."""
    stop = threading.Event()
    submitters = [PersistentQueue(path, mode="submit") for _ in range(2)]

    def work(submitter: PersistentQueue) -> None:
        while not stop.is_set():
            submitter.put(b"x")

    for each in submitters:
        threads.start(partial(work, each))
    for _ in range(8):
        time.sleep(0.05)  # long enough for a visit to begin
        with PersistentQueue(path, mode="produce"):
            with pytest.raises(QueueLockedError):
                PersistentQueue(path, mode="produce")
            time.sleep(0.02)
    stop.set()
    threads.join()
    for each in submitters:
        each.close()


# -- Errors come back --------------------------------------------------------------------------------------------------


def test_a_bounded_queue_takes_a_request_once_there_is_room(path: Path, threads: Threads) -> None:
    """Until then it waits, and may be taken back: then nothing was put."""
    with PersistentQueue(path, maxsize=2) as owner, PersistentQueue(path, mode="submit") as submitter:
        submitter.put_many([b"a", b"b"])
        with pytest.raises(Full):
            submitter.put(b"x", timeout=0.05)
        with pytest.raises(Full):
            submitter.put_nowait(b"x")
        until(lambda: not requests_of(owner))  # answered first, then removed
        with pytest.raises(RecordTooLargeError) as too_large:
            submitter.put_many([b"x"] * 3)
        assert too_large.value.max_bytes == 2
        threads.start(partial(submitter.put, b"c"))
        until(lambda: bool(requests_of(owner)))
        assert owner.get() == b"a"
        threads.join()
        assert payloads(owner) == [b"b", b"c"]


def test_a_large_batch_waits_for_room_too(path: Path) -> None:
    """It is not adopted into a queue that is full."""
    with (
        PersistentQueue(path, maxsize=3, data_file_bytes=SMALL) as owner,
        PersistentQueue(path, mode="submit", data_file_bytes=SMALL) as submitter,
    ):
        submitter.put_many([b"a", b"b"])
        with pytest.raises(Full):
            submitter.put_many([b"x" * 20_000] * 2, timeout=0.05)
        owner.get()
        assert submitter.put_many([b"x" * 20_000] * 2) == range(2, 4)


class FullDisk(OsStorage):
    """Takes no more into data files while ``is_full``, and fails to sync them while ``is_broken``."""

    def __init__(self) -> None:
        self.is_full = self.is_broken = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        file = super().open(path, create=create, writable=writable)
        if path.suffix != ".data":
            return file
        return FullFile(self, file)


class FullFile(OsFile):
    """A file on such a disk."""

    __slots__ = ("_disk",)

    def __init__(self, disk: FullDisk, file: OsFile) -> None:
        super().__init__(file._fd)
        self._disk = disk

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        if self._disk.is_full:
            raise OSError(errno.ENOSPC, "no room")
        return super().write_at(buffers, position)

    def sync(self) -> None:
        if self._disk.is_broken:
            raise OSError(errno.EIO, "broken")
        super().sync()


def test_errors_of_the_owner_come_back_and_nothing_was_put(path: Path) -> None:
    """A full disk, a shutdown, a write side that is poisoned: the same classes, with their context."""
    disk = FullDisk()
    with PersistentQueue(path, storage=disk) as owner, PersistentQueue(path, mode="submit") as submitter:
        submitter.put(b"a")
        disk.is_full = True
        with pytest.raises(DiskFullError) as full:
            submitter.put(b"x")
        assert "data" in full.value.path
        disk.is_full = False
        submitter.put(b"b")
        owner.shutdown()
        with pytest.raises(ShutDown):
            submitter.put(b"x")
        until(lambda: not requests_of(owner))  # answered first, then removed
        assert payloads(owner) == [b"a", b"b"]


def test_a_failed_sync_of_the_owner_is_unknown_until_the_queue_is_reopened(path: Path) -> None:
    """Then the put is there, or it is not; later ones were refused for sure."""
    disk = FullDisk()
    owner = PersistentQueue(path, storage=disk)
    with PersistentQueue(path, mode="submit") as submitter:
        submitter.put(b"a")
        disk.is_broken = True
        with pytest.raises(CommitUnknownError):
            submitter.put(b"unknown")
        with pytest.raises(PoisonedError):
            submitter.put(b"x")
        disk.is_broken = False
        owner.close()
        with PersistentQueue(path) as owner:
            submitter.put(b"b")
            assert payloads(owner) in ([b"a", b"unknown", b"b"], [b"a", b"b"])


def test_a_torn_request_is_refused(owner: PersistentQueue, submitter: PersistentQueue) -> None:
    """Somebody has damaged it: nothing of it gets into the log, and the next one does."""
    side = handle_of(submitter).submit_side
    assert side is not None
    rename = submitter._storage.rename

    class Damaging(OsStorage):
        def rename(self, source: Path, target: Path) -> None:
            os.truncate(source, 4700)
            rename(source, target)

    side._requester._storage = Damaging()
    with pytest.raises(Exception, match="whole batch"):
        submitter.put_many([b"x" * 100] * 3)
    side._requester._storage = OsStorage()
    assert submitter.put(b"good") == 0


def test_an_owner_that_does_not_answer_costs_the_timeout_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process: the request is taken back, so that it does not commit when the process continues."""
    monkeypatch.setattr(requester, "ANSWER_SECONDS_MIN", 0.2)
    opened = Signal()

    def own() -> None:
        with PersistentQueue(path, mode="produce"):
            opened.send()
            time.sleep(60)

    process = Child(own)
    try:
        opened.wait()
        with PersistentQueue(path, mode="submit") as submitter:
            assert submitter.put(b"a") == 0
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)  # it may run on for a little
            with pytest.raises(RetryableError, match="does not answer") as silent:
                submitter.put(b"x", timeout=0.1)
            assert silent.value.pid == process.pid
            os.kill(process.pid, signal.SIGCONT)
            assert submitter.put(b"b") == 1
    finally:
        process.kill()
        process.wait()
        opened.close()
    with PersistentQueue(path) as queue:
        assert payloads(queue) == [b"a", b"b"]


def test_closing_ends_the_puts_that_wait(path: Path, threads: Threads) -> None:
    """They raise ClosedError, and were not put; so does every later call. Closing leaves no file."""
    with PersistentQueue(path, maxsize=1) as owner:
        submitter = PersistentQueue(path, mode="submit")
        submitter.put(b"a")

        def wait() -> None:
            with pytest.raises(ClosedError):
                submitter.put(b"x")

        threads.start(wait)
        until(lambda: bool(requests_of(owner)))
        submitter.close()
        threads.join()
        submitter.close()
        for call in (lambda: submitter.put(b"x"), submitter.begin, lambda: submitter.commit_prepared("x")):
            with pytest.raises(ClosedError):
                call()
        assert os.listdir(path / "requests") == []
        assert payloads(owner) == [b"a"]


def test_a_submitter_that_is_shut_down_puts_no_more(submitter: PersistentQueue) -> None:
    """The owner and other submitters go on."""
    submitter.shutdown()
    with pytest.raises(ShutDown):
        submitter.put(b"x")


# -- Transactions ------------------------------------------------------------------------------------------------------


def test_a_transaction_is_one_request(owner: PersistentQueue, submitter: PersistentQueue) -> None:
    """Committed: its puts are there together. Aborted: nothing is. In memory and spilled into a file."""
    with submitter.transaction() as tx:
        tx.put(b"1")
        tx.put_many([b"2", b"3"])
        assert owner.qsize() == 0
    tx = submitter.begin()
    tx.put(b"x" * 40_000)
    tx.abort()
    until(lambda: not requests_of(owner))  # answered first, then removed
    tx = submitter.begin()
    tx.put_many([b"x" * 10_000] * 4)
    tx.put_stream([b"s", b"tream"])
    assert tx.commit() == range(3, 8)
    assert payloads(owner) == [b"1", b"2", b"3", *[b"x" * 10_000] * 4, b"stream"]
    assert submitter.begin().commit() == range(8, 8)


def test_a_spilled_transaction_that_found_no_room_may_be_tried_again(path: Path) -> None:
    """It stays open, and takes more; its file was never committed in between."""
    with (
        PersistentQueue(path, maxsize=4) as owner,
        PersistentQueue(path, mode="submit", data_file_bytes=SMALL) as submitter,
    ):
        owner.put_many([b"a", b"b", b"c"])
        tx = submitter.begin(timeout=60)
        tx.put_many([b"x" * 10_000] * 2)
        tx._deadline -= 59.5
        with pytest.raises(Full):
            tx.commit()
        tx._deadline += 60
        assert owner.get_many(2) == [b"a", b"b"]
        tx.put(b"more")
        assert tx.commit() == range(3, 6)
        assert payloads(owner) == [b"c", *[b"x" * 10_000] * 2, b"more"]
        until(lambda: not requests_of(owner))  # answered first, then removed


def test_prepared_transactions_are_decided_through_the_owner(
    owner: PersistentQueue, submitter: PersistentQueue
) -> None:
    """Prepared by either, committed and aborted by the other; a verdict is told again."""
    tx = submitter.begin()
    tx.put(b"mine")
    assert tx.prepare("from-afar") == "from-afar"
    assert [each.id for each in owner.prepared()] == [each.id for each in submitter.prepared()] == ["from-afar"]
    again = submitter.begin()
    again.put(b"x")
    with pytest.raises(TransactionStateError, match="is prepared"):
        again.prepare("from-afar")
    until(lambda: not requests_of(owner))  # answered first, then removed
    assert tx.commit() == range(0, 1)
    assert owner.commit_prepared("from-afar") == submitter.commit_prepared("from-afar") == range(0, 1)
    with owner.begin() as theirs:
        theirs.put(b"x")
        theirs.prepare("theirs")
        submitter.abort_prepared("theirs")
        with pytest.raises(TransactionStateError, match="aborted"):
            theirs.commit()
        with pytest.raises(TransactionStateError, match="aborted"):
            submitter.commit_prepared("theirs")
        theirs.abort()
    with pytest.raises(TransactionNotFoundError) as unknown:
        submitter.commit_prepared("unknown")
    assert unknown.value.id == "unknown"
    assert payloads(owner) == [b"mine"]


def test_prepared_transactions_are_decided_without_an_owner(path: Path) -> None:
    """The submitter takes the write lock for the moment, prepares, and decides."""
    with PersistentQueue(path, mode="submit") as submitter:
        for id, verb in (("one", submitter.commit_prepared), ("two", submitter.abort_prepared)):
            tx = submitter.begin()
            tx.put(id.encode())
            tx.prepare(id)
            verb(id)
    with PersistentQueue(path) as owner:
        assert payloads(owner) == [b"one"]


# -- Processes that end ------------------------------------------------------------------------------------------------


def test_what_a_dead_process_left_is_removed_and_never_what_a_living_one_has(path: Path) -> None:
    """A mailbox, a half-written request, a request that nobody took: gone at the next opening."""
    PersistentQueue(path).close()
    ready = Signal()

    def leave() -> None:
        queue = PersistentQueue(path, mode="submit")
        side = handle_of(queue).submit_side
        assert side is not None
        side.stage(bytes(16)).add(b"half", b"", 1)
        ready.send(side._requester.mailbox_name)
        time.sleep(60)

    process = Child(leave)
    name = ready.wait()
    ready.close()
    requests = path / "requests"
    (requests / f"{name}-0000000064.batch").write_bytes(b"torn")
    (requests / "not ours").touch()
    process.kill()
    process.wait()
    with PersistentQueue(path, mode="submit") as alive:
        side = handle_of(alive).submit_side
        assert side is not None
        writer = side.stage(bytes(16))
        with PersistentQueue(path) as owner:
            assert alive.put(b"x") == 0
            assert owner.qsize() == 1
            kept = {f"{side._requester.mailbox_name}.answers", writer.path.name, "not ours"}
            until(lambda: set(os.listdir(requests)) == kept)
        writer.discard()


def test_a_forked_child_leaves_the_handle_to_its_parent(tmp_path: Path) -> None:
    """Its copy raises ForkedError; the parent puts on; a handle of its own works; its life keeps no mailbox locked."""
    run_script(
        """
import os, sys, time, warnings
from holdfast import *
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.storage import OsStorage
from pathlib import Path
from support.builders.handles import handle_of

warnings.filterwarnings("ignore", category=DeprecationWarning)
path = Path(sys.argv[1]) / "orders"
owner = PersistentQueue(path)
submitter = PersistentQueue(path, mode="submit")
submitter.put(b"parent")
mailbox = handle_of(submitter).submit_side._requester.mailbox_name
reader, writer = os.pipe()
if (pid := os.fork()) == 0:
    status = 1
    try:
        for call in (lambda: submitter.put(b"x"), submitter.begin, submitter.stats, lambda: owner.put(b"x")):
            try:
                call()
                raise SystemExit("the copy works")
            except ForkedError:
                pass
        submitter.close()
        with PersistentQueue(path, mode="submit") as own:
            own.put(b"child")
        os.read(reader, 1)
        status = 0
    finally:
        os._exit(status)
submitter.put(b"parent again")
submitter.close()
assert mailbox + ".answers" not in os.listdir(path / "requests")
os.write(writer, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert sorted(message.payload for message in owner.peek(10)) == [b"child", b"parent", b"parent again"]
owner.close()
""",
        tmp_path,
    )
