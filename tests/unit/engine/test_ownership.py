"""One owner per side: the second opener gets an error that names the first one, and the dead leave no locks."""

import os
import pickle
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import (
    Empty,
    FlushPolicy,
    GroupNotFoundError,
    LockTimeoutError,
    PersistentQueue,
    QueueLockedError,
    RetryableError,
)
from holdfast.persistence.filesystem.layout import queue_directory
from holdfast.persistence.filesystem.locks import try_acquire
from holdfast.persistence.filesystem.storage import OsStorage
from support.builders.clocks import FakeClock, TickingClock
from support.processes.children import Child, Signal, child


@contextmanager
def owner_elsewhere(path: Path, **options: str) -> Iterator[Child]:
    """Open a queue in another process, which holds it until it is killed."""
    opened = Signal()

    def own() -> None:
        queue = PersistentQueue(path, **{"mode": "exclusive", **options})
        opened.send()
        time.sleep(60)
        queue.close()

    with child(own) as process:
        opened.wait()
        yield process
    opened.close()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("exclusive", "exclusive"),
        ("exclusive", "shared"),
        ("shared", "exclusive"),
    ],
)
def test_a_second_opener_learns_at_once_who_owns_the_queue(tmp_path: Path, first: str, second: str) -> None:
    """QueueLockedError names process and host of the owner, and no time passes: the clock stands still."""
    PersistentQueue(tmp_path / "orders", mode="exclusive").close()
    with owner_elsewhere(tmp_path / "orders", mode=first) as owner, pytest.raises(QueueLockedError) as refused:
        PersistentQueue(tmp_path / "orders", mode=second, clock=FakeClock())
    assert refused.value.pid == owner.pid
    assert refused.value.host == socket.gethostname()
    assert str(owner.pid) in str(refused.value)
    assert socket.gethostname() in str(refused.value)
    assert not isinstance(refused.value, LockTimeoutError)


def test_a_handle_that_owns_the_queue_is_an_owner(tmp_path: Path) -> None:
    """One that looks is none."""
    with (
        PersistentQueue(tmp_path / "queue", mode="exclusive") as queue,
        PersistentQueue(tmp_path / "queue", mode="read_only") as reader,
    ):
        assert queue.is_owner
        assert not reader.is_owner


def test_a_second_handle_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    """Threads share one object; a second one for the same side would not know of the first."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive"):
        with pytest.raises(QueueLockedError) as refused:
            PersistentQueue(tmp_path / "orders", mode="exclusive")
        assert refused.value.pid == os.getpid()
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put(b"after the first was closed")


def test_the_refusal_survives_pickling(tmp_path: Path) -> None:
    """It crosses process borders with its evidence."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive"), pytest.raises(RetryableError) as refused:
        PersistentQueue(tmp_path / "orders", mode="exclusive")
    copy = pickle.loads(pickle.dumps(refused.value))
    assert type(copy) is QueueLockedError
    assert (copy.pid, copy.host, copy.path) == (refused.value.pid, refused.value.host, refused.value.path)


def test_a_handle_that_gets_only_one_of_both_sides_gives_it_up_again(tmp_path: Path) -> None:
    """The lock of the group is taken: the one of the write side is free behind the refusal."""
    storage, directory = OsStorage(), queue_directory(tmp_path / "orders")
    with PersistentQueue(directory.root, mode="exclusive") as queue:
        queue.put(b"x")
    group = try_acquire(storage, directory.group_lock("default"))
    assert group is not None
    with pytest.raises(QueueLockedError, match="group 'default'"):
        PersistentQueue(directory.root, mode="exclusive")
    writes = try_acquire(storage, directory.write_lock)
    assert writes is not None
    writes.release()
    group.release()
    with PersistentQueue(directory.root, mode="exclusive") as queue:
        assert queue.get() == b"x"


def test_a_producer_and_a_consumer_in_two_processes_work_side_by_side(tmp_path: Path) -> None:
    """In any number of processes, while they share the queue."""
    path = tmp_path / "orders"
    producer = PersistentQueue(path, mode="shared")
    found = Signal()

    def consume() -> None:
        with PersistentQueue(path, mode="shared") as queue:
            for _ in range(200):
                found.send(queue.get(timeout=20).decode())

    with child(consume) as consumer:
        for number in range(200):
            producer.put(b"%d" % number)
        assert [found.wait() for _ in range(200)] == [str(number) for number in range(200)]
        assert consumer.wait() == 0
    found.close()
    producer.close()


def test_consumers_of_two_groups_in_two_processes_get_everything_each(tmp_path: Path) -> None:
    """The read side of each group is its own, whichever process owns the queue."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create("billing")
        queue.groups.create("shipping")
        queue.put_many([b"%d" % number for number in range(100)])
    found = {group: Signal() for group in ("billing", "shipping")}

    def consume(group: str) -> None:
        with PersistentQueue(path, mode="shared", group=group) as queue:
            found[group].send(",".join(queue.get(timeout=20).decode() for _ in range(100)))
            time.sleep(60)

    with child(lambda: consume("billing")), child(lambda: consume("shipping")):
        for signal in found.values():
            assert signal.wait() == ",".join(map(str, range(100)))
            signal.close()


def test_lock_timeout_waits_until_the_owner_closes(tmp_path: Path) -> None:
    """A rolling deploy: the next owner stands ready while the last one finishes."""
    path = tmp_path / "orders"
    first = PersistentQueue(path, mode="exclusive")
    first.put(b"from the first")
    is_closing = threading.Event()

    def close() -> None:
        is_closing.set()
        first.close()

    threading.Timer(0.3, close).start()
    with PersistentQueue(path, mode="exclusive", lock_timeout=20) as second:
        assert is_closing.is_set()
        assert second.get(timeout=0) == b"from the first"


def test_lock_timeout_gives_up_and_names_the_owner(tmp_path: Path) -> None:
    """LockTimeoutError comes once the time is over."""
    PersistentQueue(tmp_path / "orders", mode="exclusive").close()
    with owner_elsewhere(tmp_path / "orders", mode="exclusive") as owner:
        clock = TickingClock()
        started = clock.monotonic()
        with pytest.raises(LockTimeoutError) as refused:
            PersistentQueue(tmp_path / "orders", mode="exclusive", lock_timeout=0.2, clock=clock)
        assert 0.2 <= clock.monotonic() - started < 1
    assert refused.value.pid == owner.pid


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_killed_owner_leaves_no_stale_lock(tmp_path: Path, mode: str) -> None:
    """The lock goes with the process, however it dies."""
    PersistentQueue(tmp_path / "orders", mode="exclusive").close()
    with owner_elsewhere(tmp_path / "orders", mode=mode) as owner:
        owner.kill()
        owner.wait()
        PersistentQueue(tmp_path / "orders", mode="exclusive").close()


def test_of_16_processes_racing_for_the_lock_exactly_one_wins(tmp_path: Path) -> None:
    """Whoever loses is told who won, also when the race was close."""
    path = tmp_path / "orders"
    PersistentQueue(path, mode="exclusive").close()
    racers = 16
    ready, go, results, done = (os.pipe() for _ in range(4))

    def race() -> None:
        os.write(ready[1], b"r")
        while os.read(go[0], 1):
            try:
                queue = PersistentQueue(path, mode="exclusive")
                outcome = f"won {os.getpid()}"
            except QueueLockedError as error:
                queue, outcome = None, f"lost {error.pid}"
            os.write(results[1], (outcome + "\n").encode())
            os.read(done[0], 1)
            if queue is not None:
                queue.close()
            os.write(ready[1], b"r")

    def gather(pipe: int, count: int) -> None:
        while count:
            count -= len(os.read(pipe, count))

    children = [Child(race) for _ in range(racers)]
    try:
        gather(ready[0], racers)
        for _ in range(20):
            os.write(go[1], b"g" * racers)
            text = ""
            while text.count("\n") < racers:
                text += os.read(results[0], 65536).decode()
            outcomes = Counter(line.split()[0] for line in text.splitlines())
            assert outcomes == {"won": 1, "lost": racers - 1}
            assert len({line.split()[1] for line in text.splitlines()}) == 1, text
            os.write(done[1], b"d" * racers)
            gather(ready[0], racers)
    finally:
        for process in children:
            process.kill()
        for process in children:
            process.wait()
        for descriptor in (*ready, *go, *results, *done):
            os.close(descriptor)


def test_a_consumer_that_waited_for_the_default_group_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    """The group began while it waited: beginning it again would deliver what was acknowledged."""
    path = tmp_path / "orders"
    first = PersistentQueue(path, mode="exclusive")
    first.put_many([b"first", b"second"])
    waiting: list[PersistentQueue] = []
    thread = threading.Thread(target=lambda: waiting.append(PersistentQueue(path, mode="exclusive", lock_timeout=20)))
    thread.start()
    time.sleep(0.2)
    assert first.get(timeout=5) == b"first"
    first.close()
    thread.join()
    with waiting[0] as second:
        assert second.get(timeout=5) == b"second"
        with pytest.raises(Empty):
            second.get(timeout=0)


def test_a_default_group_made_beside_an_open_queue_is_not_begun_again(tmp_path: Path) -> None:
    """Whoever made it said where it starts."""
    path = tmp_path / "orders"
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"old")
        assert queue.groups.create("default", start="latest") == 1
        queue.put(b"new")
        assert queue.get(timeout=5) == b"new"


def test_a_consumer_that_waited_for_a_group_that_is_gone_says_so(tmp_path: Path) -> None:
    """It does not write progress for a group that does not exist any more."""
    path = tmp_path / "orders"
    first = PersistentQueue(path, mode="exclusive", group="billing", flush=FlushPolicy.never())
    caught: list[Exception] = []

    def wait() -> None:
        try:
            PersistentQueue(path, mode="exclusive", group="billing", lock_timeout=20)
        except GroupNotFoundError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    document = path / "groups" / "billing" / "group.json"
    document.rename(document.with_name("group.json.removed"))  # as ``groups.delete`` does first of all
    first.close()
    thread.join()
    assert [error.group for error in caught] == ["billing"]
