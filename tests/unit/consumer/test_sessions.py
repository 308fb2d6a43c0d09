"""Messages in hand of other processes: takes with numbers, over the end of their session and of their owner."""

from __future__ import annotations

import errno

import pytest

from holdfast import Empty, LeaseExpiredError, PersistentQueue, verify
from holdfast.persistence.format.constants import SESSION_SHIFT
from holdfast.persistence.groups.vote import Vote
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.dispatch.standing import Standing
from holdfast.queue.transactions.transaction import Transaction
from support.builders.handles import handle_of
from support.builders.jobs import ROOT, Jobs, drained, ready
from support.storages.refusals import refusing

ALIVE, GONE = 0xC0FFEE01, 0xDEADBEEF
TAKE, NEXT, LOST = ALIVE << SESSION_SHIFT | 7, ALIVE << SESSION_SHIFT | 8, GONE << SESSION_SHIFT | 7


@pytest.fixture
def jobs() -> Jobs:
    """A queue with messages a to f."""
    jobs = Jobs()
    jobs.put(b"a", b"b", b"c", b"d", b"e", b"f")
    return jobs


def side(queue: PersistentQueue) -> ReadSide:
    """Return the read side of a queue."""
    return handle_of(queue).require_read_side()


def take(queue: PersistentQueue, number: int, count: int = 1) -> list[Delivery]:
    """Take messages for another process."""
    return side(queue).receive(count, 0, number=number)


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    """Return what was delivered."""
    return [each.payload for each in deliveries]


def taken_away(queue: PersistentQueue) -> dict[int, set[int]]:
    """Return what was taken away, by number."""
    return {number: set(offsets) for number, offsets in side(queue).progress.taken_away.items()}


# -- Finding ---------------------------------------------------------------------------------------------------------


def test_a_take_that_is_sent_again_finds_what_it_has_in_hand(jobs: Jobs) -> None:
    """In offset order, without what was settled since; other takes find their own."""
    with jobs.open() as queue:
        first = take(queue, TAKE, 3)
        take(queue, NEXT, 2)
        assert [each.number for each in first] == [TAKE] * 3
        first[1].ack()
        assert side(queue).in_hand(TAKE) == [first[0], first[2]]
        assert payloads(side(queue).in_hand(NEXT)) == [b"d", b"e"]
        assert side(queue).in_hand(LOST) == []
        assert queue.receive().number == 0


def test_what_came_again_is_in_hand_in_offset_order(jobs: Jobs) -> None:
    """In whatever order it was handed out."""
    with jobs.open() as queue:
        later = take(queue, NEXT, 2)
        take(queue, TAKE)
        side(queue).release(later)
        for _ in later:
            take(queue, TAKE)
        assert payloads(side(queue).in_hand(TAKE)) == [b"a", b"b", b"c"]


def test_a_verb_that_is_sent_again_finds_what_became_of_its_message(jobs: Jobs) -> None:
    """In hand, taken away, finished, or anything else: ADR 50, "sent again"."""
    with jobs.open(lease_seconds=30) as queue:
        found = take(queue, TAKE, 5)
        assert side(queue).find(TAKE, 0) is found[0]
        assert side(queue).find(NEXT, 0) is Standing.OTHER
        found[0].ack()
        found[1].nack()
        found[2].release()
        found[3].reject("no")
        for offset, standing in enumerate([Standing.FINISHED, *[Standing.OTHER] * 3]):
            assert side(queue).find(TAKE, offset) is standing
        jobs.clock.advance(31)
        assert side(queue).find(TAKE, 4) is Standing.TAKEN_AWAY
        assert side(queue).find(NEXT, 4) is Standing.OTHER
        with pytest.raises(LeaseExpiredError):
            found[4].ack()


def test_what_was_taken_away_stays_so_until_the_session_has_been_told(jobs: Jobs) -> None:
    """Even if another one finishes it meanwhile."""
    with jobs.open(lease_seconds=30) as queue:
        take(queue, TAKE)
        jobs.clock.advance(31)
        for delivery in take(queue, NEXT):
            assert (delivery.payload, delivery.delivery_count) == (b"a", 2)
            delivery.ack()
        assert side(queue).find(TAKE, 0) is Standing.TAKEN_AWAY
        side(queue).forget_taken_away(TAKE, 0)
        assert side(queue).find(TAKE, 0) is Standing.FINISHED


def test_the_last_delivery_of_a_message_is_taken_away_by_its_death(jobs: Jobs) -> None:
    """Its session has to hear of that too."""
    with jobs.open(lease_seconds=30, max_deliveries=1) as queue:
        take(queue, TAKE)
        jobs.clock.advance(31)
        assert side(queue).find(TAKE, 0) is Standing.TAKEN_AWAY
        assert [letter.reason for letter in queue.dead.list()] == ["lease_expired"]


def test_a_shutdown_takes_everything_away(jobs: Jobs) -> None:
    """The owner gives back what others have in hand."""
    with jobs.open() as queue:
        take(queue, TAKE)
        queue.receive()
        queue.shutdown(immediate=True)
        assert taken_away(queue) == {TAKE: {0}}


def test_a_transaction_and_a_vote_have_messages_of_a_take(jobs: Jobs) -> None:
    """While the transaction has them no lease ends; a vote holds them by its nonce, for no take."""
    with jobs.open(lease_seconds=30) as queue:
        holder = queue.begin()
        assert isinstance(holder, Transaction)
        found = side(queue).receive(2, 0, holder, number=TAKE)
        jobs.clock.advance(31)
        assert side(queue).in_hand(TAKE) == found
        runs = tuple((each.offset, 1, each.record[5], each.record[4]) for each in found)
        side(queue).vote(Vote("t", bytes(16), 1, None, runs), found, holder)
        assert side(queue).progress.numbers == {}
        assert side(queue).find(TAKE, 0) is Standing.OTHER
        side(queue).resolve(bytes(16), is_committed=False, is_durable=False)
        assert payloads(take(queue, NEXT)) == [b"a"]
        holder.abort()


# -- The end of a session --------------------------------------------------------------------------------------------


def test_what_a_dead_session_has_in_hand_comes_again_at_once_and_counts(jobs: Jobs) -> None:
    """Without a back-off and without a failure: its handler may not even have begun. Others keep what they have."""
    with jobs.open(backoff=[100]) as queue:
        lost = take(queue, LOST, 2)
        kept = [*take(queue, TAKE), queue.receive()]
        side(queue).end_session(GONE)
        assert ready(queue) == [b"a", b"b", b"e", b"f"]
        assert [each.is_settled for each in lost + kept] == [True, True, False, False]
        again = queue.receive()
        assert (again.payload, again.delivery_count) == (b"a", 2)
        assert side(queue).progress.returned[0] == (0, 0)
        assert taken_away(queue) == {}


def test_a_message_that_kills_every_process_becomes_a_dead_letter(jobs: Jobs) -> None:
    """As if the owner had died so often: max_deliveries counts."""
    with jobs.open(max_deliveries=2) as queue:
        for _ in range(2):
            assert payloads(take(queue, LOST)) == [b"a"]
            side(queue).end_session(GONE)
        assert payloads(take(queue, TAKE)) == [b"b"]
        assert [(letter.payload, letter.reason) for letter in queue.dead.list()] == [(b"a", "max_deliveries")]


def test_nothing_stays_known_of_a_dead_session(jobs: Jobs) -> None:
    """Nobody will ask what was taken away from it."""
    with jobs.open(lease_seconds=30) as queue:
        take(queue, LOST)
        take(queue, TAKE)
        jobs.clock.advance(31)
        assert ready(queue)[:2] == [b"a", b"b"]
        assert taken_away(queue) == {LOST: {0}, TAKE: {1}}
        side(queue).end_session(GONE)
        assert taken_away(queue) == {TAKE: {1}}


def test_a_session_that_says_hello_keeps_what_it_names(jobs: Jobs) -> None:
    """The rest comes again at once; it will not ask about that."""
    with jobs.open(lease_seconds=30) as queue:
        take(queue, TAKE)
        take(queue, NEXT)
        jobs.clock.advance(31)
        assert ready(queue)[:2] == [b"a", b"b"]
        assert taken_away(queue) == {TAKE: {0}, NEXT: {1}}
        kept = take(queue, TAKE + 2)
        take(queue, TAKE + 3)
        side(queue).keep_only(ALIVE, [TAKE, TAKE + 2])
        assert side(queue).in_hand(TAKE + 2) == kept
        assert side(queue).in_hand(TAKE + 3) == []
        assert taken_away(queue) == {TAKE: {0}}


def test_a_session_ends_although_the_disk_refuses_to_note_it(jobs: Jobs) -> None:
    """The next owner finds its session dead."""
    with jobs.open() as queue:
        take(queue, LOST)
        with refusing(jobs.storage, "write_at", ".position", errno.EIO, count=1):
            side(queue).end_session(GONE)
        assert [each.delivery_count for each in queue.receive_many(1)] == [2]


def test_a_closed_queue_knows_no_sessions(jobs: Jobs) -> None:
    """A call that comes late changes nothing."""
    with jobs.open() as queue:
        late = side(queue)
        late.receive(1, 0, number=LOST)
    before = jobs.storage.tree()
    late.end_session(GONE)
    assert jobs.storage.tree() == before


def test_taking_turns_goes_on_when_a_session_has_died(jobs: Jobs) -> None:
    """The message of an order key that it had in hand keeps its turn; a priority counts."""
    with jobs.open() as queue:
        drained(queue)
        queue.put(b"first", order_key="k")
        queue.put(b"second", order_key="k")
        queue.put(b"urgent", priority=9)
        assert payloads(take(queue, LOST, 3)) == [b"urgent"]
        assert payloads(take(queue, LOST, 3)) == [b"first"]
        side(queue).end_session(GONE)
        assert payloads(take(queue, TAKE)) == [b"urgent"]
        first = take(queue, NEXT, 2)
        assert payloads(first) == [b"first"]
        side(queue).ack(first)
        assert payloads(take(queue, TAKE + 2)) == [b"second"]


# -- The end of an owner ---------------------------------------------------------------------------------------------


def test_a_successor_leaves_living_sessions_what_they_have_in_hand(jobs: Jobs) -> None:
    """With their number and count, for a lease from then on; what dead ones had comes again at once, and counts."""
    queue = jobs.open(lease_seconds=30)
    take(queue, TAKE, 2)
    take(queue, LOST)
    queue.receive()
    jobs.clock.advance(29)
    left = jobs.killed()
    with left.open(living=[ALIVE]) as again:
        assert ready(again) == [b"c", b"d", b"e", b"f"]
        found = side(again).in_hand(TAKE)
        assert [(each.payload, each.delivery_count, each.number) for each in found] == [
            (b"a", 1, TAKE),
            (b"b", 1, TAKE),
        ]
        assert side(again).find(LOST, 2) is Standing.OTHER
        found[0].ack()
        left.clock.advance(29)
        assert side(again).in_hand(TAKE) == [found[1]]
        left.clock.advance(2)
        assert side(again).find(TAKE, 1) is Standing.TAKEN_AWAY
        assert [(each.payload, each.delivery_count) for each in again.receive_many(2)] == [(b"b", 2)]
    assert verify(ROOT, storage=left.storage).ok


def test_what_was_taken_away_is_known_to_the_next_owner(jobs: Jobs) -> None:
    """Over checkpoints; but not of sessions that are dead."""
    queue = jobs.open(lease_seconds=30)
    take(queue, TAKE)
    take(queue, LOST)
    jobs.clock.advance(31)
    assert ready(queue)[:2] == [b"a", b"b"]
    for _ in range(2):
        jobs = jobs.killed()
        queue = jobs.open(living=[ALIVE])
        assert taken_away(queue) == {TAKE: {0}}
        assert side(queue).find(TAKE, 0) is Standing.TAKEN_AWAY
    with jobs.killed().open() as again:
        assert taken_away(again) == {}


@pytest.mark.parametrize("settle", ["ack", "nack", "release", "reject"])
def test_what_a_session_has_settled_is_settled_for_the_next_owner(jobs: Jobs, settle: str) -> None:
    """Neither in hand nor taken away."""
    queue = jobs.open()
    delivery = take(queue, TAKE)[0]
    getattr(delivery, settle)(*(["no"] if settle == "reject" else []))
    with jobs.killed().open(living=[ALIVE]) as again:
        assert side(again).find(TAKE, 0) is (Standing.FINISHED if settle == "ack" else Standing.OTHER)
        assert side(again).in_hand(TAKE) == []


def test_a_living_session_keeps_the_turn_of_its_order_key(jobs: Jobs) -> None:
    """Also before one of the key that comes first in the log, and was a dead letter meanwhile."""
    queue = jobs.open()
    drained(queue)
    for payload in (b"first", b"second"):
        queue.put(payload, order_key="k")
    queue.receive().reject("not now")
    assert payloads(take(queue, TAKE)) == [b"second"]
    queue.dead.retry(reason="rejected")
    with jobs.killed().open(living=[ALIVE]) as again:
        with pytest.raises(Empty):
            again.receive(timeout=0)
        side(again).ack(side(again).in_hand(TAKE))
        assert again.get(timeout=0) == b"first"


def test_a_message_of_a_living_session_that_cannot_be_read_is_lost_once() -> None:
    """It is reported as any other damage, and no session has it in hand; nothing else is."""
    jobs = Jobs()
    queue = jobs.open()
    contents = [bytes([letter]) * 9000 for letter in b"abc"]  # each one in a data file of its own
    for content in contents:
        queue.put(content)
    assert payloads(take(queue, TAKE, 2)) == contents[:2]
    left = jobs.killed()
    path = min(path for path in left.storage.tree() if path.suffix == ".data" and path.parent.name == "data")
    with left.storage.open(path) as file:
        file.write_at((b"x",), file.read_at(file.size(), 0).index(b"aaaa"))
    with left.open(living=[ALIVE]) as again:
        assert payloads(side(again).in_hand(TAKE)) == [contents[1]]
        assert side(again).find(TAKE, 0) is Standing.FINISHED
        assert drained(again) == [contents[2]]
        assert again.stats().lost == 1


def test_what_living_sessions_have_in_hand_stays_so_at_a_close(jobs: Jobs) -> None:
    """The next owner finds it; everything else is given back, uncounted."""
    with jobs.open(living=[ALIVE]) as queue:
        take(queue, TAKE)
        take(queue, LOST)
        queue.receive()
    with jobs.open(living=[ALIVE]) as again:
        assert payloads(side(again).in_hand(TAKE)) == [b"a"]
        assert [(each.payload, each.delivery_count) for each in again.receive_many(9)] == [
            (each, 1) for each in (b"b", b"c", b"d", b"e", b"f")
        ]


def test_what_a_session_has_in_hand_stays_so_at_a_close_if_its_life_cannot_be_told(jobs: Jobs) -> None:
    """The disk may be gone. The close goes on, and lets the next owner in, which asks again."""

    def cannot_be_told(_number: int) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    queue = jobs.open()
    take(queue, TAKE)
    side(queue).close(cannot_be_told)
    with jobs.killed().open(living=[ALIVE]) as again:
        assert payloads(side(again).in_hand(TAKE)) == [b"a"]


def test_by_default_no_session_lives(jobs: Jobs) -> None:
    """A queue of one process gives everything back when it is closed."""
    with jobs.open() as queue:
        take(queue, TAKE)
    with jobs.open(living=[ALIVE]) as again:
        assert side(again).find(TAKE, 0) is Standing.TAKEN_AWAY
        assert ready(again)[0] == b"a"


def test_many_generations_keep_who_has_what(jobs: Jobs) -> None:
    """Each new position file begins with all of it."""
    queue = jobs.open(lease_seconds=30)
    take(queue, TAKE)
    jobs.clock.advance(31)
    assert payloads(take(queue, NEXT)) == [b"a"]
    side(queue).extend(side(queue).in_hand(NEXT), 10**6)
    generations = set()
    while len(generations) < 4:
        queue.receive().release()
        generations |= {path.name for path in jobs.storage.tree() if path.suffix == ".position"}
    with jobs.killed().open(living=[ALIVE]) as again:
        assert side(again).progress.numbers == {0: NEXT}
        assert taken_away(again) == {TAKE: {0}}
