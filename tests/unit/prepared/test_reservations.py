"""Reservations: many messages held under one id, over restarts, until they are committed or given back."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import (
    ClosedError,
    Damage,
    Empty,
    PersistentQueue,
    Put,
    ShutDown,
    StorageError,
    TransactionStateError,
    UsageError,
)
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.queue.dispatch.taken_runs import RUNS_MAX
from holdfast.queue.prepared.reservations import Reservation
from support.builders.clocks import FakeClock
from support.builders.handles import handle_of
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

Open = Callable[..., PersistentQueue]
FILE_BYTES = 16 * 2**10


@pytest.fixture
def storage() -> SimulatedStorage:
    """A disk in memory."""
    return SimulatedStorage()


@pytest.fixture
def open_queue(storage: SimulatedStorage) -> Iterator[Open]:
    """Open the queue, with data files as small as they can be; closed at the end."""
    opened: list[PersistentQueue] = []

    def open_one(**options: object) -> PersistentQueue:
        settings = {"storage": storage, "data_file_bytes": FILE_BYTES, "clock": FakeClock(), **options}
        opened.append(PersistentQueue(Path("/q"), **{"mode": "exclusive", **settings}))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for queue in opened:
        queue.close()


def payload(number: int) -> bytes:
    """Return a payload of its own."""
    return b"%06d " % number * 30


def fill(queue: PersistentQueue, count: int) -> None:
    """Put messages in batches of a hundred."""
    start = queue.stats().next_offset
    for first in range(start, start + count, 100):
        queue.put_many([payload(each) for each in range(first, min(first + 100, start + count))])


def take(queue: PersistentQueue, **options: int) -> Reservation:
    """Reserve something that has to be there."""
    reservation = queue.reservations.take(**options)
    assert reservation is not None
    return reservation


def rows(queue: PersistentQueue, reservation: Reservation) -> list[tuple[int, bytes]]:
    """Return what a reservation holds; none of it may be damaged."""
    damage: list[Damage] = []
    found = [(each.offset, each.payload) for each in queue.reservations.read(reservation, damage.append)]
    assert not damage
    return found


def offsets(reservation: Reservation) -> list[int]:
    """Return the offsets that a reservation holds."""
    return [offset for first, count, _, _ in reservation.runs for offset in range(first, first + count)]


def test_a_reservation_holds_what_comes_next_up_to_its_bounds(open_queue: Open) -> None:
    """In runs that end with their data files; the messages have the bytes that were put."""
    queue = open_queue()
    fill(queue, 500)
    first = take(queue, max_messages=120)
    second = take(queue, max_bytes=50 * len(payload(0)))
    third = take(queue, max_bytes=1)  # one message comes whatever its size
    rest = take(queue)
    assert [each.count for each in (first, second, third, rest)] == [120, 50, 1, 329]
    assert rows(queue, first) + rows(queue, second) + rows(queue, third) + rows(queue, rest) == [
        (each, payload(each)) for each in range(500)
    ]
    assert len(rest.runs) == len({run[2] for run in rest.runs}) > 1
    assert queue.reservations.take() is None
    assert queue.stats().depth == 500
    with pytest.raises(Empty):
        queue.get(timeout=0)


def test_it_is_there_after_a_restart_with_the_same_messages(open_queue: Open) -> None:
    """Under the same id, though more was put meanwhile; what it holds is nobody else's."""
    queue = open_queue()
    fill(queue, 300)
    before = take(queue, max_messages=200)
    queue.close()
    queue = open_queue()
    fill(queue, 50)
    (after,) = queue.reservations.held()
    assert after == before
    assert rows(queue, after) == [(each, payload(each)) for each in range(200)]
    assert queue.reservations.size_bytes(after) == before.size_bytes == 200 * len(payload(0))
    assert queue.get(timeout=0) == payload(200)
    assert [each.id for each in queue.prepared()] == [before.id]


def test_a_committed_reservation_is_finished_and_frees_its_data_files(
    open_queue: Open, storage: SimulatedStorage
) -> None:
    """Until then they stay, though reading has gone past them."""
    queue = open_queue()
    fill(queue, 500)
    reservation = take(queue, max_messages=450)
    queue.get_many(50, timeout=0)
    while queue.qsize():
        queue.get(timeout=0)
    assert queue.stats().file_count > 3
    queue.reservations.commit(reservation)
    assert queue.stats().depth == 0
    assert queue.stats().file_count == 1
    queue.close()
    queue = open_queue()
    assert not queue.reservations.held()
    assert queue.stats().depth == 0


def test_committing_takes_one_sync(open_queue: Open, storage: SimulatedStorage) -> None:
    """Whatever it holds; and reserving takes one, once the memory of decisions is there."""
    queue = open_queue(data_file_bytes=2**20)
    fill(queue, 300)
    take(queue, max_messages=1)

    def syncs() -> int:
        return sum(type(each).__name__ == "Sync" for each in storage.log)

    before = syncs()
    reservation = take(queue, max_messages=200)
    reserved = syncs()
    queue.reservations.commit(reservation)
    assert (reserved - before, syncs() - reserved) == (1, 1)


def test_an_aborted_reservation_gives_everything_back_uncounted(open_queue: Open) -> None:
    """In the old order; the next reservation that begins there has the same id again."""
    queue = open_queue()
    fill(queue, 300)
    first = take(queue, max_messages=200)
    queue.reservations.abort(first)
    delivery = queue.receive(timeout=0)
    assert (delivery.offset, delivery.delivery_count) == (0, 1)
    delivery.release()
    again = take(queue, max_messages=10)
    assert (again.id, offsets(again)) == (first.id, list(range(10)))
    queue.reservations.commit(again)
    assert queue.get(timeout=0) == payload(10)


def test_one_that_somebody_has_aborted_by_its_id_cannot_be_committed(open_queue: Open) -> None:
    """And one that somebody has committed is committed again without harm."""
    queue = open_queue()
    fill(queue, 20)
    aborted = take(queue, max_messages=10)
    queue.abort_prepared(aborted.id)
    with pytest.raises(TransactionStateError, match="aborted"):
        queue.reservations.commit(aborted)
    committed = take(queue, max_messages=10)
    queue.commit_prepared(committed.id)
    queue.reservations.commit(committed)
    assert queue.stats().depth == 10


def test_what_waits_aside_is_taken_when_it_is_ready(open_queue: Open) -> None:
    """Priorities and messages that were given back; those that are delayed stay, and expired ones go."""
    clock = FakeClock()
    queue = open_queue(clock=clock)
    fill(queue, 3)
    queue.put(b"later", delay=60)
    queue.put(b"soon over", ttl=5)
    queue.put(b"urgent", priority=9)
    queue.receive(timeout=0).release()  # the urgent one
    failed = queue.receive_many(2, timeout=0)
    failed.nack(delay=0)
    clock.advance(10)
    reservation = take(queue)
    assert {each for _, each in rows(queue, reservation)} == {payload(0), payload(1), payload(2), b"urgent"}
    counts = {each.offset: each.delivery_count for each in queue.reservations.read(reservation, pytest.fail)}
    assert sum(counts.values()) == len(failed)
    clock.advance(60)
    assert [each for _, each in rows(queue, take(queue))] == [b"later"]


def test_a_bound_takes_what_is_urgent_first(open_queue: Open) -> None:
    """And the end of a snapshot is not passed, however urgent what stands behind it is."""
    queue = open_queue()
    fill(queue, 10)
    queue.put(b"urgent", priority=9)
    end = queue.stats().next_offset
    queue.put(b"too late", priority=9)
    first = take(queue, max_messages=2, end_offset=end)
    assert {each for _, each in rows(queue, first)} == {b"urgent", payload(0)}
    second = take(queue, end_offset=end)
    assert offsets(second) == list(range(1, 10))
    assert queue.reservations.take(end_offset=end) is None
    assert queue.get(timeout=0) == b"too late"


def test_messages_of_one_order_key_come_together_and_hold_the_next_ones_back(open_queue: Open) -> None:
    """Until the reservation is committed; messages without a key go on."""
    queue = open_queue()
    queue.put_many([Put(b"%d" % each, order_key="k" if each % 2 else None) for each in range(8)])
    first = take(queue, max_messages=6)
    assert offsets(first) == [0, 1, 2, 3, 4, 6]  # 3 stood aside until 1 was taken, so it came behind the plain ones
    queue.put(b"next", order_key="k")
    queue.put(b"plain")
    assert [each.offset for each in queue.receive_many(10, timeout=0)] == [9]
    queue.reservations.commit(first)
    assert [each.offset for each in queue.receive_many(10, timeout=0)] == [5]


def test_damage_inside_is_told_when_it_is_read_and_the_rest_comes(open_queue: Open, storage: SimulatedStorage) -> None:
    """Sizes and payloads, in the middle and at the end of what was passed over."""
    queue = open_queue()
    fill(queue, 250)
    queue.close()
    path = Path("/q/data") / storage.list(Path("/q/data"))[1]
    first = int(path.stem.split("-")[1])
    frame = 32 + len(payload(0))
    for place, at in ((3, 40), (10, 2), (20, 31)):  # a payload, a record size, a timestamp
        file = storage.open(path)
        position = FRAMES_START + place * frame + at
        (byte,) = file.read_at(1, position)
        file.write_at([bytes((byte ^ 0x10,))], position)
        file.close()
    queue = open_queue()
    taken, damage, found = [], [], []
    while (reservation := queue.reservations.take(max_messages=40)) is not None:
        taken += offsets(reservation)
        found += [(each.offset, each.payload) for each in queue.reservations.read(reservation, damage.append)]
        queue.reservations.commit(reservation)
    lost = {first + 3, first + 10, first + 20}
    told = {offset for each in (*damage, *queue.recovery.damage) for offset in each.offsets}
    assert told == lost
    assert sorted(found) == [(each, payload(each)) for each in range(250) if each not in lost]
    assert len(taken) == len(set(taken))
    assert queue.stats().depth == 0


def test_a_reservation_has_no_more_runs_than_it_may(open_queue: Open) -> None:
    """Where every second message is in somebody's hands."""
    queue = open_queue(data_file_bytes=2**20)
    queue.put_many([b""] * (2 * RUNS_MAX + 20))
    batch = queue.receive_many(2 * RUNS_MAX + 20, timeout=0)
    taken = [*batch]
    while len(taken) < 2 * RUNS_MAX + 20:
        taken += queue.receive_many(2 * RUNS_MAX + 20, timeout=0)
    taken[0]._deliverer.release(taken[1::2])
    first = take(queue)
    assert len(first.runs) <= RUNS_MAX
    second = take(queue)
    assert offsets(first) + offsets(second) == list(range(1, 2 * RUNS_MAX + 20, 2))


def test_a_paused_group_reserves_nothing(open_queue: Open) -> None:
    """Nor does one that was shut down and is empty, or a handle that takes nothing."""
    queue = open_queue()
    fill(queue, 10)
    queue.pause()
    assert queue.reservations.take() is None
    queue.resume()
    queue.shutdown()
    assert take(queue).count == 10
    with pytest.raises(ShutDown):
        queue.reservations.take()
    queue.close()
    with pytest.raises(ClosedError):
        queue.reservations.take()
    with pytest.raises(UsageError):
        open_queue(mode="read_only").reservations.take()


def test_headers_do_not_make_a_message_slow_or_special(open_queue: Open) -> None:
    """Those of an application are passed over like none."""
    queue = open_queue(data_file_bytes=2**20)
    queue.put_many([Put(payload(each), headers={"content-type": "text/plain"}) for each in range(300)])
    reservation = take(queue)
    assert len(reservation.runs) == 1
    types = {each.headers["content-type"] for each in queue.reservations.read(reservation, pytest.fail)}
    assert types == {"text/plain"}


def test_a_group_that_nobody_has_used_holds_nothing(open_queue: Open, storage: SimulatedStorage) -> None:
    """Looking does not begin it."""
    queue = open_queue()
    count = storage.mutation_count
    assert queue.reservations.held() == []
    assert storage.mutation_count == count


def test_a_size_that_is_not_known_any_more_is_found_in_the_log(open_queue: Open) -> None:
    """What is plain by its frame headers, the rest by reading; one that is known is not looked for."""
    queue = open_queue()
    fill(queue, 10)
    queue.put_many([Put(b"urgent", priority=3), Put(b"keyed", order_key="k"), b"plain"])
    taken = take(queue)
    size = 10 * len(payload(0)) + len(b"urgentkeyedplain")
    assert queue.reservations.size_bytes(taken) == size
    queue.close()
    queue = open_queue()
    (held,) = queue.reservations.held()
    assert held.size_bytes is None
    assert queue.reservations.size_bytes(held) == size


def test_a_message_that_is_read_takes_no_more_bytes_than_there_may_be(open_queue: Open) -> None:
    """One that is larger comes with the next reservation; as the first one it comes alone, whatever its size."""
    queue = open_queue()
    queue.put_many([Put(bytes(60), priority=3), Put(bytes(50), priority=3), Put(bytes(200), priority=3)])
    sizes = []
    while (reservation := queue.reservations.take(max_bytes=100)) is not None:
        sizes.append(queue.reservations.size_bytes(reservation))
        queue.reservations.commit(reservation)
    assert sizes == [60, 50, 200]


def test_what_was_shut_down_at_once_reserves_nothing(open_queue: Open) -> None:
    """Takes are refused; what waits stays for the next opening."""
    queue = open_queue()
    fill(queue, 3)
    queue.shutdown(immediate=True)
    with pytest.raises(ShutDown):
        queue.reservations.take()
    queue.close()
    assert open_queue().stats().depth == 3


def test_what_is_missing_at_the_end_of_the_log_ends_a_reservation(open_queue: Open, storage: SimulatedStorage) -> None:
    """Its last data file is gone: the loss is told, and reading does not wait for it."""
    queue = open_queue()
    fill(queue, 120)
    reservation = take(queue)
    last = handle_of(queue).files.names()[-1]
    queue.close()
    storage.remove(Path("/q/data") / str(last))
    queue = open_queue()
    (held,) = queue.reservations.held()
    assert last not in queue.reservations.data_files(held).values()
    damage: list[Damage] = []
    found = [each.offset for each in queue.reservations.read(held, damage.append)]
    lost = {offset for each in (*damage, *queue.recovery.damage) for offset in each.offsets}
    assert lost == set(range(last.first_offset, 120))
    assert sorted([*found, *lost]) == offsets(reservation)
    assert queue.reservations.size_bytes(held) == len(found) * len(payload(0))


def test_the_data_files_of_a_reservation_are_those_that_are_there(open_queue: Open, storage: SimulatedStorage) -> None:
    """One that was removed is left out; one that cannot be looked at is an error, and not taken for missing."""
    queue = open_queue()
    fill(queue, 120)
    reservation = take(queue)
    names = handle_of(queue).files.names()
    assert list(queue.reservations.data_files(reservation).values()) == names
    with refusing(storage, "open", str(names[-1])), pytest.raises(StorageError):
        queue.reservations.data_files(reservation)
    storage.remove(Path("/q/data") / str(names[-1]))
    assert names[-1] not in queue.reservations.data_files(reservation).values()


def test_what_is_prepared_is_counted(open_queue: Open) -> None:
    """As ``prepared`` lists it."""
    queue = open_queue()
    fill(queue, 3)
    assert queue.prepared_count() == 0
    take(queue, max_messages=2)
    assert queue.prepared_count() == len(queue.prepared()) == 1


def test_delivery_counts_of_many_runs_take_no_time(open_queue: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch of a drain asks for them: not each run for each message that was ever delivered."""
    queue = open_queue()
    queue.put(b"first")
    monkeypatch.setattr(handle_of(queue).require_read_side().progress, "deliveries", dict.fromkeys(range(40_000), 2))
    runs = tuple((first, 1, 1, 0) for first in range(0, 2 * RUNS_MAX, 2))
    started = time.process_time()
    counts = queue.reservations.delivery_counts(Reservation("id", b"", runs))
    assert time.process_time() - started < 1  # was 7 seconds
    assert counts == dict.fromkeys(range(0, 2 * RUNS_MAX, 2), 2)
