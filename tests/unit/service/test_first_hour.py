"""Mistakes of a first hour with Holdfast: each gets one line that says what happened and what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from queue import Empty, Full
from typing import Any

import msgspec
import pytest

from holdfast import (
    ClosedError,
    ConfigError,
    Delivery,
    EncodeError,
    GroupNotFoundError,
    LeaseExpiredError,
    PersistentQueue,
    QueueLockedError,
    QueueNotFoundError,
    QueueService,
    ShutDown,
    StaleReceiptError,
    TypedQueue,
    UsageError,
)
from holdfast.queue.options.queue_options import Mode
from support.builders.clocks import FakeClock


class Order(msgspec.Struct):
    """What the typed queue takes."""

    number: int


class Refund(msgspec.Struct):
    """What it does not take."""

    number: int


class World:
    """A directory with an open queue of bytes, and a service with an open queue of orders."""

    def __init__(self, root: Path, mode: Mode) -> None:
        self.root = root
        self.clock = FakeClock()
        (root / "notes.txt").write_text("mine")
        self.mode = mode
        self.jobs = PersistentQueue(root / "jobs", mode=mode, clock=self.clock)
        self.service = QueueService(root / "data", mode=mode, catalog=False)
        self.orders: TypedQueue[Order] = self.service.queue("orders", type=Order, max_deliveries=3)

    def close(self) -> None:
        """Close both."""
        self.jobs.close()
        self.service.close()

    def delivery(self, **options: Any) -> Delivery:
        """Put a message and take it."""
        self.jobs.put(b"job")
        return self.jobs.receive(timeout=0, **options)

    def reopened(self, mode: str, verb: str, *arguments: Any) -> object:
        """Open the queue in a mode, and call a method."""
        self.jobs.close()
        with PersistentQueue(self.jobs.path, mode=mode) as queue:
            return getattr(queue, verb)(*arguments)

    def after_shutdown(self, verb: str, *arguments: Any) -> object:
        """Shut the queue down, and call a method."""
        self.jobs.shutdown()
        return getattr(self.jobs, verb)(*arguments)

    def after_close(self, verb: str, *arguments: Any) -> object:
        """Close the queue, and call a method."""
        self.jobs.close()
        return getattr(self.jobs, verb)(*arguments)


@pytest.fixture(params=["shared", "exclusive"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Return a world whose queues are shared, or owned alone, and close it."""
    world = World(tmp_path, request.param)
    yield world
    world.close()


def handle(_order: object) -> None:
    """Do nothing with a message."""


async def handle_in_a_task(_order: object) -> None:
    """Do nothing with a message, awaited."""


def handle_nothing() -> None:
    """Take no message, which no handler does."""


def twice(world: World, verb: str) -> None:
    """Settle a delivery twice."""
    delivery = world.delivery()
    delivery.ack()
    getattr(delivery, verb)()


def too_late(world: World) -> None:
    """Acknowledge after the lease is over."""
    delivery = world.delivery(lease_seconds=5)
    world.clock.advance(6)
    delivery.ack()


def file_in_groups(world: World) -> None:
    """Leave a file beside the groups."""
    world.jobs.close()
    (world.root / "jobs/groups/notes").write_text("mine")
    PersistentQueue(world.root / "jobs", mode=world.mode)


def directory_in_spare(world: World) -> None:
    """Leave a directory beside the spare files."""
    world.jobs.close()
    (world.root / "jobs/spare/mine").mkdir()
    PersistentQueue(world.root / "jobs", mode=world.mode)


def configured(world: World) -> None:
    """Name a queue with another setting than an operator has."""
    (world.root / "data2").mkdir()
    (world.root / "data2/holdfast.toml").write_text("[defaults]\nlease_seconds = 60\n")
    with QueueService(world.root / "data2", mode=world.mode, catalog=False) as service:
        service.queue("mail")
        service.queue("mail", lease_seconds=5)


def registered_twice(world: World) -> None:
    """Register two handlers of one queue."""
    world.service.consumer("orders")(handle)
    world.service.consumer(world.orders)(handle)


FIRST = World.__init__.__code__.co_firstlineno + 7
"""The line that opens the queue of orders first."""

NAMES = "use 1 to 100 of the characters A-Z a-z 0-9 . _ - without a leading dot"
BYTES = "QueueService takes objects and serializes them"
HERE = (
    "is owned by this same process {pid} on {host}: share that one open queue between all threads, close it first, or "
    "open both with mode='shared'; mode='read_only' reads"
)
SETTLED = "was acknowledged or given back before; take the message again if it is still there"

MISTAKES: list[tuple[str, Callable[[World], object], type[Exception], str]] = [
    # Opening
    (
        "no path",
        lambda world: PersistentQueue(None, mode=world.mode),
        TypeError,
        "the path of a queue is a str or a pathlib.Path, not NoneType",
    ),
    (
        "an empty path",
        lambda world: QueueService("", mode=world.mode),
        ConfigError,
        "the path of the service is empty: name its directory",
    ),
    (
        "a file as the path of a queue",
        lambda world: PersistentQueue(world.root / "notes.txt", mode=world.mode),
        ConfigError,
        "{root}/notes.txt is a file; a queue is a directory: choose another path",
    ),
    (
        "a file as the path of a service",
        lambda world: QueueService(world.root / "notes.txt", mode=world.mode),
        ConfigError,
        "{root}/notes.txt is a file, or below one; a service is a directory: choose another path",
    ),
    (
        "a directory with other files",
        lambda world: PersistentQueue(world.root, mode=world.mode),
        ConfigError,
        "{root} is not a queue: it holds 'jobs' and no queue.json; choose an empty directory",
    ),
    (
        "a queue opened as a service",
        lambda world: QueueService(world.root / "jobs", mode=world.mode, catalog=False).queue("orders"),
        ConfigError,
        "{root}/jobs is a queue, not a service: open QueueService('{root}') and its queue 'jobs', or choose another "
        "directory",
    ),
    (
        "looking at no queue",
        lambda world: PersistentQueue(world.root / "none", mode="read_only"),
        QueueNotFoundError,
        "no queue at {root}/none; opening it with another mode than 'read_only' creates one",
    ),
    (
        "an unknown mode",
        lambda world: PersistentQueue(world.root / "none", mode="read"),
        ConfigError,
        "mode is one of exclusive, shared, read_only, not 'read'",
    ),
    (
        "a data file that is too small",
        lambda world: PersistentQueue(world.root / "none", mode=world.mode, data_file_bytes=1000),
        ConfigError,
        "data_file_bytes is from 16384 to 4294967295, not 1000",
    ),
    (
        "a size as text",
        lambda world: PersistentQueue(world.root / "none", mode=world.mode, data_file_bytes="64M"),
        ConfigError,
        "data_file_bytes is a number of bytes, not '64M'",
    ),
    (
        "no lock timeout",
        lambda world: PersistentQueue(world.root / "none", mode=world.mode, lock_timeout=None),
        ConfigError,
        "lock_timeout is at least 0 seconds, not None",
    ),
    (
        "a bound as text",
        lambda world: PersistentQueue(world.root / "none", mode=world.mode, max_bytes="1G"),
        ConfigError,
        "max_bytes is a number of bytes, or None for no bound, not '1G'",
    ),
    (
        "a queue opened twice",
        lambda world: PersistentQueue(world.root / "jobs", mode="exclusive"),
        QueueLockedError,
        "the write side of {root}/jobs " + HERE,
    ),
    (
        "a service opened twice",
        lambda world: QueueService(world.root / "data", mode="exclusive", catalog=False).queue("orders"),
        QueueLockedError,
        "the write side of {root}/data/orders " + HERE,
    ),
    (
        "a group that was not made",
        lambda world: world.jobs.groups.delete("audit"),
        GroupNotFoundError,
        "no group 'audit' in {root}/jobs (there are: none); make it with queue.groups.create('audit')",
    ),
    (
        "a file between the groups",
        file_in_groups,
        ConfigError,
        "{root}/jobs/groups/notes is a file; here belongs a directory of a consumer group: move the file out of the "
        "queue's directory",
    ),
    (
        "a directory between the spare files",
        directory_in_spare,
        ConfigError,
        "{root}/jobs/spare/mine is a directory; only emptied data files belong into spare/: move it out of the queue's "
        "directory",
    ),
    # Putting
    ("a text as payload", lambda world: world.jobs.put("job"), TypeError, f"a payload is bytes, not str; {BYTES}"),
    ("None as payload", lambda world: world.jobs.put(None), TypeError, f"a payload is bytes, not NoneType; {BYTES}"),
    (
        "one payload for many",
        lambda world: world.jobs.put_many(b"job"),
        TypeError,
        "put_many takes several payloads, in a list for example; put takes one",
    ),
    (
        "headers in a list",
        lambda world: world.jobs.put(b"job", headers=["tenant"]),
        TypeError,
        "headers map str to str, as a dict does, not list",
    ),
    (
        "a header that is a number",
        lambda world: world.jobs.put(b"job", headers={"tenant": 5}),
        TypeError,
        "headers map str to str, not str to int",
    ),
    (
        "a delay as text",
        lambda world: world.jobs.put(b"job", delay="5s"),
        TypeError,
        "delay takes seconds or a timedelta, not str",
    ),
    (
        "a delay that is over",
        lambda world: world.jobs.put(b"job", delay=timedelta(seconds=-5)),
        UsageError,
        "delay takes seconds from 0 on, not datetime.timedelta(days=-1, seconds=86395)",
    ),
    (
        "a time without a zone",
        lambda world: world.jobs.put(b"job", not_before=datetime(2030, 1, 1)),
        UsageError,
        "not_before takes a datetime with a time zone: datetime.now(timezone.utc) has one",
    ),
    (
        "a word as priority",
        lambda world: world.jobs.put(b"job", priority="high"),
        UsageError,
        "priority is 0 to 9, larger first; not 'high'",
    ),
    (
        "no room",
        lambda world: [world.jobs.configure(maxsize=1), *(world.jobs.put(b"job", timeout=0) for _ in range(2))],
        Full,
        "the queue had no room within the timeout, nothing was written: take and acknowledge messages, or wait longer",
    ),
    (
        "a put after close",
        lambda world: world.after_close("put", b"job"),
        ClosedError,
        "the queue is closed; open it again",
    ),
    (
        "a put after shutdown",
        lambda world: world.after_shutdown("put", b"job"),
        ShutDown,
        "the queue was shut down: it takes nothing more, open it again to put or to take",
    ),
    (
        "a put where nothing is put",
        lambda world: world.reopened("read_only", "put", b"job"),
        UsageError,
        "{root}/jobs was opened with mode='read_only', which does not put; use mode='shared'",
    ),
    # Taking
    ("nothing there", lambda world: world.jobs.get(timeout=0), Empty, "no message came within the timeout"),
    (
        "a negative timeout",
        lambda world: world.jobs.get(timeout=-1),
        ValueError,
        "a timeout is None or at least 0 seconds, not -1",
    ),
    (
        "a timeout as text",
        lambda world: world.jobs.receive(timeout="5"),
        TypeError,
        "a timeout is None or a number of seconds, not str",
    ),
    ("no number of messages", lambda world: world.jobs.receive_many(0), ValueError, "at least 1 message, not 0"),
    (
        "None messages",
        lambda world: world.jobs.get_many(None),
        TypeError,
        "max_messages is a number from 1 on, not NoneType",
    ),
    ("acknowledged twice", lambda world: twice(world, "ack"), StaleReceiptError, f"the delivery of offset 0 {SETTLED}"),
    (
        "given back after that",
        lambda world: twice(world, "nack"),
        StaleReceiptError,
        f"the delivery of offset 0 {SETTLED}",
    ),
    (
        "acknowledged too late",
        too_late,
        LeaseExpiredError,
        "the lease of offset 0 ran out after 5 s, and the message was given back; work inside `with delivery:`, "
        "call extend(), or receive it with a longer lease_seconds",
    ),
    (
        "taking where nothing is taken",
        lambda world: world.reopened("read_only", "get"),
        UsageError,
        "{root}/jobs was opened with mode='read_only', which does not take; use mode='shared'",
    ),
    (
        "taking after shutdown",
        lambda world: world.after_shutdown("get"),
        ShutDown,
        "the queue was shut down, and nothing is left in it",
    ),
    # The service
    (
        "a slash in a name",
        lambda world: world.service.queue("mail/out"),
        ConfigError,
        f"'mail/out' cannot name a queue: {NAMES}",
    ),
    (
        "an unknown option",
        lambda world: world.service.queue("mail", max_retries=5),
        TypeError,
        "service.queue() has no option 'max_retries'; did you mean max_deliveries?",
    ),
    (
        "another setting than before",
        lambda world: world.service.queue("orders", lease_seconds=5),
        ConfigError,
        "queue 'orders' is open with lease_seconds=30 (the default), not with lease_seconds=5: say it once, where the "
        "queue is first opened",
    ),
    (
        "another setting than an operator's",
        configured,
        ConfigError,
        "queue 'mail' is open with lease_seconds=60 ({root}/data2/holdfast.toml, line 2: defaults.lease_seconds), "
        "not with lease_seconds=5: say it once, where the queue is first opened",
    ),
    (
        "another type than before",
        lambda world: world.service.queue("orders", type=Refund),
        ConfigError,
        f"queue 'orders' is open with type=Order ({__file__}, line {{line}}), not with type=Refund: say it once, where "
        "the queue is first opened",
    ),
    (
        "an object of another type",
        lambda world: world.orders.put({"number": 1}),
        EncodeError,
        "the queue takes Order, not dict; nothing was written. Declare its type too, or put it into another queue",
    ),
    (
        "one object for many",
        lambda world: world.orders.put_many(Order(1)),
        TypeError,
        "put_many takes several objects, not one Order; put takes one",
    ),
    (
        "a name in a transaction",
        lambda world: world.service.transaction().put("orders", Order(1)),
        TypeError,
        "a transaction takes the queue that service.queue() returned, not str",
    ),
    (
        "a serializer that is none",
        lambda world: world.service.queue("mail", serializer="yaml"),
        ConfigError,
        "no serializer is named 'yaml'; there are raw, json, msgpack, pickle, protobuf, and those you register",
    ),
    # Consumers
    (
        "no consumers",
        lambda world: world.service.run(),
        ConfigError,
        "nothing to run: register a handler with @service.consumer(queue)",
    ),
    (
        "a decorator without a queue",
        lambda world: world.service.consumer(handle),
        ConfigError,
        "write @service.consumer(queue), with the queue or its name in parentheses, not the handler itself",
    ),
    (
        "two consumers of a queue",
        registered_twice,
        ConfigError,
        f"queue 'orders' is handled by {__name__}.handle already; it takes one consumer",
    ),
    (
        "a misspelt option of a consumer",
        lambda world: world.service.consumer("mail", concurency=2),
        TypeError,
        "service.consumer() has no option 'concurency'; did you mean concurrency?",
    ),
    (
        "a handler of no message",
        lambda world: world.service.consumer("mail")(handle_nothing),
        ConfigError,
        f"{__name__}.handle_nothing() -> 'None' does not fit: a handler takes the message's object, or the object and "
        "the delivery",
    ),
    (
        "an asynchronous handler",
        lambda world: world.service.consumer("mail")(handle_in_a_task),
        ConfigError,
        f"{__name__}.handle_in_a_task is async: register it with an AsyncQueueService",
    ),
    (
        "a queue of another service",
        lambda world: QueueService(world.root / "other", mode=world.mode).consumer(world.orders)(handle),
        ConfigError,
        "<TypedQueue orders at {root}/data/orders> does not belong to this service: register it with the one that "
        "opened it",
    ),
]


@pytest.mark.parametrize(("mistake", "kind", "text"), [pytest.param(*each[1:], id=each[0]) for each in MISTAKES])
def test_a_mistake_gets_one_line_with_the_right_advice(
    world: World, mistake: Callable[[World], object], kind: type[Exception], text: str
) -> None:
    """What happened, and what to do; the text is part of what users know."""
    with pytest.raises(kind) as caught:
        mistake(world)
    names = {"{root}": str(world.root), "{pid}": str(os.getpid()), "{host}": socket.gethostname(), "{line}": str(FIRST)}
    for name, value in names.items():
        text = text.replace(name, value)
    assert str(caught.value) == text
    assert "\n" not in text


ELSEWHERE = """
import sys
from holdfast import HoldfastError, PersistentQueue
for options in ({"mode": "exclusive"}, {"mode": "exclusive", "lock_timeout": 0.01}, {"mode": "shared"}):
    try:
        PersistentQueue(sys.argv[1], **options).close()
    except HoldfastError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("it opens")
"""


def test_a_queue_that_another_process_owns_says_which_and_what_helps(world: World) -> None:
    """It is shared if both say so; looking has a mode, and waiting an option."""
    found = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, world.jobs.path], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    owner = f"the write side of {world.jobs.path} is owned by process {os.getpid()} on {socket.gethostname()}"
    assert found == [
        f"QueueLockedError: {owner}: {ELSEWHERE_ADVICE}",
        f"LockTimeoutError: {owner} after 0.01 s: {ELSEWHERE_ADVICE}",
        "it opens" if world.mode == "shared" else f"QueueLockedError: {owner}: {ELSEWHERE_ADVICE}",
    ]


ELSEWHERE_ADVICE = (
    "open it with mode='shared' in all processes that put or take, or here with mode='read_only' (or `holdfast ls`) to "
    "see; or stop that process, and lock_timeout= waits for its end"
)
