"""``queue.configure`` and ``holdfast set``: settings that change while messages wait."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CommitUnknownError,
    ConfigError,
    CorruptionError,
    DiskFullError,
    FlushPolicy,
    Full,
    GroupNotFoundError,
    PersistentQueue,
    QueueLockedError,
    QueueNotFoundError,
    RecordTooLargeError,
    StorageError,
    UsageError,
)
from holdfast.queue.engine.configuring import configure_closed
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.builders.settings import change_settings, set_anew
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture
def storage() -> SimulatedStorage:
    """A disk in memory."""
    return SimulatedStorage()


def opened(storage: SimulatedStorage, clock: FakeClock, **options: Any) -> PersistentQueue:
    """Open the queue."""
    return PersistentQueue(ROOT, storage=storage, clock=clock, **{"mode": "exclusive", **options})


def is_synced(queue: PersistentQueue) -> bool:
    """Whether all that was put is on the disk."""
    writer = handle_of(queue).require_write_side()._writer
    return writer.synced == writer.end


def test_a_change_counts_at_once_and_for_all_who_come_later(storage: SimulatedStorage, clock: FakeClock) -> None:
    """Bounds of the queue, and rules of the group; what is reset has its default again."""
    with opened(storage, clock) as queue:
        queue.put_many([b"a", b"b"])
        queue.configure(maxsize=2, record_bytes_max=10, max_deliveries=1, lease_seconds=3)
        with pytest.raises(Full):
            queue.put(b"c", timeout=0)
        with pytest.raises(RecordTooLargeError, match="record_bytes_max=10"):
            queue.put(bytes(11))
        queue.receive().nack()
        (letter,) = queue.dead.list()
        assert (letter.payload, letter.reason) == (b"a", "max_deliveries")
        queue.configure(reset=["maxsize", "lease_seconds"])
        assert (queue.maxsize, queue.settings["lease_seconds"]) == (0, 30.0)
    with opened(storage, clock) as queue:
        settings = queue.settings
        assert (settings["maxsize"], settings["record_bytes_max"], settings["max_deliveries"]) == (0, 10, 1)


def test_a_lease_and_a_wait_are_as_the_rules_are_by_then(storage: SimulatedStorage, clock: FakeClock) -> None:
    """Those that were given before stay as they are."""
    with opened(storage, clock) as queue:
        queue.put_many([b"a", b"b"])
        queue.configure(lease_seconds=3, backoff=[100])
        queue.receive().nack()
        held = queue.receive()
        clock.advance(4)
        again = queue.receive()
        assert (again.payload, again.delivery_count, held.has_expired) == (b"b", 2, True)
        assert [each.payload for each in queue.browse("delayed")] == [b"a"]


def test_ids_are_remembered_for_as_long_as_the_window_is_by_then(storage: SimulatedStorage, clock: FakeClock) -> None:
    """A shorter one forgets at once; a longer one remembers what is still known."""
    with opened(storage, clock) as queue:
        queue.put(b"a", dedup_id="one")
        clock.advance(10)
        queue.configure(dedup_window=5)
        assert queue.put(b"a", dedup_id="one") == 1
        queue.configure(dedup_window=500)
        clock.advance(400)
        assert queue.put(b"a", dedup_id="one") == 1


def test_the_next_data_file_has_the_new_size(storage: SimulatedStorage, clock: FakeClock) -> None:
    """The one that is there stays."""
    with opened(storage, clock, data_file_bytes=2**20) as queue:
        queue.configure(data_file_bytes=2**16)
        for _ in range(8):
            queue.put(bytes(60_000))
        assert queue.stats().file_count > 2
    with opened(storage, clock, flush=FlushPolicy.every_commit()) as queue:
        queue.configure(flush=FlushPolicy.never())
        queue.put(b"synced, until the next opening")
        assert is_synced(queue)
    with opened(storage, clock) as queue:
        queue.put(b"x")
        assert not is_synced(queue)


def test_a_mode_that_does_not_own_it_changes_nothing(storage: SimulatedStorage, clock: FakeClock) -> None:
    """The error names the modes that do."""
    with opened(storage, clock, mode="exclusive") as owner, opened(storage, clock, mode="read_only") as look:
        with pytest.raises(
            UsageError, match=r"mode='read_only', which does not change settings of the queue; use mode='shared'$"
        ):
            look.configure(maxsize=5, lease_seconds=5)
        with pytest.raises(
            UsageError, match=r"mode='read_only', which does not change settings of the group; use mode='shared'$"
        ):
            look.configure(lease_seconds=5)
        assert owner.maxsize == 0
        owner.configure(maxsize=5, lease_seconds=5)
    with opened(storage, clock) as queue:
        assert (queue.maxsize, queue.settings["lease_seconds"]) == (5, 5.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda queue: queue.configure(maxsize=-1, lease_seconds=5), ConfigError, "maxsize is 0 for no bound"),
        (lambda queue: queue.configure(max_bytes=2**20), ConfigError, "leaves no room for two data files"),
        (lambda queue: queue.configure(reset=["max_size"]), TypeError, r"configure\(\) has no option 'max_size'"),
        (lambda queue: queue.configure(colour="red"), TypeError, r"configure\(\) has no option 'colour'"),
    ],
)
def test_what_cannot_work_changes_nothing(
    storage: SimulatedStorage, clock: FakeClock, call: Any, error: type[Exception], message: str
) -> None:
    """Neither on the disk nor here."""
    with opened(storage, clock, maxsize=3) as queue:
        before = queue.settings
        begun = len(storage.log)
        with pytest.raises(error, match=message):
            call(queue)
        assert queue.settings == before
        assert len(storage.log) == begun


def test_a_change_is_logged(storage: SimulatedStorage, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """Who, what, and what came of it."""
    with opened(storage, clock) as queue, caplog.at_level(logging.INFO):
        queue.configure(maxsize=3, reset=["dedup_max"])
        with pytest.raises(ConfigError):
            queue.configure(maxsize=-3)
    shown = [message for message in caplog.messages if message.startswith("q: configure(")]
    assert shown[0].startswith("q: configure(maxsize=3, reset=['dedup_max']) by user ")
    assert shown[0].endswith(": done")
    assert "ConfigError" in shown[1]


def test_a_closed_queue_is_changed_by_its_path(storage: SimulatedStorage, clock: FakeClock) -> None:
    """The queue, and any of its groups."""
    with opened(storage, clock) as queue:
        queue.put(b"x")
        queue.groups.create("audit")
    change_settings(ROOT, storage, maxsize=4)
    configure_closed(storage, clock, ROOT, {"max_deliveries": 2}, group="audit")
    configure_closed(storage, clock, ROOT, {"maxsize": 6, "lease_seconds": 9}, ["max_deliveries"], group="audit")
    with opened(storage, clock) as queue:
        assert (queue.maxsize, queue.settings["lease_seconds"]) == (6, 30.0)
    with opened(storage, clock, mode="exclusive", group="audit") as audit:
        assert (audit.settings["lease_seconds"], audit.settings["max_deliveries"]) == (9.0, 5)


def test_a_path_without_that_queue_or_group_says_so(storage: SimulatedStorage, clock: FakeClock) -> None:
    """Nothing is made."""
    with pytest.raises(QueueNotFoundError):
        change_settings(ROOT, storage, maxsize=4)
    opened(storage, clock).close()
    with pytest.raises(GroupNotFoundError):
        configure_closed(storage, clock, ROOT, {"lease_seconds": 4}, group="audit")
    with pytest.raises(ConfigError, match="maxsize"):
        change_settings(ROOT, storage, maxsize=-4)


def test_an_open_queue_is_changed_by_its_owner_only(storage: SimulatedStorage, clock: FakeClock) -> None:
    """The error says how."""
    with opened(storage, clock, mode="exclusive") as owner:
        for change in ({"maxsize": 4}, {"lease_seconds": 5}):
            with pytest.raises(QueueLockedError, match=r"call configure\(\) of the open queue"):
                change_settings(ROOT, storage, **change)
        owner.configure(lease_seconds=4)
    change_settings(ROOT, storage, maxsize=4)


def test_lost_settings_are_set_anew_on_purpose_only(storage: SimulatedStorage, clock: FakeClock) -> None:
    """Those of the queue and those of its group, each by itself."""
    with opened(storage, clock, maxsize=4, lease_seconds=5) as queue:
        queue.put_many([b"a", b"b"])
        queue.get()
    for name in ("queue.json", "groups/default/group.json"):
        with storage.open(ROOT / name) as file:
            file.truncate(10)
        with pytest.raises(CorruptionError, match="--rebuilt"):
            opened(storage, clock)
        with pytest.raises(CorruptionError, match="--rebuilt"):
            change_settings(ROOT, storage, **{"maxsize": 3} if name == "queue.json" else {"lease_seconds": 3})
        set_anew(ROOT, storage, **{"maxsize": 7} if name == "queue.json" else {"lease_seconds": 8})
    with opened(storage, clock) as queue:
        assert (queue.maxsize, queue.settings["lease_seconds"]) == (7, 8.0)
        assert queue.get() == b"b"


@pytest.mark.parametrize("is_open", [True, False])
def test_changes_for_another_group_leave_what_waits_for_the_default_group(
    storage: SimulatedStorage, clock: FakeClock, is_open: bool
) -> None:
    """Also if they reset a setting of the same name."""
    with opened(storage, clock, max_deliveries=1, lease_seconds=7) as queue:
        queue.groups.create("audit", max_deliveries=2)
    if is_open:
        with opened(storage, clock, group="audit") as audit:
            audit.configure(maxsize=4, reset=["max_deliveries"])
            assert audit.settings["max_deliveries"] == 5
    else:
        configure_closed(storage, clock, ROOT, {"maxsize": 4}, ["max_deliveries"], group="audit")
    with opened(storage, clock) as queue:
        queue.put(b"x")
        assert queue.receive().lease_seconds == 7
        assert (queue.maxsize, queue.settings["max_deliveries"]) == (4, 1)
    with opened(storage, clock, group="audit") as audit:
        assert audit.settings["max_deliveries"] == 5


@pytest.mark.parametrize("part", ["queue", "group"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
def test_every_fault_leaves_the_old_ones_or_says_that_it_is_unknown(
    clock: FakeClock, part: str, error: int, forever: bool
) -> None:
    """It is unknown only where the old ones cannot be put back. And the next call sets them durably."""
    change: Any = {"maxsize": 5} if part == "queue" else {"max_deliveries": 2}
    (name,) = change
    outcomes = set()
    for call in range(1, 40):
        storage = SimulatedStorage()
        queue = opened(storage, clock)
        queue.put(b"x")
        queue.receive().release()
        before = queue.settings[name]  # type: ignore[literal-required]
        plan = storage.faults = FaultPlan(call, error, forever=forever)
        raised: Exception | None = None
        try:
            queue.configure(**change)
        except StorageError as refused:
            raised = refused
        storage.faults = None
        for disk in (storage.crash_keeping_all(), storage.crash_dropping_unsynced()):
            with opened(disk, clock) as again:
                found = again.settings[name]  # type: ignore[literal-required]
            if raised is None:
                assert found == change[name]
            elif not isinstance(raised, CommitUnknownError):
                assert found == queue.settings[name] == before  # type: ignore[literal-required]
        if raised is not None and not isinstance(raised, CommitUnknownError):
            assert isinstance(raised, DiskFullError) is (error == errno.ENOSPC)
        outcomes.add(type(raised))
        queue.configure(**change)
        for disk in (storage.crash_keeping_all(), storage.crash_dropping_unsynced()):
            with opened(disk, clock) as again:
                assert again.settings[name] == change[name]  # type: ignore[literal-required]
        queue.close()
        if not plan.fired_count:
            break
    assert type(None) in outcomes
    assert len(outcomes) == 2 + forever
    assert (CommitUnknownError in outcomes) is forever


def test_threads_that_change_settings_at_once_lose_none(storage: SimulatedStorage, clock: FakeClock) -> None:
    """Each sets another one."""
    with opened(storage, clock) as queue:
        changes: list[dict[str, Any]] = [
            {"maxsize": 5}, {"record_bytes_max": 50}, {"dedup_max": 7}, {"lease_seconds": 6}, {"max_deliveries": 8}
        ]  # fmt: skip
        threads = [threading.Thread(target=lambda each=each: queue.configure(**each)) for each in changes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = {name: value for each in changes for name, value in each.items()}
        assert expected.items() <= queue.settings.items()
    with opened(storage, clock) as queue:
        assert expected.items() <= queue.settings.items()


def test_who_closes_or_changes_inside_of_a_change_hears_of_it(storage: SimulatedStorage, clock: FakeClock) -> None:
    """As a signal handler of the same thread may: it would wait for itself. The change is done, and the queue open."""
    queue = opened(storage, clock)
    refused: list[str] = []

    def handle_signal(verb: str, path: Path) -> None:
        if not refused:
            for call in (queue.close, lambda: queue.configure(maxsize=4)):
                with pytest.raises(UsageError, match="inside of its configure") as caught:
                    call()
                refused.append(str(caught.value))

    storage.before_verb = handle_signal
    queue.configure(maxsize=3)
    storage.before_verb = None
    assert refused[0].startswith("close() of /q ")
    assert refused[1].startswith("configure() of /q ")
    assert queue.settings["maxsize"] == 3
    queue.configure(maxsize=5)
    queue.close()
    with opened(storage, clock) as queue:
        assert queue.maxsize == 5


def test_a_batch_that_waits_is_refused_once_it_can_never_fit() -> None:
    """It would wait for ever, as it would be refused if it came now."""
    storage = SimulatedStorage()
    with PersistentQueue(ROOT, mode="exclusive", storage=storage, maxsize=12) as queue:
        queue.put_many([b"x"] * 10)
        refused: list[Exception] = []

        def put() -> None:
            try:
                queue.put_many([b"y"] * 10, timeout=60)
            except RecordTooLargeError as error:
                refused.append(error)

        waiting = threading.Thread(target=put)
        waiting.start()
        while not handle_of(queue).capacity.space_available.waiting:
            pass
        queue.configure(maxsize=5)
        waiting.join()
        assert "can never fit maxsize=5" in str(refused[0])


def test_what_was_changed_of_the_queue_counts_though_the_group_could_not_be(
    storage: SimulatedStorage, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put is checked by the settings that the queue shows."""

    def fail(self: object, settings: object) -> None:
        raise OSError(errno.EIO, "broken")

    with opened(storage, clock) as queue:
        monkeypatch.setattr(type(handle_of(queue).group), "change", fail)
        with pytest.raises(StorageError):
            queue.configure(record_bytes_max=5, lease_seconds=5)
        assert queue.settings["record_bytes_max"] == 5
        with pytest.raises(RecordTooLargeError, match="record_bytes_max=5"):
            queue.put(b"123456")
