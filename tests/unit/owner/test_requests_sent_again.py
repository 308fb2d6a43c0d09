"""Requests that come twice: docs/adr/0050, "sent again / answered by", at one owner, over its kill, and its closing.

Each row of that table is a test. A successor has the same disk and the same living sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast import Empty, Full, LeaseExpiredError, StaleReceiptError, UsageError, verify
from holdfast.queue.protocol.messages import Arrived, Done, Offsets, Resume, Take, Taken
from support.builders.handles import end_commit_records
from support.builders.jobs import ROOT
from support.owners.served import GROUP, THREAD, Client, Served, put

Succession = Callable[[Served], Served]


def the_same(served: Served) -> Served:
    """No succession: the connection broke, and the owner lives."""
    return served


SUCCESSIONS: list[Succession] = [the_same, Served.killed, Served.handed_over]
over = pytest.mark.parametrize("succeed", SUCCESSIONS, ids=["same owner", "killed", "handed over"])
over_its_end = pytest.mark.parametrize("succeed", SUCCESSIONS[1:], ids=["killed", "handed over"])


@pytest.fixture
def served() -> Served:
    """Return an owner of a queue with two deliveries to a dead letter."""
    return Served(max_deliveries=2, backoff=[])


@pytest.fixture
def client(served: Served) -> Client:
    """Return a client that has put a to d."""
    client = served.connect()
    client.put(1, b"a", b"b", b"c", b"d")
    return client


def successor(served: Served, client: Client, succeed: Succession) -> Client:
    """Return the connection of the same session to the next owner."""
    client.disconnect()
    return succeed(served).connect(client.session)


def left(client: Client) -> list[bytes]:
    """Return what another session can still take now."""
    other, found = client.served.connect(), []
    with suppress(Empty):
        for number in range(1, 10):  # one that was delivered before comes alone
            found += other.take(number, 100)
    return found


# -- Put, commit -----------------------------------------------------------------------------------------------------


@over
def test_a_put_has_the_same_offsets(served: Served, client: Client, succeed: Succession) -> None:
    """Nothing is appended a second time."""
    client.put(2, b"e", b"f")
    again = successor(served, client, succeed)
    assert again.put(2, b"e", b"f") == Offsets(4, 2)
    assert again.put(3, b"g") == Offsets(6, 1)
    assert left(again) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]


@over
def test_a_put_is_answered_before_dedup_id_and_capacity_count(succeed: Succession) -> None:
    """The queue is full because of this put, and its id is remembered because of it."""
    served = Served(maxsize=1)
    client = served.connect()
    client.put(1, b"a", dedup_id="x")
    again = successor(served, client, succeed)
    assert again.put(1, b"a", dedup_id="x") == Offsets(0, 1)
    with pytest.raises(Full):
        again.put(2, b"b")


@over
def test_a_put_that_wrote_nothing_is_done_anew(succeed: Succession) -> None:
    """One that was refused, and one of a remembered id."""
    served = Served(maxsize=1)
    client = served.connect()
    client.put(1, b"a", dedup_id="x")
    assert client.put(2, b"b", dedup_id="x") == Offsets(0, 1)
    again = successor(served, client, succeed)
    assert again.put(2, b"b", dedup_id="x") == Offsets(0, 1)
    with pytest.raises(Full):
        again.put(3, b"c")
    assert again.take(1) == [b"a"]
    again.settle("ack", 1, 0)
    assert again.put(3, b"c") == Offsets(1, 1)


def test_an_old_copy_of_a_put_is_refused(served: Served, client: Client) -> None:
    """A later request of its thread, or an acknowledgement, has said that the answer arrived."""
    client.put(2, b"e")
    with pytest.raises(UsageError, match="old copy"):
        client.put(1, b"a", b"b", b"c", b"d")
    client.ask(Arrived(THREAD, 2))
    with pytest.raises(UsageError, match="old copy"):
        client.put(2, b"e")
    assert left(client) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("synced", [False, True])
def test_a_put_whose_answer_was_lost_with_the_power_is_durable_as_asked(synced: bool) -> None:
    """The answer comes from a round whose sync was done."""
    served = Served()
    client = served.connect()
    client.ask(put(1, synced=synced), [b"a"])
    after = served.without_power()
    assert after.connect().take(1) == [b"a"]


def test_no_answer_is_given_before_the_sync() -> None:
    """The request is in the log, and a loss of power may still take it."""
    served = Served()
    client = served.connect()
    request_id = client.send(put(1), [b"a"])
    assert client.reply(request_id) is None
    with pytest.raises(Empty):
        served.without_power().connect().take(1)
    served.end_round()
    assert client.reply(request_id) == Offsets(0, 1)


@over
def test_a_commit_has_the_same_offsets(served: Served, client: Client, succeed: Succession) -> None:
    """Its messages are put once, and what it acknowledges stays finished."""
    client.take(1)
    assert client.commit(2, b"e", acks=[(1, 0)]) == Offsets(4, 1)
    again = successor(served, client, succeed)
    assert again.commit(2, b"e", acks=[(1, 0)]) == Offsets(4, 1)
    assert left(again) == [b"b", b"c", b"d", b"e"]


@over
def test_a_commit_that_only_acknowledges_is_answered_again(served: Served, client: Client, succeed: Succession) -> None:
    """It has a commit record, too."""
    client.take(1, 2)
    assert client.commit(2, acks=[(1, 0), (1, 1)]) == Offsets(4, 0)
    again = successor(served, client, succeed)
    assert again.commit(2, acks=[(1, 0), (1, 1)]) == Offsets(4, 0)
    assert left(again) == [b"c", b"d"]


@over
def test_a_commit_that_was_not_done_is_done(served: Served, client: Client, succeed: Succession) -> None:
    """The deliveries stay with the session, also over the end of the owner."""
    client.take(1)
    again = successor(served, client, succeed)
    assert again.commit(2, b"e", acks=[(1, 0)]) == Offsets(4, 1)
    assert left(again) == [b"b", b"c", b"d", b"e"]


def test_an_old_copy_of_a_commit_is_not_done_again(served: Served, client: Client) -> None:
    """It has its answer as long as its record is in the log for other reasons; then it is refused."""
    client.commit(2, b"e")
    client.put(3, b"f")
    assert client.commit(2, b"e") == Offsets(4, 1)
    end_commit_records(served.queue.write_side)
    with pytest.raises(UsageError, match="old copy"):
        client.commit(2, b"e")
    assert left(client) == [b"a", b"b", b"c", b"d", b"e", b"f"]


# -- Take ------------------------------------------------------------------------------------------------------------


@over
def test_a_take_has_the_messages_in_hand_under_its_number(served: Served, client: Client, succeed: Succession) -> None:
    """Another number takes others."""
    assert client.take(1, 2) == [b"a", b"b"]
    again = successor(served, client, succeed)
    assert again.take(1, 2) == [b"a", b"b"]
    assert again.take(2) == [b"c"]
    assert again.take(1, 2) == [b"a", b"b"]


@over
def test_a_take_that_found_nothing_is_taken_anew(served: Served, client: Client, succeed: Succession) -> None:
    """It finds what came since."""
    client.take(1, 4)
    with pytest.raises(Empty):
        client.take(2)
    again = successor(served, client, succeed)
    again.put(2, b"e")
    assert again.take(2) == [b"e"]


@over
def test_a_take_that_was_parked_is_one_take(served: Served, client: Client, succeed: Succession) -> None:
    """Its first copy may not be forgotten yet: the messages go to both, and to no other."""
    client.take(1, 4)
    client.send(Take(GROUP, client.number(2), 1, None, None))
    served.end_round()
    after = succeed(served)
    again = after.connect(client.session)
    request_id = again.send(Take(GROUP, client.number(2), 1, None, None))
    again.put(2, b"e", b"f")
    assert again.reply(request_id) is not None
    assert again.payloads == [b"e"]
    assert again.take(3) == [b"f"]


@over_its_end
def test_a_successor_gives_back_what_a_session_has_not_named(
    served: Served, client: Client, succeed: Succession
) -> None:
    """At its hello it says what it has in hand; the rest comes again at once."""
    client.take(1)
    client.take(2)
    again = successor(served, client, succeed)
    assert left(again) == [b"c", b"d"]
    again.ask(Resume(GROUP, [again.number(2)]))
    assert left(again) == [b"a"]
    assert again.settle("ack", 2, 1) == Done({})


@over_its_end
def test_a_group_that_is_gone_has_nothing_in_hand(served: Served, client: Client, succeed: Succession) -> None:
    """A hello for it is answered, so that the client can go on with the rest."""
    again = successor(served, client, succeed)
    assert again.ask(Resume("gone", [again.number(1)])) == Done({})


@over_its_end
def test_messages_of_dead_sessions_come_again_at_once(served: Served, client: Client, succeed: Succession) -> None:
    """Behind a kill the delivery counts; an owner that closes gives it back as if it had never been."""
    client.take(1)
    served.sessions.living.clear()
    other = succeed(served).connect()
    reply = other.ask(Take(GROUP, other.number(1), 1, None, 0))
    assert isinstance(reply, Taken)
    assert [(offset, count) for offset, _, _, count in reply.messages] == [(0, 2 if succeed is Served.killed else 1)]


# -- Settle ----------------------------------------------------------------------------------------------------------


@over
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "park", "release", "extend"])
def test_a_verb_on_what_is_in_hand_is_done_now(served: Served, client: Client, succeed: Succession, verb: str) -> None:
    """The request before it did not arrive."""
    client.take(1)
    again = successor(served, client, succeed)
    assert again.settle(verb, 1, 0, seconds=0 if verb == "nack" else 5 if verb == "extend" else None) == Done({})
    assert left(again) == [b"a", b"b", b"c", b"d"][verb not in ("nack", "release") :]


@over
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "park", "release"])
def test_a_settling_verb_that_was_done_is_answered_as_done(
    served: Served, client: Client, succeed: Succession, verb: str
) -> None:
    """Nothing is changed a second time, though another session has the message by now."""
    client.take(1)
    client.settle(verb, 1, 0, seconds=0)
    other = served.connect()
    taken = [other.take(number) for number in (1, 2, 3)]
    again = successor(served, client, succeed)
    assert again.settle(verb, 1, 0, seconds=0) == Done({})
    after = again.served.connect(other.session)
    assert [after.take(number) for number in (1, 2, 3)] == taken


@over
@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "park", "release", "extend"])
def test_a_verb_on_what_was_taken_away_says_so(served: Served, client: Client, succeed: Succession, verb: str) -> None:
    """The lease ended, and another session has the message."""
    client.take(1)
    served.fake_clock.advance(10_000)
    other = served.connect()
    assert other.take(1) == [b"a"]
    again = successor(served, client, succeed)
    with pytest.raises(LeaseExpiredError, match="offset 0") as caught:
        again.settle(verb, 1, 0)
    assert caught.value.context["offset"] == 0
    assert again.served.connect(other.session).take(1) == [b"a"]


@over
def test_an_ack_of_what_was_given_back_is_stale(served: Served, client: Client, succeed: Succession) -> None:
    """And so is an extension; but the ack of a finished message was done before."""
    client.take(1, 2)
    client.settle("release", 1, 0)
    client.settle("ack", 1, 1)
    again = successor(served, client, succeed)
    for verb in ("ack", "extend"):
        with pytest.raises(StaleReceiptError, match="offset 0"):
            again.settle(verb, 1, 0)
    assert again.settle("ack", 1, 1) == Done({})
    with pytest.raises(StaleReceiptError, match="offset 1"):
        again.settle("extend", 1, 1)


@over
def test_receipts_are_settled_all_or_none(served: Served, client: Client, succeed: Succession) -> None:
    """One was taken away: the others stay in hand."""
    client.take(1)
    client.take(2)
    client.settle("release", 1, 0)
    again = successor(served, client, succeed)
    again.take(2)
    ack = again.settling("ack", 2, 1)
    ack.receipts.append((again.number(1), 0))
    with pytest.raises(StaleReceiptError):
        again.ask(ack)
    assert again.take(2) == [b"b"]


def test_an_ack_is_answered_behind_its_sync(served: Served, client: Client) -> None:
    """Until then a loss of power may bring the message again; behind it nothing does."""
    client.take(1)
    request_id = client.send(client.settling("ack", 1, 0))
    assert client.reply(request_id) is None
    assert served.without_power().connect().take(1) == [b"a"]
    served.end_round()
    assert client.reply(request_id) == Done({})
    assert served.without_power().connect().take(1) == [b"b"]


# -- Verbs -----------------------------------------------------------------------------------------------------------


@over
def test_verbs_are_done_again(served: Served, client: Client, succeed: Succession) -> None:
    """A count says what this time has changed."""
    client.take(1)
    client.settle("reject", 1, 0)
    client.do("pause")
    assert client.do("dead_discard", offsets=[0]) == {"count": 1}
    assert client.do("purge") == {"count": 3}
    again = successor(served, client, succeed)
    again.do("pause")
    assert again.do("dead_discard", offsets=[0]) == {"count": 0}
    assert again.do("purge") == {"count": 0}
    for _ in range(2):
        assert again.do("resume") == {}
        assert again.do("flush") == {}
        assert again.do("configure", settings={"max_deliveries": 3}) == {}
    again.put(2, b"e")
    assert again.take(2) == [b"e"]


@over
def test_a_queue_is_whole_whatever_was_sent_again(served: Served, client: Client, succeed: Succession) -> None:
    """As ``holdfast verify`` sees it."""
    client.take(1, 2)
    again = successor(served, client, succeed)
    again.commit(2, b"e", acks=[(1, 0)])
    again.settle("nack", 1, 1, seconds=0)
    again.served.queue.close()
    assert verify(ROOT, storage=again.served.storage).ok


@over
def test_a_take_that_finishes_others_is_answered_alike(served: Served, client: Client, succeed: Succession) -> None:
    """The same messages under its number, and the others are finished once."""
    client.take(1, 2)
    take = Take(GROUP, client.number(2), 1, None, 0, [(client.number(1), 0), (client.number(1), 1)])
    client.ask(take)
    assert client.payloads == [b"c"]
    again = successor(served, client, succeed)
    again.ask(Resume(GROUP, [client.number(1), client.number(2)]))
    again.ask(take)
    assert again.payloads == [b"c"]
    assert left(again) == [b"d"]
