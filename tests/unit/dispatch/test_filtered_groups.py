"""Groups with a filter get what matches, in every way of taking; the rest is finished for them, and for nobody else."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, DiskFullError, Empty, PersistentQueue, Put, verify
from holdfast.queue.dispatch import dispatcher
from holdfast.queue.dispatch.progress_store import ProgressStore
from holdfast.queue.engine.configuring import stored_settings
from holdfast.queue.options import filter_expression
from holdfast.queue.options.message_filter import MessageFilter
from support.builders.clocks import FakeClock
from support.builders.takes import TAKES, Take, shown, taken
from support.builders.transactions import ORDERS, cut_power, kill, open_queue
from support.storages.simulated_storage import SimulatedStorage

pytestmark = pytest.mark.extra("filter")

PAID = "'kind' in headers && headers['kind'] == 'paid'"


def put_kinds(queue: PersistentQueue, kinds: str, **options: Any) -> None:
    """Put a message for each letter: p is paid, o is open, anything else has no headers."""
    names = {"p": "paid", "o": "open"}
    for number, kind in enumerate(kinds):
        queue.put(b"%s%d" % (kind.encode(), number), headers={"kind": names[kind]} if kind in names else {}, **options)


def filtered(storage: SimulatedStorage, kinds: str = "", *, filter: str = PAID, **options: Any) -> PersistentQueue:
    """Make a group with a filter, put messages, and open the queue for that group."""
    with open_queue(storage) as queue:
        queue.groups.create("paid", filter=filter)
        put_kinds(queue, kinds)
    return open_queue(storage, group="paid", **options)


@pytest.mark.parametrize("take", TAKES)
def test_every_way_of_taking_gets_what_matches_in_the_order_of_the_log(storage: SimulatedStorage, take: Take) -> None:
    """The others are finished for this group, and still there for others."""
    with filtered(storage, "opooxpp") as queue:
        assert taken(queue, take) == [b"p1", b"p5", b"p6"]
        stats = queue.stats()
        assert (stats.depth, stats.filtered, stats.filter_failed, stats.dropped) == (0, 4, 0, 0)
    with open_queue(storage) as queue:
        assert len(taken(queue)) == 7
        assert queue.stats().filtered == 0
    assert verify(ORDERS, storage=storage).ok


def test_looking_shows_what_matches_as_far_as_anything_was_read(storage: SimulatedStorage) -> None:
    """Messages that were not read yet count in the depth."""
    with filtered(storage, "oopop") as queue:
        assert queue.stats().depth == 5
        assert shown(queue) == [b"p2", b"p4"]
        assert queue.stats().depth == 2


def test_nothing_that_matches_is_nothing_to_take(storage: SimulatedStorage) -> None:
    """Many thousands of others are passed in one take, in entries for many of them."""
    with filtered(storage, "") as queue:
        queue.put_many([Put(b"x", headers={"kind": "open"})] * 5000)
        with pytest.raises(Empty):
            queue.get(timeout=0)
        assert (queue.stats().depth, queue.stats().filtered) == (0, 5000)
        assert queue.empty()


def test_a_message_that_cannot_be_judged_is_delivered_and_counted(storage: SimulatedStorage) -> None:
    """Once, also if it is read again."""
    with filtered(storage, "pxo", filter="headers['kind'] == 'paid'") as queue:
        queue.receive_many(10, timeout=0).nack(delay=0)
        assert taken(queue) == [b"p0", b"x1"]
        assert queue.stats().filter_failed == 1


def test_messages_with_a_priority_come_first_if_they_match(storage: SimulatedStorage) -> None:
    """They are found ahead of others."""
    with filtered(storage, "po") as queue:
        put_kinds(queue, "opox", priority=7)
        assert taken(queue) == [b"p1", b"p0"]
        assert (queue.stats().depth, queue.stats().filtered) == (0, 4)


def test_delays_ttl_and_order_keys_of_messages_that_do_not_match_hold_nothing_up(storage: SimulatedStorage) -> None:
    """They are finished when they are read: no time has to come, and no later one of the key waits."""
    clock = FakeClock()
    with filtered(storage, clock=clock) as queue:
        put_kinds(queue, "o", delay=3600)
        put_kinds(queue, "o", order_key="eu")
        put_kinds(queue, "p", order_key="eu")
        put_kinds(queue, "o", ttl=1)
        clock.advance(2)
        assert taken(queue) == [b"p0"]
        stats = queue.stats()
        assert (stats.depth, stats.delayed, stats.filtered, stats.dropped) == (0, 0, 3, 0)


@pytest.mark.parametrize("end", ["close", "kill", "power"])
def test_a_group_keeps_its_filter_over_restarts_and_gets_nothing_twice(storage: SimulatedStorage, end: str) -> None:
    """What was finished unread may be read once more after a loss of power; nothing else comes then."""
    queue = filtered(storage, "opo")
    delivery = queue.receive(timeout=0)
    assert delivery.payload == b"p1"
    delivery.ack()
    put_kinds(queue, "oop")
    if end == "close":
        queue.close()
    else:
        storage = (kill if end == "kill" else cut_power)(storage, queue)
    with open_queue(storage, group="paid") as queue:
        assert taken(queue) == [b"p2"]
        assert queue.stats().depth == 0


def test_what_was_handed_out_once_stays_with_the_group_whatever_the_filter_says_later(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of the library could: in hand, failed, dead or held, it is not finished behind its back."""
    queue = filtered(storage, "pppp")
    failed, held, given_back = (queue.receive(timeout=0) for _ in range(3))
    failed.reject("no use")
    tx = queue.begin()
    tx.ack(tx.receive(timeout=0))
    tx.prepare("half")
    given_back.nack(delay=0)
    monkeypatch.setattr(queue._handle.read_side._filter, "passes", lambda *message: False)
    queue.abort_prepared("half")
    assert sorted(taken(queue)) == [b"p2", b"p3"]
    held.ack()
    assert queue.stats().dead == 1
    queue.close()


def test_a_reservation_and_a_purge_take_what_matches(storage: SimulatedStorage) -> None:
    """Neither counts the others as its own."""
    with filtered(storage, "opopo") as queue:
        assert queue.purge() == 2
        assert queue.stats().depth == 0
        put_kinds(queue, "oop")
        assert queue.purge() == 1


def test_join_and_task_done_need_no_taker_for_what_does_not_match(storage: SimulatedStorage) -> None:
    """Messages that end unread are nobody's task."""
    with filtered(storage, "") as queue:
        put_kinds(queue, "opo")
        assert queue.get(timeout=0) == b"p1"
        queue.task_done()
        with pytest.raises(Empty):
            queue.get(timeout=0)
        queue.join()


def test_a_producer_that_waits_for_space_gets_that_of_messages_that_do_not_match(storage: SimulatedStorage) -> None:
    """As soon as a consumer has read them."""
    with filtered(storage, "oo", maxsize=2) as queue:
        put = threading.Thread(target=lambda: put_kinds(queue, "p"))
        put.start()
        assert queue.get(timeout=10) == b"p0"
        put.join(10)


class TestMaking:
    """``groups.create(filter=...)``."""

    def test_a_filter_that_cannot_be_makes_no_group(self, storage: SimulatedStorage) -> None:
        """Whatever is wrong with it."""
        with open_queue(storage) as queue:
            for bad in ("nothing == 1", "key", 7):
                with pytest.raises(ConfigError):
                    queue.groups.create("paid", filter=bad)  # type: ignore[arg-type]
            assert queue.groups.list() == []

    def test_a_group_that_exists_has_the_filter_that_it_has(self, storage: SimulatedStorage) -> None:
        """Another one is an error, and leaving it out takes what is there."""
        with open_queue(storage) as queue:
            queue.groups.create("paid", filter=PAID)
            queue.groups.create("all")
            queue.groups.create("paid", filter=PAID)
            queue.groups.create("paid")
            with pytest.raises(ConfigError, match=r"has \"'kind' in headers && .* and that never changes"):
                queue.groups.create("paid", filter="true")
            with pytest.raises(ConfigError, match="has no filter, and that never changes"):
                queue.groups.create("all", filter="true")

    def test_the_default_group_has_none(self, storage: SimulatedStorage) -> None:
        """It begins by itself, so others could have begun it without."""
        with open_queue(storage) as queue, pytest.raises(ConfigError, match="of another name"):
            queue.groups.create("default", filter=PAID)

    def test_other_settings_of_the_group_change_and_the_filter_stays(self, storage: SimulatedStorage) -> None:
        """``configure`` knows no filter."""
        with filtered(storage, "po") as queue:
            queue.configure(lease_seconds=5)
            with pytest.raises(TypeError, match="has no option 'filter'"):
                queue.configure(filter="true")  # type: ignore[call-arg]
        with open_queue(storage, group="paid") as queue:
            assert taken(queue) == [b"p0"]
            assert queue.settings["lease_seconds"] == 5


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_process_without_the_library_does_not_take_for_such_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """It says what to install, other groups are served, and nothing was taken."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode=mode) as queue:
        queue.groups.create("paid", filter=PAID)
        put_kinds(queue, "po")
    with monkeypatch.context() as patch:
        patch.setattr(filter_expression, "import_module", lambda name: __import__("a_package_that_is_not_there"))
        with (
            pytest.raises(ConfigError, match=r"pip install 'holdfast\[filter\]'"),
            PersistentQueue(path, mode=mode, group="paid") as queue,
        ):
            queue.get(timeout=0)
        with PersistentQueue(path, mode=mode) as queue:
            assert queue.get(timeout=0) == b"p0"
    with PersistentQueue(path, mode=mode, group="paid") as queue:
        assert taken(queue) == [b"p0"]


def test_the_stored_settings_of_a_group_show_its_filter(storage: SimulatedStorage) -> None:
    """As ``holdfast set`` prints them."""
    with open_queue(storage) as queue:
        queue.groups.create("paid", filter=PAID)
        queue.groups.create("all")
    shown_of = {
        group: {each.name: each.value for each in stored_settings(storage, ORDERS, group)} for group in ("paid", "all")
    }
    assert shown_of["paid"] == {**shown_of["all"], "filter": PAID}


@pytest.mark.parametrize("mode", ["shared", "read_only"])
def test_a_handle_that_only_looks_shows_what_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """And says what to install, if it cannot tell; figures need no filter."""
    path = tmp_path / "q"
    with PersistentQueue(path) as queue:
        queue.groups.create("paid", filter=PAID)
        put_kinds(queue, "opoop")
    with PersistentQueue(path, mode=mode, group="paid") as queue:
        for _ in range(2):
            assert [message.payload for message in queue.peek(10)] == [b"p1", b"p4"]
    monkeypatch.setattr(filter_expression, "import_module", lambda name: __import__("a_package_that_is_not_there"))
    with PersistentQueue(path, mode="read_only", group="paid") as queue:
        assert queue.stats().depth == 5
        with pytest.raises(ConfigError, match="pip install"):
            queue.peek()


def refuse_once(monkeypatch: pytest.MonkeyPatch, name: str) -> list[DiskFullError]:
    """Have a verb of the progress store fail once; return what is left to be raised."""
    do, refusals = getattr(ProgressStore, name), [DiskFullError("no space left")]

    def refusing(self: ProgressStore, *arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return do(self, *arguments, **options)

    monkeypatch.setattr(ProgressStore, name, refusing)
    return refusals


@pytest.mark.parametrize("refused", ["finish", "deliver"])
def test_a_disk_that_refuses_once_hides_nothing_that_matches(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """What was read with those that could not be finished is read again, and counts once."""
    with filtered(storage, "p" * 64 + "op" * 40) as queue:
        queue.receive_many(60, timeout=0).ack()
        refusals = refuse_once(monkeypatch, refused)
        found: list[bytes] = []
        while len(found) < 44:
            with suppress(DiskFullError):
                batch = queue.receive_many(10, timeout=0)
                found += [each.payload for each in batch]
                batch.ack()
        assert not refusals
        assert found == [b"p%d" % number for number in [*range(60, 64), *range(65, 144, 2)]]
        assert (queue.stats().depth, queue.stats().filtered) == (0, 40)


def test_a_disk_that_refuses_a_take_finishes_none_of_it(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what it would have handed out nor what it leaves out; both come again, and count once."""
    with filtered(storage, "opxpoo") as queue:
        refusals = refuse_once(monkeypatch, "finish")
        with pytest.raises(DiskFullError):
            queue.get_many(10, timeout=0)
        assert not refusals
        assert (queue.stats().depth, queue.stats().filtered) == (6, 0)
        assert queue.get_many(10, timeout=0) == [b"p1", b"p3"]
        assert (queue.stats().depth, queue.stats().filtered) == (0, 4)


class TestNoting:
    """Where a take notes what it leaves out."""

    def test_a_take_finishes_what_it_hands_out_and_what_it_leaves_out_as_one_run(
        self, storage: SimulatedStorage
    ) -> None:
        """One entry, though every second message is left out."""
        with filtered(storage, "op" * 50) as queue:
            store = queue._handle.read_side.progress_store
            before = store.end
            assert len(queue.get_many(50, timeout=0)) == 50
            assert store.end - before == 1
            assert (queue.stats().depth, queue.stats().filtered) == (0, 50)

    def test_what_is_left_out_is_finished_before_anything_is_leased(self, storage: SimulatedStorage) -> None:
        """It is not held back until an acknowledgement, which may never come."""
        with filtered(storage, "opo") as queue:
            delivery = queue.receive(timeout=0)
            assert (queue.stats().depth, queue.stats().filtered) == (1, 2)
            delivery.ack()

    def test_what_is_left_out_is_finished_though_a_take_finds_nothing(self, storage: SimulatedStorage) -> None:
        """A message that matched and is put off does not keep the others."""
        with filtered(storage) as queue:
            put_kinds(queue, "p", delay=3600)
            put_kinds(queue, "oo")
            with pytest.raises(Empty):
                queue.get_many(10, timeout=0)
            assert (queue.stats().depth, queue.stats().filtered) == (1, 2)

    def test_a_take_holds_no_more_than_it_may_read(
        self, storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many messages it leaves out on its way, they are finished in portions."""
        monkeypatch.setattr(dispatcher, "TAKE_BYTES", 1000)
        with filtered(storage, ("o" * 63 + "p") * 8) as queue:
            taking = queue._handle.read_side._dispatcher
            end, portions = taking._end, []
            monkeypatch.setattr(taking, "_end", lambda ended: (portions.append(len(ended)), end(ended)))
            assert len(queue.get_many(8, timeout=0)) == 8
            assert max(portions) < 2 * 64
            assert queue.stats().filtered == 8 * 63


def test_a_message_of_a_priority_that_was_handed_out_comes_again_whatever_the_filter_says(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if two versions of the library do not agree."""
    with filtered(storage) as queue:
        put_kinds(queue, "p", priority=5)
        put_kinds(queue, "p")
        queue.receive(timeout=0).nack(delay=0)
    monkeypatch.setattr(MessageFilter, "passes", lambda *_: False)
    with open_queue(storage, group="paid") as queue:
        assert taken(queue) == [b"p0"]
        assert queue.stats().depth == 0
