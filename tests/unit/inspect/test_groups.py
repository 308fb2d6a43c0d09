"""Consumer groups: each sees every message, and a data file goes once every group has finished it."""

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast import (
    ConfigError,
    Empty,
    GroupNotFoundError,
    PersistentQueue,
    QueueLockedError,
    UsageError,
)
from holdfast.persistence.filesystem import locks
from holdfast.queue.inspect.groups import Groups

FILE_BYTES = 16 * 2**10


def open_queue(path: Path, mode: str = "shared", group: str = "default") -> PersistentQueue:
    """Open a queue of small data files."""
    return PersistentQueue(path, mode=mode, group=group, data_file_bytes=FILE_BYTES)


def put_numbers(queue: PersistentQueue, first: int, end: int) -> None:
    """Put messages of 1,000 bytes; about 15 make a data file."""
    for number in range(first, end):
        queue.put(b"%06d" % number + bytes(994))


def numbers_left(queue: PersistentQueue) -> list[int]:
    """Take all that is there."""
    numbers = []
    while True:
        try:
            numbers += [int(payload[:6]) for payload in queue.get_many(100, timeout=0)]
        except Empty:
            return numbers


def take(queue: PersistentQueue, count: int) -> None:
    """Take so many."""
    while count:
        count -= len(queue.get_many(count, timeout=0))


def data_files(path: Path) -> list[str]:
    """Return the names of the data files."""
    return sorted(file.name for file in (path / "data").iterdir())


def test_groups_are_made_listed_and_deleted(tmp_path: Path) -> None:
    """Making one that exists changes nothing; the default group is listed once it was used."""
    with open_queue(tmp_path / "orders") as queue:
        assert queue.groups.list() == []
        queue.groups.create("shipping")
        queue.groups.create("billing")
        assert queue.groups.list() == ["billing", "shipping"]
        queue.put(b"x")
        assert queue.groups.create("billing", start="latest") == 0
        assert queue.get() == b"x"
        assert queue.groups.list() == ["billing", "default", "shipping"]
        queue.groups.delete("billing")
        assert queue.groups.list() == ["default", "shipping"]
    with open_queue(tmp_path / "orders") as queue:
        assert queue.groups.list() == ["default", "shipping"]


def test_each_group_sees_every_message(tmp_path: Path) -> None:
    """What one has finished is still there for the others."""
    path = tmp_path / "orders"
    with open_queue(path) as queue:
        for group in ("billing", "shipping"):
            queue.groups.create(group)
        put_numbers(queue, 0, 50)
        assert numbers_left(queue) == list(range(50))
    for group in ("billing", "shipping"):
        with open_queue(path, "shared", group) as queue:
            assert numbers_left(queue) == list(range(50))


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 10), (0, 0), (4, 4), (10, 10)])
def test_a_group_starts_where_it_was_told_to(tmp_path: Path, start: str | int, first: int) -> None:
    """At the oldest message, at the next one, or at an offset."""
    path = tmp_path / "orders"
    with open_queue(path) as queue:
        put_numbers(queue, 0, 10)
        assert queue.groups.create("late", start=start) == first
        put_numbers(queue, 10, 12)
        with open_queue(path, "shared", "late") as late:
            assert late.stats().depth == 12 - first
            assert numbers_left(late) == list(range(first, 12))


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (11, "from 0 to that, not 11"),
        ("newest", "for how long ago, not 'newest'"),
        (True, "not True"),
        (2**63, f"not {2**63}"),
        (1.5, "not 1.5"),
        (None, "not None"),
        (datetime(2026, 1, 1), "with a time zone"),  # that is the point
        (timedelta(seconds=-1), "from 0 on"),
    ],
)
def test_a_group_that_cannot_start_there_is_not_made(tmp_path: Path, start: object, says: str) -> None:
    """The error says what is possible."""
    with open_queue(tmp_path / "orders") as queue:
        put_numbers(queue, 0, 10)
        with pytest.raises(ConfigError, match=says):
            queue.groups.create("late", start=start)  # type: ignore[arg-type]
        assert queue.groups.list() == []


def test_a_group_made_later_starts_at_the_oldest_message_that_is_left(tmp_path: Path) -> None:
    """An offset whose file is gone means the oldest one behind it."""
    path = tmp_path / "orders"
    with open_queue(path) as queue:
        put_numbers(queue, 0, 100)
        assert len(numbers_left(queue)) == 100
        oldest = queue.stats().first_offset
        assert oldest > 0
        assert queue.groups.create("late", start=3) == oldest
        assert queue.groups.create("later", start="earliest") == oldest
        with open_queue(path, "shared", "late") as late:
            assert numbers_left(late) == list(range(oldest, 100))


def test_data_files_go_only_once_every_group_has_finished_them(tmp_path: Path) -> None:
    """The slowest group decides, file by file."""
    path = tmp_path / "orders"
    with open_queue(path) as queue:
        queue.groups.create("slow")
        put_numbers(queue, 0, 100)
        before = data_files(path)
        assert len(before) > 5
        assert numbers_left(queue) == list(range(100))
        assert data_files(path) == before
        with open_queue(path, "shared", "slow") as slow:
            take(slow, 40)
            some = data_files(path)
            assert 1 < len(some) < len(before)
            assert some == before[-len(some) :]
            assert numbers_left(slow) == list(range(40, 100))
        assert len(data_files(path)) == 1
        time.sleep(0.11)  # figures about what another handle has retired may be 0.1 seconds old
        assert queue.stats().file_count == 1
        put_numbers(queue, 100, 130)
        assert numbers_left(queue) == list(range(100, 130))


def test_a_message_in_flight_pins_its_own_file_only(tmp_path: Path) -> None:
    """Files behind it go as they are finished, and it comes again after a restart."""
    path = tmp_path / "orders"
    with open_queue(path) as queue:
        put_numbers(queue, 0, 100)
        before = data_files(path)
        queue.receive()
        assert numbers_left(queue) == list(range(1, 100))
        assert data_files(path) == [before[0], before[-1]]
    with open_queue(path) as queue:
        assert not queue.recovery.damage
        assert queue.qsize() == 1
        assert numbers_left(queue) == [0]
        put_numbers(queue, 100, 120)
        assert numbers_left(queue) == list(range(100, 120))


def test_the_unused_default_group_pins_nothing_once_another_group_exists(tmp_path: Path) -> None:
    """Used later, it starts at the oldest message that is left."""
    path = tmp_path / "orders"
    with open_queue(path, "shared") as producer:
        producer.groups.create("billing")
        put_numbers(producer, 0, 100)
        with open_queue(path, "shared") as default, open_queue(path, "shared", "billing") as billing:
            assert default.peek()[0].offset == 0
            take(billing, 95)
            assert len(data_files(path)) <= 2
            oldest = billing.stats().first_offset
            assert oldest > 50
            assert numbers_left(default) == list(range(oldest, 100))
            assert not default.recovery.damage
            assert producer.groups.list() == ["billing", "default"]
            assert numbers_left(billing) == list(range(95, 100))


def test_without_any_group_nothing_goes(tmp_path: Path) -> None:
    """Messages put before anybody reads wait for the first reader."""
    path = tmp_path / "orders"
    with open_queue(path, "shared") as producer:
        put_numbers(producer, 0, 100)
    with open_queue(path, "shared") as consumer:
        assert numbers_left(consumer) == list(range(100))


def test_deleting_a_group_frees_what_only_it_had_not_finished(tmp_path: Path) -> None:
    """Its progress goes too: one of the same name starts anew."""
    path = tmp_path / "orders"
    with open_queue(path, "exclusive") as queue:
        queue.groups.create("slow")
        put_numbers(queue, 0, 100)
        assert len(numbers_left(queue)) == 100
    with open_queue(path, "exclusive", "slow") as slow:
        slow.get_many(3)
    with open_queue(path, "exclusive") as queue:
        full = queue.stats().bytes_on_disk
        queue.groups.delete("slow")
        assert queue.stats().bytes_on_disk < full / 4
        assert len(data_files(path)) == 1
        first = queue.groups.create("slow")
    with open_queue(path, "exclusive", "slow") as slow:
        assert numbers_left(slow) == list(range(first, 100))


def test_a_group_that_is_being_read_cannot_be_deleted(tmp_path: Path) -> None:
    """QueueLockedError names its owner, and the group continues."""
    path = tmp_path / "orders"
    with open_queue(path) as queue:
        queue.groups.create("billing")
        queue.put(b"x")
        with open_queue(path, "shared", "billing") as billing:
            delivery = billing.receive(timeout=5)
            with pytest.raises(QueueLockedError) as refused:
                queue.groups.delete("billing")
            assert refused.value.pid is not None
            delivery.ack()
    with open_queue(path, "exclusive") as queue:
        assert queue.get() == b"x"
        with pytest.raises(QueueLockedError):
            queue.groups.delete("default")  # this very handle reads it
        queue.groups.delete("billing")
        assert queue.groups.list() == ["default"]


def test_a_group_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path: Path) -> None:
    """For reading, looking and deleting; nothing is made."""
    path = tmp_path / "orders"
    with open_queue(path, "shared") as queue:
        queue.groups.create("billing")
        queue.groups.create("shipping")
        for call in (
            lambda: open_queue(path, "shared", "biling"),
            lambda: open_queue(path, "read_only", "biling"),
            lambda: queue.groups.delete("biling"),
        ):
            with pytest.raises(GroupNotFoundError) as missing:
                call()
            assert missing.value.group == "biling"
            assert missing.value.groups == ["billing", "shipping"]
            assert "billing, shipping" in str(missing.value)
        assert not (path / "groups" / "biling").exists()


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a b", "ä", "a\0b", "x" * 101, "a\n", None, 7])
def test_a_name_that_cannot_name_a_group_is_refused(tmp_path: Path, name: object) -> None:
    """The error says which names can."""
    with open_queue(tmp_path / "orders") as queue:
        for call in (queue.groups.create, queue.groups.delete):
            with pytest.raises(ConfigError, match="1 to 100 of the characters"):
                call(name)  # type: ignore[arg-type]
        assert queue.groups.list() == []
    with pytest.raises(ConfigError):
        PersistentQueue(tmp_path / "orders", mode="exclusive", group=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "-", "_", "x" * 100, "default"])
def test_a_name_of_the_allowed_characters_is_taken(tmp_path: Path, name: str) -> None:
    """Up to 100 of them."""
    with open_queue(tmp_path / "orders") as queue:
        queue.groups.create(name)
        assert queue.groups.list() == [name]


def test_a_new_queue_is_made_together_with_the_group_it_is_opened_for(tmp_path: Path) -> None:
    """A first start needs no extra step."""
    with open_queue(tmp_path / "orders", "shared", "billing") as queue:
        queue.put(b"x")
        assert queue.groups.list() == ["billing"]
        assert queue.get() == b"x"


def test_looking_makes_and_deletes_no_groups(tmp_path: Path) -> None:
    """Mode look changes nothing."""
    with open_queue(tmp_path / "orders") as queue:
        queue.groups.create("billing")
        with open_queue(tmp_path / "orders", "read_only") as look:
            assert look.groups.list() == ["billing"]
            with pytest.raises(UsageError):
                look.groups.create("more")
            with pytest.raises(UsageError):
                look.groups.delete("billing")


def test_a_group_that_starts_among_retired_messages_starts_behind_them(tmp_path: Path) -> None:
    """An offset that is not there any more means the oldest one behind it, also between files that are there."""
    with open_queue(tmp_path / "orders") as queue:
        put_numbers(queue, 0, 60)
        queue.receive()  # keeps the first file
        take(queue, 50)
        start = queue.groups.create("late", start=20)
        assert start > 20
    with open_queue(tmp_path / "orders", group="late") as late:
        assert numbers_left(late) == list(range(start, 60))


@pytest.mark.parametrize("is_let_in", [True, False])
def test_a_group_that_its_readers_have_opened_again_is_closed_again(tmp_path: Path, is_let_in: bool) -> None:
    """They are woken by its closing, and may be faster than the deletion."""
    closed: list[str] = []
    with open_queue(tmp_path / "q", "exclusive") as queue:
        queue.groups.create("audit")
        handle = queue._handle
        lock = locks.open_lock(handle.storage, handle.directory.group_lock("audit"), create=True)
        assert lock.file.try_lock()

        def close(name: str) -> None:
            closed.append(name)
            if is_let_in and len(closed) == 3:
                lock.release()

        groups = Groups(handle, check_open=lambda: None, close_group=close)
        if is_let_in:
            groups.delete("audit")
            assert (closed, queue.groups.list()) == (["audit"] * 3, [])
        else:
            with pytest.raises(QueueLockedError, match="audit"):
                groups.delete("audit")
            assert "audit" in queue.groups.list()
            lock.release()
