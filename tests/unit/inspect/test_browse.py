"""Browsing: messages by state, page by page, in every mode that reads; nothing changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import PersistentQueue, Put, UsageError
from holdfast.persistence.groups.progress import GroupProgress
from support.builders.clocks import START_NS, FakeClock
from support.builders.handles import handle_of
from support.builders.jobs import ROOT, Jobs
from support.builders.small_queues import SmallQueue
from support.builders.takes import states, taken
from support.builders.transactions import kill, open_queue
from support.processes.children import Signal, child
from support.storages.real_trees import tree
from support.storages.simulated_storage import SimulatedStorage

NS = 10**9


def all_states(queue: PersistentQueue) -> None:
    """Put and take such that there is a message of every state."""
    queue.put_many([b"dead", b"nacked", b"leased", b"done"])
    batch = queue.receive_many(4, timeout=0, lease_seconds=1000)
    batch[0].reject("no good")
    batch[1].nack(delay=50)
    batch[3].ack()
    queue.put_many([Put(b"delayed", delay=20), Put(b"k1", order_key="k"), Put(b"k2", order_key="k"), b"ready"])
    queue.put(b"urgent", priority=7, headers={"kind": "order"})
    queue.put(b"expired", ttl=1)


def test_every_message_has_one_state(storage: SimulatedStorage) -> None:
    """A message that waits for its key is ready, one whose time is over or that is finished is nowhere."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        all_states(queue)
        clock.advance(2)
        expected = {b"dead": "dead", b"nacked": "delayed", b"leased": "leased", b"delayed": "delayed"}
        expected |= dict.fromkeys((b"k1", b"k2", b"ready", b"urgent"), "ready")
        assert states(queue) == expected
        clock.advance(20)
        assert states(queue) == expected | {b"delayed": "ready"}
        clock.advance(50)
        assert states(queue) == expected | {b"delayed": "ready", b"nacked": "ready"}


def test_what_browse_shows_of_a_message(storage: SimulatedStorage) -> None:
    """Payload, offset, time, headers, count, when it is ready, priority and key."""
    clock = FakeClock()
    with open_queue(storage, clock=clock) as queue:
        all_states(queue)
        (urgent,) = [message for message in queue.browse() if message.payload == b"urgent"]
        assert (urgent.offset, urgent.priority, urgent.order_key, urgent.until_ns) == (8, 7, None, None)
        assert (dict(urgent.headers), urgent.timestamp_ns, urgent.delivery_count) == ({"kind": "order"}, START_NS, 0)
        assert urgent.state == "ready"
        nacked, delayed = queue.browse("delayed")
        assert (nacked.until_ns, delayed.until_ns) == (START_NS + 50 * NS, START_NS + 20 * NS)
        assert (nacked.delivery_count, delayed.delivery_count) == (1, 0)
        assert [message.order_key for message in queue.browse()][:2] == ["k", "k"]
        assert queue.browse("leased")[0].delivery_count == 1


def test_browsing_changes_nothing(tmp_path: Path) -> None:
    """Neither on the disk nor in what comes next, as often as it is asked."""
    path, clock = tmp_path / "orders", FakeClock()
    with PersistentQueue(path, mode="exclusive", clock=clock) as queue:
        all_states(queue)
        queue.flush()
        before = tree(path)
        for _ in range(3):
            for state in ("ready", "leased", "delayed", "dead"):
                queue.browse(state)
        assert tree(path) == before
        assert taken(queue) == [b"urgent", b"k1", b"k2", b"ready", b"expired"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "dead"])
def test_pages_together_are_all_of_them_once(storage: SimulatedStorage, state: str, limit: int) -> None:
    """``after`` is the offset of the last one of the page before; holes of other states do not end a page."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put_many([Put(b"%d" % number, delay=9 if number % 3 else None) for number in range(60)])
        for delivery in queue.receive_many(12, timeout=0):
            if delivery.offset % 2:
                delivery.reject("odd")
        whole = queue.browse(state, limit=1000)
        assert len(whole) >= 6
        found, after = [], None
        while page := queue.browse(state, limit=limit, after=after):
            assert len(page) <= limit
            found += page
            after = page[-1].offset
        assert found == whole
        assert [each.offset for each in found] == sorted(each.offset for each in found)
        assert queue.browse(state, after=10**9) == []


def test_pages_over_finished_messages_and_several_data_files(storage: SimulatedStorage) -> None:
    """Files that are gone, and long runs of finished messages, are passed over."""
    with open_queue(storage, clock=FakeClock()) as queue:
        queue.put_many([Put(b"first", delay=1000)])
        for number in range(3000):
            queue.put_many([b"%04d" % number + bytes(200)])
        count = 0
        while count < 2900:
            count += len(queue.get_many(2900 - count))
        assert [message.payload for message in queue.browse("delayed")] == [b"first"]
        page = queue.browse(limit=2)
        assert [message.payload[:4] for message in page] == [b"2900", b"2901"]
        assert queue.browse(limit=1, after=5)[0].offset == page[0].offset
        assert len(queue.browse(limit=1000, after=page[1].offset)) == 98


@pytest.mark.parametrize("mode", ["read_only", "exclusive"])
def test_other_modes_browse_too(storage: SimulatedStorage, mode: str) -> None:
    """Without a lock: as the disk has it, so a dead owner's deliveries are leased; the next owner knows better."""
    clock = FakeClock()
    queue = open_queue(storage, clock=clock)
    all_states(queue)
    clock.advance(2)
    expected = states(queue)
    if mode == "read_only":
        with open_queue(storage, clock=clock, mode="read_only") as look:
            assert states(look) == expected
            assert look.browse("delayed") == queue.browse("delayed")
    with open_queue(kill(storage, queue), clock=clock, mode=mode) as other:
        assert states(other) == expected | ({b"leased": "ready"} if mode == "exclusive" else {})


@pytest.mark.parametrize("mode", ["exclusive", "read_only"])
@pytest.mark.parametrize("state", ["ready", "leased", "delayed", "dead"])
def test_progress_is_read_while_it_stands_still(
    storage: SimulatedStorage, monkeypatch: pytest.MonkeyPatch, mode: str, state: str
) -> None:
    """Other threads acknowledge meanwhile, and between two steps of that its lists do not fit together."""
    with open_queue(storage) as owner, open_queue(storage, mode="read_only") as other:
        owner.put_many([b"%d" % number for number in range(9)])
        taken_now = owner.receive_many(6, timeout=0)
        taken_now[1].ack()
        taken_now[3].reject("no use")
        queue = owner if mode == "exclusive" else other
        view = handle_of(queue).look_side or handle_of(queue).require_read_side()
        asked: list[bool] = []
        for name in ("is_finished", "is_held", "run_at", "unfinished_runs"):
            monkeypatch.setattr(GroupProgress, name, _watched(getattr(GroupProgress, name), view.lock, asked))
        queue.browse(state)
        assert asked
        assert all(asked)


def _watched(ask: Callable[..., Any], lock: Any, asked: list[bool]) -> Callable[..., Any]:
    """Return ``ask``, noting whether the lock was held when it was called."""

    def watched(*arguments: object) -> object:
        asked.append(lock.locked())
        return ask(*arguments)

    return watched


def test_what_cannot_browse_says_so(storage: SimulatedStorage) -> None:
    """Modes that do not read, states that there are none of, limits that make no sense."""
    with open_queue(storage) as queue:
        for state in ("done", "", "READY", "in_flight", None):
            with pytest.raises(UsageError, match="state is"):
                queue.browse(state)  # type: ignore[arg-type]
        for limit in (0, -1):
            with pytest.raises(ValueError, match="at least 1"):
                queue.browse(limit=limit)


def test_a_second_process_sees_the_states_of_the_owner(tmp_path: Path) -> None:
    """A look beside a living owner: leased is leased, dead is dead."""
    path, owned = tmp_path / "orders", Signal()

    def own() -> None:
        queue = PersistentQueue(path, mode="exclusive")
        all_states(queue)
        queue.flush()
        owned.send()
        Signal().wait(60)

    with child(own):
        owned.wait()
        with PersistentQueue(path, mode="read_only") as look:
            found = states(look)
    assert (found[b"leased"], found[b"dead"], found[b"nacked"]) == ("leased", "dead", "delayed")
    owned.close()


def test_what_cannot_be_read_is_not_shown_and_the_rest_is() -> None:
    """In the middle, where the next message is met instead, and at the end of the log, where nothing is."""
    jobs = Jobs()
    with jobs.open(max_deliveries=1) as queue:
        queue.put_many([b"a", b"payload b", b"c", b"payload d"])
        for _ in range(4):
            queue.receive(timeout=0).reject("not wanted")
    small = SmallQueue(ROOT, jobs.storage, 4)
    path = small.data_files()[0]
    for payload in (b"payload b", b"payload d"):
        small.flip(path, small.read(path).index(payload))
    with jobs.open(mode="read_only") as looking:
        assert [each.payload for each in looking.browse("dead")] == [b"a", b"c"]
