"""What happens to a machine while processes share a queue: full disks, crowds, stopped processes, clocks that jump.

Nothing that was acknowledged is lost or comes again, no process waits for ever, and each error names its cause.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from holdfast import (
    ConfigError,
    DiskFullError,
    HoldfastError,
    LeaseExpiredError,
    PersistentQueue,
    RetryableError,
    StorageError,
)
from holdfast.clock import SystemClock
from holdfast.errors import Empty
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.persistence.ownership.owner_lock import read_owner_note
from holdfast.queue.protocol.frames import REQUEST, encode_frame
from holdfast.queue.protocol.messages import VERSION, Hello, Take, encode
from support.processes.children import Child, Signal, child
from support.processes.threads import wait_until
from support.storages.small_disk import small_disk

CROWD = 200
NOBODY = 65534


def _drain(queue: PersistentQueue) -> list[bytes]:
    """Take all that is left."""
    payloads: list[bytes] = []
    with suppress(Empty):
        while True:
            payloads += queue.get_many(1000, timeout=0.0)
    return payloads


def _fill(queue: PersistentQueue, acknowledged: list[bytes]) -> None:
    """Put until an error; note what was put."""
    for number in range(1000):
        queue.put(b"%d" % number + bytes(5000))
        acknowledged.append(b"%d" % number)


def test_a_full_disk_refuses_puts_of_owner_and_clients_and_takes_work(tmp_path: Path) -> None:
    """The errors say so. Once there is space, puts work again, by the same handles."""
    with (
        small_disk(tmp_path / "disk", 2 * 2**20) as disk,
        PersistentQueue(disk / "q", mode="shared", data_file_bytes=2**17) as owner,
        PersistentQueue(disk / "q", mode="shared") as client,
    ):
        acknowledged: list[bytes] = []
        for queue in (owner, client):
            with pytest.raises(DiskFullError, match="full"):
                _fill(queue, acknowledged)
        left = [client.receive(timeout=5) for _ in range(5)]
        for delivery in left:
            delivery.ack()
        payloads = [each.payload for each in left] + _drain(client)
        assert [payload.rstrip(b"\0") for payload in payloads] == acknowledged
        for queue in (client, owner):
            queue.put(b"again")
        assert _drain(owner) == [b"again"] * 2


def test_a_crowd_of_clients_at_once_is_served(tmp_path: Path) -> None:
    """Four processes begin fifty handles each, while others put; all messages come out once."""
    path, said = tmp_path / "q", Signal()

    def work(name: int) -> None:
        with ExitStack() as opened:
            queues = [opened.enter_context(PersistentQueue(path, mode="shared")) for _ in range(CROWD // 4)]
            for number, queue in enumerate(queues):
                queue.put(b"%d.%d" % (name, number))
            taken = [queue.get(timeout=60) for queue in queues]
        said.send(" ".join(payload.decode() for payload in taken))

    with PersistentQueue(path, mode="shared") as owner:
        processes = [Child(lambda name=name: work(name)) for name in range(4)]  # type: ignore[misc]
        try:
            taken = Counter[str]()
            for _ in processes:
                taken.update(said.wait(120).split())
            assert [each.wait() for each in processes] == [0] * 4
        finally:
            for each in processes:
                each.kill()
                each.wait()
            said.close()
        assert taken == Counter(f"{name}.{number}" for name in range(4) for number in range(CROWD // 4))
        with pytest.raises(Empty):
            owner.get(timeout=0.0)


def test_a_client_that_never_reads_is_cut_off_and_delays_no_other(tmp_path: Path) -> None:
    """What was on its way to it comes again, once its session has ended."""
    path = tmp_path / "q"
    with (
        PersistentQueue(path, mode="shared") as owner,
        PersistentQueue(path, mode="shared") as client,
    ):
        owner.put_many([bytes(50_000)] * 200)
        note = read_owner_note(OsStorage(), path)
        assert note is not None
        with socket.socket(socket.AF_UNIX) as greedy:
            greedy.connect(str(note.socket))
            greedy.settimeout(30)
            hello = Hello(VERSION, note.epoch, 0, "")
            greedy.sendall(b"".join(encode_frame(REQUEST, 1, encode(hello))))
            wait_until(lambda: _sessions(path, owner) >= 3)
            session = max(_without_file(owner))
            with suppress(OSError):  # it is cut off while it asks
                for number in range(1, 200):
                    take = Take("default", session << 32 | number, 1, None, 0.0)
                    greedy.sendall(b"".join(encode_frame(REQUEST, number + 1, encode(take))))
            assert client.put(b"last") == 200
        found: list[bytes] = []
        wait_until(lambda: found.extend(_drain(client)) or len(found) >= 201, 30)
        assert len(found) == 201


def _without_file(owner: PersistentQueue) -> set[int]:
    return set(owner._engine._finder.owner.sessions._without_file)  # type: ignore[union-attr]


def _sessions(path: Path, owner: PersistentQueue) -> int:
    return len(list((path / ".owner" / "sessions").glob("*.lock"))) + len(_without_file(owner))


def test_a_process_of_another_user_is_refused_and_told_why(tmp_path: Path) -> None:
    """By the files, and by the socket if a directory lets it in."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user takes root")
    path, said = tmp_path / "q", Signal()

    def be_another_user() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            PersistentQueue(path, mode="shared")
        except (ConfigError, StorageError) as error:
            said.send(f"{type(error).__name__}: {error}")

    with PersistentQueue(path, mode="shared") as owner:
        owner.put(b"a")
        tmp_path.chmod(0o755)
        with child(be_another_user) as other:
            assert other.wait() == 0
        assert str(path) in said.wait()
        assert owner.get(timeout=5) == b"a"
    said.close()


def test_the_socket_and_then_the_directory_are_taken_away_while_processes_work(tmp_path: Path) -> None:
    """The socket comes again. A directory that is moved has another owner at its new place, with all messages."""
    path, said = tmp_path / "q", Signal()

    def work() -> None:
        count = 0
        with PersistentQueue(path, mode="shared") as queue:
            try:
                while True:
                    queue.put(b"%d" % count)
                    count += 1
                    if count == 100:
                        said.send("works")
            except HoldfastError as error:
                said.send(f"{count} {type(error).__name__} {error}")
                with suppress(HoldfastError):
                    queue.close()
                os._exit(0)

    with child(work) as worker:
        assert said.wait() == "works"
        (path / ".owner" / "socket").unlink()
        wait_until((path / ".owner" / "socket").exists)
        path.rename(tmp_path / "moved")
        count, kind, text = said.wait(60).split(" ", 2)
        assert worker.wait() == 0
        assert kind in {"StorageError", "RetryableError", "CommitUnknownError"}
        assert str(path) in text
    with PersistentQueue(tmp_path / "moved", mode="shared") as queue:
        payloads = _drain(queue)
    assert payloads[: int(count)] == [b"%d" % number for number in range(int(count))]
    assert len(payloads) - int(count) in (0, 1)
    shutil.rmtree(tmp_path / "moved")
    said.close()


class _Jumping(SystemClock):
    """The wall clock jumps by years, to and fro, with each look."""

    def __init__(self) -> None:
        self.count = 0

    def time_ns(self) -> int:
        self.count += 1
        return super().time_ns() + (-1) ** self.count * 10**17


def test_a_wall_clock_that_jumps_ends_no_lease_and_loses_nothing(tmp_path: Path) -> None:
    """Leases and sessions are by the monotonic clock, of the owner as of its clients."""
    path = tmp_path / "q"
    with (
        PersistentQueue(path, mode="shared", clock=_Jumping()) as owner,
        PersistentQueue(path, mode="shared", clock=_Jumping()) as client,
    ):
        for number in range(20):
            (owner, client)[number % 2].put(b"%d" % number)
        held = client.receive_many(5, timeout=5)
        others = [owner.receive(timeout=5).payload for _ in range(15)]
        with pytest.raises(Empty):
            owner.receive(timeout=0.2)
        held.ack()
        assert [each.payload for each in held] + others == [b"%d" % number for number in range(20)]


def test_stopped_owners_and_stopped_clients_continue_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """Each side is stopped beyond a lease. What a stopped client had in hand went to another one; its ack says so."""
    path, said, go_on = tmp_path / "q", Signal(), Signal()

    def own() -> None:
        with PersistentQueue(path, mode="shared", lease_seconds=0.5):
            said.send("owns")
            signal.pause()

    def take() -> None:
        with PersistentQueue(path, mode="shared") as queue:
            delivery = queue.receive(timeout=5)
            said.send(delivery.payload.decode())
            go_on.wait(60)
            try:
                delivery.ack()
            except LeaseExpiredError as error:
                said.send(f"LeaseExpiredError {error}")

    with child(own) as owner:
        assert said.wait() == "owns"
        with PersistentQueue(path, mode="shared") as queue, child(take) as taker:
            queue.put(b"a")
            assert said.wait() == "a"
            taker.stop()
            assert queue.get(timeout=10) == b"a"  # its lease has ended
            owner.stop()
            began = time.monotonic()
            os.kill(taker.pid, signal.SIGCONT)
            go_on.send()
            with pytest.raises((Empty, RetryableError)):
                queue.receive(timeout=0.7)
            assert time.monotonic() - began >= 0.7
            os.kill(owner.pid, signal.SIGCONT)
            assert said.wait().startswith("LeaseExpiredError")
            assert taker.wait() == 0
            queue.put(b"b")
            assert _drain(queue) == [b"b"]
    for each in (said, go_on):
        each.close()


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_poisoned_owner_makes_room_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_owner: bool
) -> None:
    """Its caller hears of the failed sync, and of what is unknown; the queue has what was acknowledged."""
    path = tmp_path / "q"
    owner = PersistentQueue(path, mode="shared")
    client = PersistentQueue(path, mode="shared")
    assert client.put(b"a") == 0

    def fail(file: OsFile) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "sync", fail)
        with pytest.raises(HoldfastError, match="the disk fails"):
            (owner if is_owner else client).put(b"b")
    wait_until(lambda: _puts(client))
    assert client.is_owner
    assert owner.put(b"d") > 0
    payloads = _drain(owner)
    owner.close()
    client.close()
    assert payloads[0] == b"a"
    assert Counter(payloads)[b"b"] <= 1
    assert payloads[-2:] == [b"c", b"d"]


def _puts(queue: PersistentQueue) -> bool:
    try:
        queue.put(b"c")
    except RetryableError:
        return False
    return True
