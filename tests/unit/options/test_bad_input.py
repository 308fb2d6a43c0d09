"""Bad payloads, options, names and calls get a clear error, and nothing is created, changed or lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ClosedError,
    ConfigError,
    Empty,
    FlushPolicy,
    GroupNotFoundError,
    PersistentQueue,
    RecordTooLargeError,
    UsageError,
)
from holdfast.persistence.format.message_headers import encode_headers
from support.builders.clocks import START_NS, FakeClock
from support.storages.real_trees import tree

NOT_BYTES = ["text", 5, None, 1.5, ["a"], {"a": 1}, pytest.param(object(), id="object")]
BYTES_LIKE = [b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), memoryview(b"-b-y-t-e-s")[1::2]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a path for a queue that does not exist yet."""
    return tmp_path / "orders"


@pytest.fixture
def queue(root: Path) -> Iterator[PersistentQueue]:
    """Return an open queue with small bounds and one message, that neither syncs nor marks by itself."""
    with PersistentQueue(root, mode="exclusive", record_bytes_max=1000) as queue:
        queue.put(b"first")
        yield queue


@pytest.fixture
def unchanged(root: Path) -> Iterator[None]:
    """Make sure that a test leaves the directory above the queue as it found it."""
    before = tree(root.parent)
    yield
    assert tree(root.parent) == before


def refused(queue: PersistentQueue, error: type[Exception], call: Callable[[], object], match: str = "") -> Exception:
    """Return the error of a call that leaves the queue's messages as they were."""
    before = queue.stats().next_offset, queue.qsize()
    with pytest.raises(error, match=match) as caught:
        call()
    assert (queue.stats().next_offset, queue.qsize()) == before
    return caught.value


# -- Payloads and headers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", NOT_BYTES, ids=repr)
def test_a_payload_that_is_not_bytes_is_refused_by_type_and_pointed_to_the_service(
    queue: PersistentQueue, payload: Any
) -> None:
    """TypeError names the type and says what takes objects, alone and in a batch."""
    match = rf"{type(payload).__name__}.*QueueService"
    refused(queue, TypeError, lambda: queue.put(payload), match)
    refused(queue, TypeError, lambda: queue.put_nowait(payload), match)
    refused(queue, TypeError, lambda: queue.put_many([b"good", payload]), match)


@pytest.mark.parametrize("payload", BYTES_LIKE[:3], ids=lambda payload: type(payload).__name__)
def test_whatever_is_bytes_like_is_taken(queue: PersistentQueue, payload: Any) -> None:
    """And comes back as bytes."""
    queue.put(payload)
    queue.put_many([payload])
    assert queue.get_many(1) + queue.get_many(5) == [b"first", b"bytes", b"bytes"]


def test_a_view_that_is_not_contiguous_is_taken(queue: PersistentQueue) -> None:
    """It is copied."""
    queue.put(BYTES_LIKE[3])
    assert queue.get_many(5)[-1] == b"bytes"


def test_a_payload_is_what_it_was_when_it_was_put(queue: PersistentQueue) -> None:
    """Changing a bytearray later changes nothing."""
    payload = bytearray(b"before")
    queue.put(payload)
    payload[:] = b"after!"
    assert queue.get_many(5)[-1] == b"before"


def test_an_empty_payload_is_a_valid_message(queue: PersistentQueue) -> None:
    """It is delivered like any other, and survives reopening."""
    assert queue.put(b"") == 1
    assert queue.put_many([b"", b""]) == range(2, 4)
    queue.close()
    with PersistentQueue(queue.path, mode="exclusive") as again:
        assert again.get_many(10) == [b"first", b"", b"", b""]


def test_a_payload_over_its_bound_is_refused_with_both_sizes(queue: PersistentQueue) -> None:
    """Exactly at the bound it is taken."""
    queue.put(b"x" * 1000)
    for call in (lambda: queue.put(b"x" * 1001), lambda: queue.put_many([b"good", b"x" * 1001])):
        error = refused(queue, RecordTooLargeError, call, "record_bytes_max=1000")
        assert (error.size_bytes, error.max_bytes) == (1001, 1000)  # type: ignore[attr-defined]


def test_one_payload_instead_of_several_is_refused(queue: PersistentQueue) -> None:
    """Bytes are a sequence of numbers, which nobody means."""
    for payload in (b"bytes", bytearray(b"b"), memoryview(b"b"), "text"):
        refused(queue, TypeError, lambda payload=payload: queue.put_many(payload), "put takes one")


def test_an_empty_batch_writes_nothing(queue: PersistentQueue) -> None:
    """Its range of offsets is empty."""
    assert queue.put_many([]) == range(1, 1)
    assert queue.put_many(iter(())) == range(1, 1)


def test_a_batch_whose_iterator_fails_writes_nothing(queue: PersistentQueue) -> None:
    """All of it, or nothing."""

    def broken() -> Iterator[bytes]:
        yield b"good"
        raise RuntimeError("the source broke")

    refused(queue, RuntimeError, lambda: queue.put_many(broken()), "the source broke")


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": b"b"}, {"a": None}], ids=repr)
def test_headers_that_are_no_text_are_refused(queue: PersistentQueue, headers: Any) -> None:
    """TypeError names both types."""
    refused(queue, TypeError, lambda: queue.put(b"x", headers=headers), "str to str")


def test_headers_that_are_too_large_are_refused(queue: PersistentQueue) -> None:
    """One name, or all of them."""
    refused(queue, RecordTooLargeError, lambda: queue.put(b"x", headers={"n" * 256: "v"}), "255")
    refused(queue, RecordTooLargeError, lambda: queue.put(b"x", headers={"n": "v" * 65_536}), "65535")


def test_a_batch_larger_than_maxsize_can_never_fit(root: Path) -> None:
    """It says so instead of waiting for ever."""
    with PersistentQueue(root, mode="exclusive", maxsize=2) as queue:
        with pytest.raises(RecordTooLargeError, match="maxsize=2"):
            queue.put_many([b"a", b"b", b"c"])
        assert queue.stats().next_offset == 0


# -- Timeouts, counts and modes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan])
def test_a_negative_timeout_is_refused(queue: PersistentQueue, timeout: float) -> None:
    """As the standard library does; nothing is taken."""
    calls: list[Callable[[], object]] = [
        lambda: queue.get(timeout=timeout),
        lambda: queue.get_many(1, timeout=timeout),
        lambda: queue.receive(timeout=timeout),
        lambda: queue.receive_many(1, timeout=timeout),
        lambda: queue.put(b"x", timeout=timeout),
        lambda: queue.put_many([b"x"], timeout=timeout),
    ]
    for call in calls:
        refused(queue, ValueError, call, "timeout")


def test_a_timeout_does_not_matter_where_nobody_waits(queue: PersistentQueue) -> None:
    """As the standard library does."""
    assert queue.get(block=False, timeout=-1) == b"first"
    with pytest.raises(Empty):
        queue.get(block=False, timeout=-1)


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_refused(queue: PersistentQueue, count: int) -> None:
    """Nothing is taken."""
    for call in (queue.get_many, queue.receive_many, queue.peek):
        refused(queue, ValueError, lambda call=call: call(count), "at least 1")


def test_a_queue_opened_to_look_neither_takes_nor_puts(root: Path) -> None:
    """The error names the mode and the ones that do."""
    with PersistentQueue(root, mode="exclusive") as queue:
        queue.put(b"x")
    with PersistentQueue(root, mode="read_only") as queue:
        for call in (queue.get, queue.get_nowait, queue.receive, lambda: queue.get_many(1)):
            with pytest.raises(UsageError, match=r"mode='read_only', which does not take; use mode='shared'$"):
                call()
        for call in (lambda: queue.put(b"x"), lambda: queue.put_many([b"x"]), lambda: queue.put_nowait(b"x")):
            with pytest.raises(UsageError, match=r"mode='read_only', which does not put; use mode='shared'$"):
                call()
        assert queue.qsize() == 1


def test_a_queue_opened_to_look_does_not_take_and_makes_no_groups(root: Path) -> None:
    """It changes nothing."""
    with PersistentQueue(root, mode="exclusive") as writer:
        writer.put(b"x")
    before = tree(root)
    with PersistentQueue(root, mode="read_only") as queue:
        assert queue.peek()[0].payload == b"x"
        for call in (queue.get, queue.receive, lambda: queue.groups.create("g"), lambda: queue.groups.delete("g")):
            with pytest.raises(UsageError, match="read_only"):
                call()
    assert tree(root) == before


def test_every_call_of_a_closed_queue_says_so_and_none_hangs(root: Path) -> None:
    """Closing twice does nothing."""
    queue = PersistentQueue(root, mode="exclusive")
    queue.put(b"x")
    delivery = queue.receive()
    queue.close()
    queue.close()
    calls: list[Callable[[], object]] = [
        lambda: queue.put(b"x"),
        lambda: queue.put_many([b"x"]),
        queue.get,
        queue.get_nowait,
        lambda: queue.get_many(1),
        queue.receive,
        lambda: queue.receive_many(1),
        queue.peek,
        queue.qsize,
        queue.empty,
        queue.full,
        queue.flush,
        queue.stats,
        delivery.ack,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="closed"):
            call()
    with pytest.raises(ClosedError):
        next(iter(queue))


# -- Options and names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "write"},
        {"mode": None},
        {"flush": "always"},
        {"flush": None},
        {"data_file_bytes": 0},
        {"data_file_bytes": 16 * 2**10 - 1},
        {"data_file_bytes": 2**32},
        {"record_bytes_max": -1},
        {"record_bytes_max": 2**32},
        {"maxsize": -1},
        {"max_bytes": 2**20},
        {"lock_timeout": -1},
        {"lock_timeout": math.nan},
        {"group": ""},
        {"group": "a/b"},
        {"group": ".hidden"},
        {"group": ".."},
        {"group": "a\0b"},
        {"group": "x" * 101},
        {"group": None},
    ],
    ids=repr,
)
@pytest.mark.usefixtures("unchanged")
def test_an_option_that_cannot_work_is_refused_and_nothing_is_made(root: Path, options: dict[str, Any]) -> None:
    """ConfigError says what would work."""
    with pytest.raises(ConfigError):
        PersistentQueue(root, **{"mode": "exclusive", **options})


@pytest.mark.parametrize("options", [{"commits": 0}, {"seconds": 0}, {"seconds": -1.0}, {"seconds": math.nan}])
def test_a_flush_policy_that_cannot_work_is_refused(options: dict[str, float]) -> None:
    """At least one commit, and more than no time."""
    with pytest.raises(ConfigError):
        FlushPolicy.every(**options)


@pytest.mark.parametrize("name", [".hidden", "a b", "ä", "a:b", "x" * 101, "a\nb", "a\0b"], ids=repr)
@pytest.mark.usefixtures("unchanged")
def test_a_queue_name_that_cannot_be_is_refused_and_nothing_is_made(root: Path, name: str) -> None:
    """The last part of the path is the queue's name."""
    for mode in ("exclusive", "shared"):
        with pytest.raises(ConfigError):
            PersistentQueue(root.parent / name, mode=mode)


@pytest.mark.usefixtures("unchanged")
def test_the_root_directory_is_no_queue() -> None:
    """It has no name."""
    with pytest.raises(ConfigError):
        PersistentQueue("/", mode="exclusive")


def test_a_group_name_that_cannot_be_is_refused(queue: PersistentQueue) -> None:
    """With a slash, dots, a NUL, or nothing at all."""
    for name in ("", "a/b", "..", ".hidden", "a\0b", "x" * 101):
        with pytest.raises(ConfigError, match="cannot name a group"):
            queue.groups.create(name)
        with pytest.raises(ConfigError, match="cannot name a group"):
            queue.groups.delete(name)
    assert "a" not in queue.groups.list()


@pytest.mark.parametrize(
    ("start", "why"), [*[(each, "earliest") for each in ("first", 1.5, None, True)], (2, "ends at offset 1")], ids=repr
)
def test_a_group_cannot_start_where_nothing_is(queue: PersistentQueue, start: Any, why: str) -> None:
    """An offset from 0 to the next one, or one of the other forms."""
    with pytest.raises(ConfigError, match=why):
        queue.groups.create("g", start=start)
    assert "g" not in queue.groups.list()


def test_an_unknown_group_is_refused_with_the_names_of_those_there_are(root: Path) -> None:
    """Reading for it, looking for it, and deleting it; nothing is made."""
    with PersistentQueue(root, mode="exclusive") as queue:
        queue.groups.create("known")
        with pytest.raises(GroupNotFoundError, match="known"):
            queue.groups.delete("unknown")

    def there() -> list[str]:
        return sorted(str(path) for path in root.rglob("*") if ".owner" not in path.parts)

    before = there()
    for mode in ("exclusive", "shared", "read_only"):
        with pytest.raises(GroupNotFoundError, match="known") as caught:
            PersistentQueue(root, mode=mode, group="unknown")
        assert (caught.value.group, caught.value.groups) == ("unknown", ["known"])
    assert there() == before
    PersistentQueue(root, mode="exclusive").close()  # nothing is locked any more


# -- Time ------------------------------------------------------------------------------------------------------------


def test_a_clock_that_goes_backwards_does_not_turn_timestamps_back(root: Path) -> None:
    """Neither in one opening nor over two."""
    clock = FakeClock()
    with PersistentQueue(root, mode="exclusive", clock=clock) as queue:
        queue.put(b"now")
        clock.set_time_ns(START_NS - 10**12)
        queue.put(b"earlier")
    with PersistentQueue(root, mode="exclusive", clock=clock) as queue:
        queue.put_many([b"after reopening", b"and again"])
        stamps = [message.timestamp_ns for message in queue.peek(10)]
    assert stamps == [START_NS] * 4


def test_a_payload_with_encoded_headers_is_bounded_as_any_other(tmp_path: Path) -> None:
    """In the modes that put; in the others it says so."""
    headers = encode_headers({"tenant": "acme"})
    with PersistentQueue(tmp_path / "q", mode="exclusive", record_bytes_max=10) as queue:
        assert queue.put_encoded(b"x" * 10, headers, None) == 0
        with pytest.raises(RecordTooLargeError):
            queue.put_encoded(b"x" * 11, headers, None)
    with PersistentQueue(tmp_path / "q", mode="shared") as other:
        assert other.put_encoded(b"shared", headers, 30) == 1
        assert [message.headers for message in other.peek(3)] == [{"tenant": "acme"}] * 2
        with pytest.raises(RecordTooLargeError):
            other.put_encoded(b"x" * 11, headers, None)
    with PersistentQueue(tmp_path / "q", mode="read_only") as reader, pytest.raises(UsageError):
        reader.put_encoded(b"x", headers, None)
    with pytest.raises(ClosedError):
        queue.put_encoded(b"x", headers, None)
