"""Settings belong to the queue and its groups: the first program that says one sets it, and others agree."""

from __future__ import annotations

import errno
import itertools
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Backoff,
    ConfigError,
    CorruptionError,
    FlushPolicy,
    GroupNotFoundError,
    PersistentQueue,
    StorageError,
    UnsupportedVersionError,
)
from holdfast.persistence.filesystem.document import read_document, write_document
from holdfast.persistence.filesystem.layout import PREPARED_LOG
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.options.settings import DEFAULTS
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.builders.settings import change_settings, set_anew
from support.owners.machine_link import machine_links
from support.processes.log_handlers import text_said
from support.storages.simulated_storage import SimulatedStorage

STORAGE = OsStorage()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the queue is."""
    return tmp_path / "orders"


def documents(path: Path, group: str = "default") -> tuple[Any, Any]:
    """Return what is stored of the queue, and of a group."""
    of_group = path / "groups" / group / "group.json"
    return (
        read_document(STORAGE, path / "queue.json")["settings"],
        read_document(STORAGE, of_group)["settings"] if of_group.exists() else None,
    )


def opened(storage: SimulatedStorage, **options: Any) -> PersistentQueue:
    """Open a queue in memory."""
    return PersistentQueue("/q", mode="exclusive", storage=storage, clock=FakeClock(), **options)


def killed_as_the_default_group_begins(call: int) -> SimulatedStorage | None:
    """Return what a kill in front of the call of that number leaves, at the first take; None if there are fewer."""
    storage, left, calls = SimulatedStorage(), list[SimulatedStorage](), itertools.count(1)

    def watch(*_: object) -> None:
        if next(calls) == call:
            left.append(storage.crash_keeping_all())

    with opened(storage, max_deliveries=1) as queue:
        queue.groups.create("audit")
        queue.put(b"x")
        storage.before_verb = watch
        queue.receive().release()
        storage.before_verb = None
    return left[0] if left else None


def test_what_was_never_said_is_not_stored(path: Path) -> None:
    """The defaults count, and a later version may have others."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"x")
        queue.get()
        assert queue.settings == DEFAULTS
    assert documents(path) == ({}, {})


@pytest.mark.parametrize("mode", ["exclusive", "shared", "read_only"])
@pytest.mark.parametrize("name", ["queue.json", "group.json"])
def test_settings_that_cannot_be_read_are_an_error_of_the_storage(mode: Mode, name: str) -> None:
    """And no bare one of the system."""
    storage = SimulatedStorage()
    with PersistentQueue("/q", mode="exclusive", storage=storage) as queue:
        queue.put(b"x")
        queue.get()

    def fail(verb: str, path: Path) -> None:
        if (verb, path.name) == ("read_at", name):
            raise OSError(errno.EIO, "no", str(path))

    storage.before_verb = fail
    with machine_links(), pytest.raises(StorageError), PersistentQueue("/q", mode=mode, storage=storage) as queue:
        queue.get(timeout=0)


def test_a_handle_that_says_nothing_takes_what_is_stored(path: Path) -> None:
    """Of the queue and of its group; in every mode."""
    with PersistentQueue(
        path, mode="exclusive", maxsize=5, record_bytes_max=100, max_deliveries=2, lease_seconds=timedelta(minutes=1)
    ):
        pass
    of_queue, of_group = {"maxsize": 5, "record_bytes_max": 100}, {"max_deliveries": 2, "lease_seconds": 60.0}
    assert documents(path) == (of_queue | of_group, None)  # the default group has not begun
    with PersistentQueue(path, mode="exclusive", max_deliveries=2, lease_seconds=60) as queue:
        queue.put(b"x")
        queue.get()
    PersistentQueue(path, mode="exclusive").close()
    assert documents(path) == (of_queue, of_group)
    for mode in ("exclusive", "shared", "read_only"):
        with PersistentQueue(path, mode=mode) as queue:  # type: ignore[arg-type]
            assert queue.maxsize == queue.settings["maxsize"] == 5
            assert queue.settings["record_bytes_max"] == 100
            assert (queue.settings["max_deliveries"], queue.settings["lease_seconds"]) == (2, 60.0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"maxsize": 6}, "has maxsize=5 (as it was set), not 6: leave maxsize out to take that, or change it with"),
        ({"flush": FlushPolicy.never()}, "has flush=every_commit (the default), not never"),
        ({"max_deliveries": None}, "has max_deliveries=2 (as it was set), not none"),
        ({"backoff": []}, "has backoff={base=2, cap=3600, jitter=true} (as it was set), not []"),
    ],
    ids=str,
)
def test_another_value_is_refused_with_both(path: Path, given: dict[str, Any], text: str) -> None:
    """Nothing is changed, and the sides are free."""
    with PersistentQueue(path, mode="exclusive", maxsize=5, max_deliveries=2, backoff=Backoff(2)) as queue:
        queue.put(b"x")
        assert queue.receive().payload == b"x"
    PersistentQueue(path, mode="exclusive").close()
    before = documents(path)
    with pytest.raises(ConfigError) as caught:
        PersistentQueue(path, **{"mode": "exclusive", **given})
    assert text in str(caught.value)
    assert "`holdfast set " in str(caught.value)
    assert caught.value.context["key"] in given
    assert documents(path) == before
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.get() == b"x"


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_handle_that_is_refused_for_its_group_changes_nothing_of_the_queue(path: Path, mode: Any) -> None:
    """All that it asks for is compared before any of it is stored."""
    with PersistentQueue(path, mode="exclusive", max_deliveries=2) as queue:
        queue.put(b"x")
        queue.get()
    PersistentQueue(path, mode="exclusive").close()
    before = documents(path)
    with pytest.raises(ConfigError, match="has max_deliveries=2"):
        PersistentQueue(path, mode=mode, maxsize=5, max_deliveries=3)
    assert documents(path) == before == ({}, {"max_deliveries": 2})
    with PersistentQueue(path, mode="exclusive", maxsize=6) as queue:
        assert queue.maxsize == 6


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_handle_that_finds_no_group_changes_nothing_of_the_queue(path: Path, mode: Any) -> None:
    """It is refused before any of it is stored; the next one may say something else."""
    PersistentQueue(path, mode="exclusive").close()
    with pytest.raises(GroupNotFoundError):
        PersistentQueue(path, mode=mode, group="billing", maxsize=5)
    assert documents(path) == ({}, None)
    PersistentQueue(path, mode=mode, maxsize=6).close()
    assert documents(path) == ({"maxsize": 6}, None)


def test_programs_start_in_any_order(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Any of them may make the queue: what is not set yet is set by the first program that says it."""
    with PersistentQueue(path, mode="shared"):
        pass
    with (
        caplog.at_level(logging.INFO),
        PersistentQueue(path, mode="exclusive", maxsize=3, dedup_max=10, lease_seconds=5) as queue,
    ):
        assert (queue.maxsize, queue.settings["lease_seconds"]) == (3, 5.0)
        queue.put(b"x")
        queue.get()
    assert "its settings are {'maxsize': 3, 'dedup_max': 10, 'lease_seconds': 5.0} from now on" in text_said(caplog)
    with PersistentQueue(path, mode="exclusive", max_deliveries=9) as queue:
        assert queue.settings["max_deliveries"] == 9
    assert documents(path)[0] == {"maxsize": 3, "dedup_max": 10}
    assert documents(path)[1] == {"lease_seconds": 5.0, "max_deliveries": 9}
    with pytest.raises(ConfigError, match="max_deliveries=9"):
        PersistentQueue(path, mode="exclusive", max_deliveries=5)


def test_a_producer_says_the_rules_of_a_group_that_begins_later(path: Path) -> None:
    """The default group gets them when it begins, at the first take; until then they are compared like others."""
    with PersistentQueue(path, mode="shared", max_deliveries=1) as producer:
        producer.put_many([b"a", b"b"])
        assert producer.settings["max_deliveries"] == 1
        with pytest.raises(ConfigError, match="max_deliveries=1"):
            PersistentQueue(path, mode="shared", max_deliveries=2)
        with PersistentQueue(path, mode="shared", lease_seconds=9) as consumer:
            assert (consumer.settings["max_deliveries"], consumer.settings["lease_seconds"]) == (1, 9.0)
            consumer.receive().nack()
            assert [letter.payload for letter in consumer.dead.list()] == [b"a"]
    assert documents(path)[1] == {"max_deliveries": 1, "lease_seconds": 9.0}
    with pytest.raises(ConfigError, match="max_deliveries=1"):
        PersistentQueue(path, mode="exclusive", max_deliveries=2)
    change_settings(path, max_deliveries=3)
    with PersistentQueue(path, mode="read_only") as look:
        assert look.settings["max_deliveries"] == 3


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_what_waits_for_the_default_group_outlasts_the_handles_of_other_groups(path: Path, mode: Mode) -> None:
    """It is removed from queue.json once the default group has begun, by any owner."""
    with PersistentQueue(path, mode="exclusive", max_deliveries=1) as queue:
        queue.groups.create("audit")
    with PersistentQueue(path, mode=mode, group="audit", maxsize=5, max_deliveries=2) as audit:
        audit.put(b"x")
        assert audit.settings["max_deliveries"] == 2
    assert documents(path, "audit") == ({"max_deliveries": 1, "maxsize": 5}, {"max_deliveries": 2})
    with PersistentQueue(path, mode=mode) as queue:
        queue.receive().nack()
        assert queue.stats().dead == 1
    assert documents(path) == ({"max_deliveries": 1, "maxsize": 5}, {"max_deliveries": 1})
    PersistentQueue(path, mode=mode, group="audit").close()
    assert documents(path) == ({"maxsize": 5}, {"max_deliveries": 1})


@pytest.mark.parametrize("group", ["default", "audit"])
def test_no_kill_and_loss_of_power_takes_the_settings_of_a_default_group_that_begins(group: str) -> None:
    """They leave queue.json once the name of its own document is durable: it is killed at each call, then opened."""
    have_begun = list[bool]()
    while (storage := killed_as_the_default_group_begins(len(have_begun) + 1)) is not None:
        with opened(storage, group=group) as queue:
            have_begun.append("default" in queue.groups.list())
            without_power = storage.crash_dropping_unsynced()
        with opened(without_power) as queue:
            assert queue.settings["max_deliveries"] == 1, len(have_begun)
    assert {*have_begun} == {False, True}


def test_who_does_not_own_the_queue_sets_nothing_of_it(path: Path) -> None:
    """It agrees with what is stored; what is not is the owner's to say."""
    PersistentQueue(path, mode="exclusive").close()
    with PersistentQueue(path, mode="read_only", maxsize=4):
        pass
    assert documents(path)[0] == {}


def test_a_handle_may_ask_for_more_durability_and_never_for_less(path: Path) -> None:
    """The queue's policy is what its consumers see by, and stays."""
    PersistentQueue(path, mode="exclusive", flush=FlushPolicy.every(commits=10, seconds=1)).close()
    with PersistentQueue(path, mode="exclusive", flush=FlushPolicy.every_commit()) as queue:
        queue.put(b"x")
        assert queue.settings["flush"] == FlushPolicy.every(commits=10, seconds=1)
        writer = handle_of(queue).require_write_side()._writer
        assert writer.synced == writer.end
    with pytest.raises(ConfigError, match="flush="):
        PersistentQueue(path, mode="exclusive", flush=FlushPolicy.every(commits=11, seconds=1))
    assert documents(path)[0] == {"flush": {"commits": 10, "seconds": 1}}


def test_groups_have_their_own(path: Path) -> None:
    """A group that exists keeps its settings."""
    with PersistentQueue(path, mode="exclusive", max_deliveries=2) as queue:
        queue.put(b"x")
        queue.get()
        queue.groups.create("audit", max_deliveries=None, lease_seconds=5)
        queue.groups.create("audit", max_deliveries=7)
        queue.groups.create("plain")
        with pytest.raises(TypeError, match=r"groups\.create\(\) has no option 'maxsize'"):
            queue.groups.create("other", maxsize=1)  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="max_deliveries is a number from 1 on"):
            queue.groups.create("other", max_deliveries=0)
        assert queue.groups.list() == ["audit", "default", "plain"]
    assert documents(path, "audit")[1] == {"max_deliveries": None, "lease_seconds": 5.0}
    assert documents(path, "plain")[1] == {}
    with PersistentQueue(path, mode="exclusive", group="audit") as audit:
        assert audit.settings["max_deliveries"] is None
    with PersistentQueue(path.with_name("new"), mode="exclusive", group="audit", lease_seconds=9) as made:
        assert made.settings["lease_seconds"] == 9.0
    assert documents(path.with_name("new"), "audit")[1] == {"lease_seconds": 9.0}


def test_what_an_operator_has_configured_is_set_by_the_owner(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a queue that is made, and of one that is there; a program's own argument has to agree."""
    with PersistentQueue(path, mode="exclusive", configured={"maxsize": 5, "lease_seconds": 7}) as queue:
        queue.put(b"x")
        queue.get()
    assert documents(path) == ({"maxsize": 5, "lease_seconds": 7.0}, {"lease_seconds": 7.0})
    with (
        caplog.at_level(logging.INFO),
        PersistentQueue(path, mode="exclusive", configured={"maxsize": 6, "lease_seconds": 8}) as queue,
    ):
        assert (queue.maxsize, queue.settings["lease_seconds"]) == (6, 8.0)
        with pytest.raises(ConfigError, match=r"maxsize of .* is set in the configuration: change it there"):
            queue.configure(maxsize=7)
    assert documents(path) == ({"maxsize": 6}, {"lease_seconds": 8.0})
    assert text_said(caplog).count("from now on") == 2
    with PersistentQueue(path, mode="read_only", configured={"maxsize": 9}) as look:
        assert look.maxsize == 9
    assert documents(path)[0] == {"maxsize": 6}
    for root in (path, path.with_name("new")):
        with pytest.raises(ConfigError, match=r"has maxsize=9 \(in the configuration\), not 5: .* change it there$"):
            PersistentQueue(root, mode="exclusive", maxsize=5, configured={"maxsize": 9})
    assert not path.with_name("new").exists()
    with PersistentQueue(
        path, mode="exclusive", maxsize=9, flush=FlushPolicy.every_commit(), configured={"maxsize": 9}
    ) as queue:
        assert queue.maxsize == 9


@pytest.mark.parametrize("name", ["queue.json", "groups/default/group.json"])
def test_settings_that_were_lost_are_never_replaced_by_defaults(path: Path, name: str) -> None:
    """A damaged document is made whole without them, and the queue is not used before they are set anew."""
    with PersistentQueue(path, mode="exclusive", maxsize=5, max_deliveries=None) as queue:
        queue.put_many([b"a", b"b"])
        assert queue.get() == b"a"
    content = (path / name).read_bytes()
    (path / name).write_bytes(content.replace(b'"format"', b'"farmat"'))
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"holdfast set {path} --rebuilt") as caught:
            PersistentQueue(path, mode="exclusive")
        assert caught.value.context["path"] == str(path / name)
        with PersistentQueue(path, mode="read_only") as look:
            assert [message.payload for message in look.peek()] == [b"b"]
    set_anew(path, maxsize=5)
    with PersistentQueue(path, mode="exclusive") as queue:
        assert queue.maxsize == 5
        assert queue.settings["max_deliveries"] == (None if name == "queue.json" else 5)
        assert queue.get() == b"b"


def test_what_a_later_version_has_set_is_refused(path: Path) -> None:
    """Also a feature of the files."""
    PersistentQueue(path, mode="exclusive").close()
    fields = read_document(STORAGE, path / "queue.json")
    write_document(STORAGE, path / "queue.json", {**fields, "settings": {"colour": "red"}})
    with pytest.raises(UnsupportedVersionError, match="a setting that this Holdfast does not know"):
        PersistentQueue(path, mode="exclusive")
    write_document(STORAGE, path / "queue.json", {**fields, "features": [PREPARED_LOG, "not-yet-known"]})
    for mode in ("exclusive", "read_only"):
        with pytest.raises(UnsupportedVersionError, match="features that this Holdfast does not know"):
            PersistentQueue(path, mode=mode)
    write_document(STORAGE, path / "queue.json", {**fields, "settings": 5})
    with pytest.raises(CorruptionError, match="--rebuilt"):
        PersistentQueue(path, mode="exclusive")


def test_a_misspelt_setting_is_refused_before_anything_is_made(path: Path) -> None:
    """As Python refuses a keyword argument."""
    with pytest.raises(TypeError, match=r"PersistentQueue\(\) has no option 'max_size'; did you mean maxsize\?"):
        PersistentQueue(path, mode="exclusive", max_size=5)  # type: ignore[call-arg]
    assert not path.exists()


def test_a_size_that_agrees_with_the_queue_is_taken(path: Path) -> None:
    """It is compared with the data files that the queue has, and not with the default."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=2**16, max_bytes=2**17):
        pass
    with PersistentQueue(path, mode="exclusive", max_bytes=2**17) as queue:
        assert queue.settings["max_bytes"] == 2**17


def test_sizes_that_cannot_work_together_make_no_queue(path: Path) -> None:
    """A queue with them could never be opened."""
    for options in ({"max_bytes": 2**20}, {"data_file_bytes": 2**30, "configured": {"max_bytes": 2**30}}):
        with pytest.raises(ConfigError, match="leaves no room for two data files"):
            PersistentQueue(path, **{"mode": "exclusive", **options})  # type: ignore[arg-type]
        assert not path.exists()


def test_a_size_that_cannot_work_with_the_stored_one_changes_nothing(path: Path) -> None:
    """The first program has chosen."""
    with PersistentQueue(path, mode="exclusive", data_file_bytes=2**30):
        pass
    with pytest.raises(ConfigError, match="leaves no room for two data files"):
        PersistentQueue(path, mode="exclusive", max_bytes=2**28)
    assert documents(path) == ({"data_file_bytes": 2**30}, None)


def test_a_default_group_that_was_created_has_its_own_settings_in_an_open_handle(path: Path) -> None:
    """Made behind the opening, and before the first take."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create("default", max_deliveries=1, lease_seconds=7)
        queue.put(b"x")
        delivery = queue.receive()
        assert delivery.lease_seconds == 7
        delivery.nack()
        assert queue.stats().dead == 1
        assert queue.settings["max_deliveries"] == 1


def test_a_default_group_that_was_created_has_to_agree(path: Path) -> None:
    """As if it had been there at the opening; nothing is taken."""
    with PersistentQueue(path, mode="exclusive", max_deliveries=3) as queue:
        queue.put(b"x")
        queue.groups.create("default", max_deliveries=1)
        with pytest.raises(ConfigError, match=r"has max_deliveries=1 \(as it was set\), not 3"):
            queue.receive()
        assert queue.stats().in_flight == 0


def test_a_default_group_begins_with_what_was_said_since_the_opening(path: Path) -> None:
    """By another program, which comes behind one that has not taken anything."""
    with PersistentQueue(path, mode="exclusive"):
        pass
    with PersistentQueue(path, mode="shared") as consumer:
        with PersistentQueue(path, mode="shared", max_deliveries=1) as producer:
            producer.put(b"x")
            consumer.receive().nack()
        assert consumer.stats().dead == 1
    assert documents(path)[1] == {"max_deliveries": 1}


def test_a_queue_that_changed_meanwhile_does_not_break_a_consumer_that_begins(path: Path) -> None:
    """What it asked of the queue was compared when it was opened."""
    with PersistentQueue(path, mode="exclusive", maxsize=5):
        pass
    with (
        PersistentQueue(path, mode="shared", maxsize=5) as consumer,
        PersistentQueue(path, mode="shared") as producer,
    ):
        producer.configure(maxsize=6)
        producer.put(b"x")
        assert consumer.get() == b"x"
