"""The machine of an owner, without sockets: hellos, rounds, waits, the ends of sessions, and what fails."""

from __future__ import annotations

import errno
import logging
import math
from typing import Any
from unittest.mock import Mock

import pytest

from holdfast import (
    CommitUnknownError,
    Empty,
    FlushPolicy,
    Full,
    HoldfastError,
    PoisonedError,
    RecordTooLargeError,
    ShutDown,
    StaleReceiptError,
    StorageError,
    UsageError,
)
from holdfast.errors import RetryableError
from holdfast.persistence.ownership.sessions import SessionFile, Sessions
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.owner import owned_queue
from holdfast.queue.owner.given_up import GIVEN_UP_MAX
from holdfast.queue.owner.machine import SWEEP_SECONDS, Machine
from holdfast.queue.owner.owned_queue import MESSAGE_BYTES, PAYLOAD_BYTES_MAX, SENT_BYTES_MAX
from holdfast.queue.protocol.frames import NOTICE, Frame
from holdfast.queue.protocol.messages import (
    VERSION,
    Attach,
    Done,
    Hello,
    Offsets,
    Put,
    SessionLostError,
    Settle,
    Take,
    UnreadableError,
    Verb,
)
from support.builders.jobs import ROOT
from support.owners.served import EPOCH, GROUP, Client, Served, put
from support.storages.refusals import refusing

MAKING = "0123456789abcdef.making"


@pytest.fixture
def served() -> Served:
    """Return an owner."""
    return Served()


@pytest.fixture
def client(served: Served) -> Client:
    """Return a client."""
    return served.connect()


def newcomer(served: Served, connection: int = 1000) -> Client:
    """Return a connection that has not said hello."""
    served.machine.connected(connection)
    return Client(served, connection)


# -- Sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hello", "error"),
    [
        (Hello(VERSION + 1, EPOCH, 0, MAKING), UsageError),
        (Hello(VERSION, b"f" * 16, 0, MAKING), RetryableError),
        (Hello(VERSION, EPOCH, 77, ""), SessionLostError),
        (Verb(GROUP, {"verb": "flush"}), UnreadableError),
    ],
    ids=["another version", "another epoch", "dead", "no hello"],
)
def test_a_hello_is_refused(served: Served, hello: Hello, error: type[Exception]) -> None:
    """The client hears why, and may say another one."""
    client = newcomer(served)
    with pytest.raises(error):
        client.ask(hello)
    with pytest.raises(UnreadableError):
        client.put(1, b"a")
    client.ask(Hello(VERSION, EPOCH, 0, MAKING))
    assert client.put(1, b"a") == Offsets(0, 1)


def test_a_second_hello_is_refused(served: Served, client: Client) -> None:
    """The connection serves on."""
    with pytest.raises(UsageError, match="once"):
        client.ask(Hello(VERSION, EPOCH, client.session, ""))
    assert client.put(1, b"a") == Offsets(0, 1)


def test_a_session_whose_file_cannot_be_tested_may_ask_again(served: Served) -> None:
    """An error of the disk is an answer: the connection is not closed."""
    storage = served.disk
    session = SessionFile.begin(storage, ROOT)
    served.machine = Machine(served.queue, Sessions(storage, ROOT), EPOCH)
    client = newcomer(served)
    with refusing(storage, "rename"), pytest.raises(StorageError):
        client.ask(Hello(VERSION, EPOCH, 0, session.making))
    client.ask(Hello(VERSION, EPOCH, 0, session.making))


def test_only_requests_come_from_clients(served: Served, client: Client) -> None:
    """Anything else closes the connection."""
    for frame, error in [(Frame(NOTICE, 1, b"", []), UsageError), (Frame(1, 1, b"\xc1", []), UnreadableError)]:
        with pytest.raises(error):
            served.machine.step(client.connection, frame, 0.0)
    assert served.machine.end_round(0.0) == []


@pytest.mark.parametrize("verb", ["ack", "extend"])
def test_a_session_settles_only_its_own_deliveries(served: Served, client: Client, verb: str) -> None:
    """A number says whose it is."""
    client.put(1, b"a", b"b")
    client.take(1)
    other = served.connect()
    for request in (
        Settle(GROUP, verb, [(client.number(1), 0)], 5.0, None),
        Take(GROUP, client.number(1), 1, None, 0),
        Verb(GROUP, {"verb": "give_up", "number": client.number(1)}),
    ):
        with pytest.raises(SessionLostError):
            other.ask(request)
    commit = other.committing(2)
    commit.receipts.append((client.number(1), 0))
    with pytest.raises(SessionLostError):
        other.ask(commit)
    assert client.take(1) == [b"a"]


def test_a_killed_client_is_found_at_once(served: Served, client: Client) -> None:
    """Its connection ends, and so its file is tested; what it had in hand comes again."""
    client.put(1, b"a")
    client.take(1)
    served.end_round()
    served.sessions.living.clear()
    assert served.machine.seconds_left(served.clock.monotonic()) > 0
    client.disconnect()
    assert served.machine.seconds_left(served.clock.monotonic()) == 0
    served.end_round()
    assert served.connect().take(1) == [b"a"]


def test_a_connection_that_never_said_hello_causes_no_test(served: Served) -> None:
    """Nothing is known of it."""
    served.end_round()
    newcomer(served).disconnect()
    assert served.machine.seconds_left(served.clock.monotonic()) == SWEEP_SECONDS


def test_a_sweep_that_fails_is_tried_again(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The requests of the round are answered all the same."""
    client.put(1, b"a")
    client.take(1)
    served.sessions.living.clear()

    def fail() -> Any:
        raise OSError(errno.EMFILE, "too many files")

    with monkeypatch.context() as patch:
        patch.setattr(served.sessions, "sweep", fail)
        request_id = client.send(put(2), [b"b"])
        served.sweep()
        assert client.reply(request_id) == Offsets(1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(served.queue, "end_session", lambda session: (_ for _ in ()).throw(StorageError("full")))
        served.sweep()
    assert ["cannot be tested" in caplog.text, "not given back yet" in caplog.text] == [True, True]
    served.sweep()
    assert served.connect().take(1) == [b"a"]


def test_a_session_without_a_file_ends_with_its_connections(served: Served) -> None:
    """It may connect again within a second; no later owner knows it."""
    client = newcomer(served)
    client.session = client.ask(Hello(VERSION, EPOCH, 0, "")).session  # type: ignore[union-attr]
    client.put(1, b"a")
    client.take(1)
    served.sweep()
    client.disconnect()
    served.end_round()
    again = served.connect(client.session)
    assert again.take(1) == [b"a"]
    served.sweep()
    again.disconnect()
    served.end_round()
    served.sweep()
    with pytest.raises(SessionLostError):
        served.connect(client.session)
    assert served.connect().take(1) == [b"a"]


# -- Rounds ----------------------------------------------------------------------------------------------------------


def test_a_round_has_one_sync_for_all(served: Served) -> None:
    """Puts of many clients, and acknowledgements of many."""
    clients = [served.connect() for _ in range(5)]
    assert clients[0].put(1, *[b"x"] * 5) == Offsets(0, 5)
    for each in clients:
        each.take(1)
    syncs: list[str] = []
    served.disk.before_verb = lambda verb, _: syncs.append(verb) if verb == "sync" else None
    puts = [each.send(Put(bytes([number]) * 16, False, "", {}, 0), [b"y"]) for number, each in enumerate(clients)]
    acks = [each.send(each.settling("ack", 1, offset)) for offset, each in enumerate(clients)]
    served.end_round()
    assert len(syncs) == 2
    assert [each.reply(request_id) for each, request_id in zip(clients, puts, strict=True)] == [
        Offsets(5 + number, 1) for number in range(5)
    ]
    assert [each.reply(request_id) for each, request_id in zip(clients, acks, strict=True)] == [Done({})] * 5


def test_a_refused_put_changes_nothing_for_those_beside_it(served: Served) -> None:
    """In one round: a put, one that can never fit, and one that is there already."""
    served.queue.attach(GROUP, {"maxsize": 2}, {})
    first, second, third = (served.connect() for _ in range(3))
    first.put(1, b"a")
    ids = [first.send(put(1), [b"a"]), second.send(put(2), [b"x"] * 3), third.send(put(3), [b"b"])]
    served.end_round()
    assert first.reply(ids[0]) == Offsets(0, 1)
    with pytest.raises(RecordTooLargeError):
        second.reply(ids[1])
    assert third.reply(ids[2]) == Offsets(1, 1)


def test_nothing_to_do_needs_no_answer(served: Served) -> None:
    """A round without a request."""
    assert served.machine.end_round(0.0) == []


# -- Waiting ---------------------------------------------------------------------------------------------------------


def test_a_take_waits_for_a_put_and_is_answered_in_its_round(served: Served, client: Client) -> None:
    """In the order in which they came."""
    other = served.connect()
    first = client.send(Take(GROUP, client.number(1), 1, None, None))
    second = other.send(Take(GROUP, other.number(1), 1, None, 5))
    served.end_round()
    assert served.machine.seconds_left(served.clock.monotonic()) == SWEEP_SECONDS
    client.put(1, b"a")
    assert client.reply(first) is not None
    assert other.reply(second) is None
    served.fake_clock.advance(4.5)
    served.end_round()
    assert served.machine.seconds_left(served.clock.monotonic()) == pytest.approx(0.5)
    served.sweep()
    with pytest.raises(Empty):
        other.reply(second)
    assert served.machine.seconds_left(served.clock.monotonic()) == SWEEP_SECONDS


def test_a_new_take_has_its_turn_behind_those_that_wait() -> None:
    """A policy that shows puts at once does not let a busy client starve the others."""
    served = Served(flush=FlushPolicy.never())
    waiting, busy = served.connect(), served.connect()
    first = waiting.send(Take(GROUP, waiting.number(1), 1, None, None))
    served.end_round()
    busy.send(put(1), [b"a"])
    second = busy.send(Take(GROUP, busy.number(1), 1, None, 0))
    served.end_round()
    assert waiting.reply(first) is not None
    assert waiting.payloads == [b"a"]
    with pytest.raises(Empty):
        busy.reply(second)


def test_a_new_put_has_its_turn_behind_those_that_wait() -> None:
    """A batch that needs much space is overtaken by none that waits, too; one that is done already needs no space."""
    served = Served(maxsize=3)
    large, small = served.connect(), served.connect()
    assert small.put(1, b"a", b"b") == Offsets(0, 2)
    first = large.send(Put(b"l" * 16, False, "", {}, None), [b"x", b"y"])
    served.end_round()
    assert small.put(1, b"a", b"b", timeout=None) == Offsets(0, 2)
    second = small.send(put(2, timeout=None), [b"c"])
    served.end_round()
    assert small.reply(second) is None
    small.take(1)
    small.settle("ack", 1, 0)
    assert large.reply(first) == Offsets(2, 2)
    assert small.reply(second) is None
    small.take(2)
    small.settle("ack", 2, 1)
    assert small.reply(second) == Offsets(4, 1)


def test_a_put_that_does_not_wait_needs_only_its_own_space() -> None:
    """A queue that is not full refuses none."""
    served = Served(maxsize=3)
    large, small = served.connect(), served.connect()
    small.put(1, b"a", b"b")
    large.send(Put(b"l" * 16, False, "", {}, None), [b"x", b"y"])
    served.end_round()
    assert small.put(2, b"c") == Offsets(2, 1)
    with pytest.raises(Full):
        small.put(3, b"d")


def test_a_commit_that_makes_its_own_space_waits_for_no_put() -> None:
    """And one that makes none waits for as long as it says."""
    served = Served(maxsize=2)
    client, other = served.connect(), served.connect()
    client.put(1, b"a", b"b")
    client.take(1)
    waits = other.send(Put(b"o" * 16, False, "", {}, None), [b"x"])
    served.end_round()
    assert client.commit(2, b"c", acks=[(1, 0)]) == Offsets(2, 1)
    with pytest.raises(Full):
        client.commit(3, b"d")
    patient = client.send(client.committing(4, timeout=None), [b"e"])
    client.take(2)
    client.settle("ack", 2, 1)
    assert other.reply(waits) == Offsets(3, 1)
    assert client.reply(patient) is None
    client.take(3, 1)
    client.settle("ack", 3, 2)
    assert client.reply(patient) == Offsets(4, 1)


def test_a_wait_for_one_group_is_not_one_for_another(served: Served, client: Client) -> None:
    """A take of a group that finds nothing does not hold those of others up, and other groups wake none."""
    client.attach("other", is_new=True)
    client.put(1, b"a")
    client.take(1)
    client.settle("nack", 1, 0, seconds=0)
    mine = client.send(Take("other", client.number(2), 1, None, None))
    served.end_round()
    assert client.reply(mine) is not None
    waits = client.send(Take("other", client.number(3), 1, None, None))
    served.end_round()
    assert client.reply(waits) is None
    assert served.machine.seconds_left(served.clock.monotonic()) == SWEEP_SECONDS  # though the other has one ready
    assert client.take(4) == [b"a"]


def test_a_delayed_message_wakes_the_take_that_waits_for_it(served: Served, client: Client) -> None:
    """To the moment."""
    client.put(1, b"a")
    client.take(1)
    client.settle("nack", 1, 0, seconds=0.25)
    waits = client.send(Take(GROUP, client.number(2), 1, None, None))
    served.end_round()
    assert served.machine.seconds_left(served.clock.monotonic()) == pytest.approx(0.25)
    served.fake_clock.advance(0.25)
    served.end_round()
    assert client.reply(waits) is not None


def test_a_parked_request_ends_with_its_connection(served: Served, client: Client) -> None:
    """No message is handed out to it."""
    client.send(Take(GROUP, client.number(1), 1, None, None))
    served.end_round()
    client.disconnect()
    other = served.connect()
    other.put(1, b"a")
    assert other.take(1) == [b"a"]


def test_an_owner_that_ends_leaves_parked_requests_to_the_next_one(served: Served, client: Client) -> None:
    """The first one of each connection is told; none of them takes a message any more."""
    other = served.connect()
    first = client.send(Take(GROUP, client.number(1), 1, None, None))
    client.send(Take(GROUP, client.number(2), 1, None, None))
    second = other.send(Take(GROUP, other.number(1), 1, None, None))
    served.end_round()
    assert served.machine.unanswered() == {client.connection: first, other.connection: second}
    assert served.machine.unanswered() == {}
    client.put(1, b"a")
    assert client.take(3) == [b"a"]


class Woken:
    """Counts the rounds that are asked for."""

    def __init__(self) -> None:
        self.count = 0

    def release(self) -> None:
        self.count += 1


def test_what_parked_requests_wait_for_wakes_the_thread() -> None:
    """A put, for takes; space, for puts: also by the process that owns the queue. Each wakes once."""
    served = Served(maxsize=1)
    woken: list[Woken] = []

    def wake() -> Woken:
        woken.append(Woken())
        return woken[-1]

    served.machine.waker = wake
    client = served.connect()
    client.send(Take(GROUP, client.number(1), 1, None, None))
    served.end_round()
    served.end_round()
    assert [each.count for each in woken] == [0, 0]
    served.queue.write_side.put(b"a", b"", None)
    assert [each.count for each in woken] == [0, 1]
    served.end_round()
    assert client.payloads == []
    client.send(put(1, timeout=None), [b"b"])
    served.end_round()
    side = served.queue.group(GROUP)
    before = sum(each.count for each in woken)
    side.ack(side.in_hand(client.number(1)))
    assert sum(each.count for each in woken) == before + 1


# -- Takes that were given up ----------------------------------------------------------------------------------------


def test_a_take_that_was_given_up_takes_nothing(served: Served, client: Client) -> None:
    """Neither the one that is parked, nor an old copy that comes late."""
    parked = client.send(Take(GROUP, client.number(1), 1, None, None))
    served.end_round()
    assert client.do("give_up", number=client.number(1)) == {}
    client.put(1, b"a")
    with pytest.raises(StaleReceiptError, match="given up"):
        client.reply(parked)
    with pytest.raises(StaleReceiptError, match="given up"):
        client.take(1)
    assert client.take(2) == [b"a"]
    client.do("give_up", number=client.number(2))
    assert client.take(3) == [b"a"]


def test_only_the_last_takes_that_were_given_up_are_remembered(served: Served, client: Client) -> None:
    """Memory is bounded; and the end of a session forgets them."""
    client.put(1, b"a")
    for number in range(1, GIVEN_UP_MAX + 2):
        client.do("give_up", number=client.number(number))
    assert client.take(1) == [b"a"]
    served.sessions.living.clear()
    served.sweep()
    assert not served.machine._given_up.has(client.session, client.number(5))


# -- Large takes -----------------------------------------------------------------------------------------------------


def test_large_payloads_are_not_in_the_reply_to_a_take_but_their_places_are() -> None:
    """One that is sent again has the same; a payload of nothing has no place."""
    served = Served(data_file_bytes=2**23)
    client = served.connect()
    payloads = [b"x" * PAYLOAD_BYTES_MAX, b"y" * (PAYLOAD_BYTES_MAX + 1), b""]
    served.queue.write_side.put_many(payloads, None)
    for _ in range(2):
        assert [len(each) for each in client.take(1, 3)] == [PAYLOAD_BYTES_MAX, 0, 0]
    deliveries = served.queue.group(GROUP).in_hand(client.number(1))
    reply, sent = served.queue.sent(GROUP, deliveries)
    assert (sent, list(reply.places)) == ([payloads[0], b"", b""], [1])
    sequence, start, end = reply.places[1]
    file = served.queue.handle.files.path(served.queue.handle.files.names()[0])
    with served.disk.open(file, writable=False) as opened:
        assert (sequence, opened.read_at(end - start, start)[-3:]) == (1, b"yyy")


def test_a_reply_has_small_payloads_up_to_a_bound_and_places_of_the_others() -> None:
    """And it has no more messages than a frame holds: the others are given back."""
    served = Served(data_file_bytes=2**23)
    client = served.connect()
    served.queue.write_side.put_many([b"x" * PAYLOAD_BYTES_MAX] * 17, None)
    deliveries: list[Delivery] = []
    while len(deliveries) < 17:
        deliveries += served.queue.group(GROUP).receive(17 - len(deliveries), 0, number=client.number(1))
    reply, sent = served.queue.sent(GROUP, deliveries)
    assert (len(sent), list(reply.places)) == (17, [15, 16])
    assert sum(map(len, sent)) <= SENT_BYTES_MAX


def test_a_reply_that_would_be_too_large_by_its_headers_gives_the_rest_back(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come with the next take."""
    monkeypatch.setattr(owned_queue, "TAKEN_BYTES_MAX", 3 * MESSAGE_BYTES + 3)
    served.queue.write_side.put_many([b"a", b"b", b"c", b"d"], None)
    assert client.take(1, 4) == [b"a", b"b", b"c"]
    assert served.queue.group(GROUP).in_flight_count == 3
    assert client.take(2, 4) == [b"d"]


# -- Failures --------------------------------------------------------------------------------------------------------


def test_a_failed_sync_is_told_to_all_of_its_round_and_to_the_owner_once(served: Served, client: Client) -> None:
    """The queue is poisoned: another owner has to open it. The answers come first."""
    client.put(1, b"0")
    told: list[int] = []
    served.machine.on_poisoned = lambda: told.append(len(served.machine._answers)) is None
    other = served.connect()
    first, second = client.send(put(2), [b"a"]), other.send(put(3), [b"b"])
    with refusing(served.disk, "sync", ".data"):
        served.end_round()
    for each, request_id in ((client, first), (other, second)):
        with pytest.raises(CommitUnknownError):
            each.reply(request_id)
    with pytest.raises(PoisonedError):
        client.put(4, b"c")
    assert told == [2]


def test_a_put_that_there_is_no_memory_to_answer_is_answered_by_the_next_round(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be one that has waited for space, whose client waits for nothing else."""
    first, second = client.send(put(1), [b"a"]), client.send(put(2), [b"b"])
    with monkeypatch.context() as patched:
        patched.setattr(served.machine, "_answer", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            served.end_round()
    served.end_round()
    assert [client.reply(each) for each in (first, second)] == [Offsets(0, 1), Offsets(1, 1)]


def test_a_poisoned_queue_refuses_without_an_owner_that_listens(served: Served, client: Client) -> None:
    """As a queue of one process does."""
    client.put(1, b"0")
    with refusing(served.disk, "sync", ".data"), pytest.raises(CommitUnknownError):
        client.put(2, b"a")
    with pytest.raises(PoisonedError):
        client.put(3, b"b")


def test_acknowledgements_that_cannot_be_made_durable_say_so(served: Served, client: Client) -> None:
    """All of the round and the group; the puts beside them are answered."""
    told: list[bool] = []
    served.machine.on_poisoned = lambda: told.append(True) is None
    client.put(1, b"a")
    client.take(1)
    ack, beside = client.send(client.settling("ack", 1, 0)), client.send(put(2), [b"b"])
    with refusing(served.disk, "sync", "position"):
        served.end_round()
    with pytest.raises(StorageError):
        client.reply(ack)
    assert client.reply(beside) == Offsets(1, 1)
    assert told == [True]


def test_a_take_that_finishes_others_is_answered_behind_the_sync(served: Served, client: Client) -> None:
    """A loss of power takes none of them back."""
    client.ask(put(1), [b"a", b"b", b"c"])
    client.take(1, 2)
    finished = [(client.number(1), 0), (client.number(1), 1)]
    taking = client.send(Take(GROUP, client.number(2), 9, None, 0, finished))
    assert served.without_power().connect().take(1, 9) == [b"a", b"b", b"c"], "the round has not ended"
    served.end_round()
    client.reply(taking)
    assert client.payloads == [b"c"]
    assert served.without_power().connect().take(1, 9) == [b"c"]


def test_a_take_that_finds_nothing_has_finished_others_all_the_same(served: Served, client: Client) -> None:
    """It is parked behind that."""
    client.put(1, b"a")
    client.take(1)
    taking = client.send(Take(GROUP, client.number(2), 1, None, 60, [(client.number(1), 0)]))
    served.end_round()
    assert client.reply(taking) is None
    assert served.queue.group(GROUP).depth == 0
    client.disconnect()
    assert served.without_power().queue.group(GROUP).depth == 0


def test_a_take_takes_nothing_if_it_cannot_finish_others(served: Served, client: Client) -> None:
    """It hears why."""
    client.put(1, b"a", b"b")
    client.take(1)
    other = served.connect()
    for finished, error in [([(client.number(9), 1)], StaleReceiptError), ([(other.number(1), 0)], SessionLostError)]:
        with pytest.raises(error):
            client.ask(Take(GROUP, client.number(2), 1, None, 0, [(client.number(1), 0), *finished]))
    assert served.queue.group(GROUP).in_flight_count == 1
    assert other.take(1) == [b"b"]


def test_a_take_takes_nothing_if_what_it_finishes_cannot_be_made_durable(served: Served, client: Client) -> None:
    """Nor is it parked."""
    client.put(1, b"a", b"b")
    client.take(1)
    taking = client.send(Take(GROUP, client.number(2), 1, None, 60, [(client.number(1), 0)]))
    with refusing(served.disk, "sync", "position"):
        served.end_round()
    with pytest.raises(StorageError):
        client.reply(taking)
    served.end_round()
    assert client.reply(taking) is None


def test_a_take_whose_client_goes_in_its_round_takes_nothing(served: Served, client: Client) -> None:
    """What it finishes is finished."""
    client.put(1, b"a", b"b")
    client.take(1)
    client.send(Take(GROUP, client.number(2), 1, None, 60, [(client.number(1), 0)]))
    client.disconnect()
    served.end_round()
    side = served.queue.group(GROUP)
    assert (side.depth, side.in_flight_count) == (1, 0)


@pytest.mark.parametrize("when", ["settle", "append_requested"])
def test_a_bug_is_answered_too(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """A client without an answer would ask the same owner for ever."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(served.queue.write_side, when, fail)
        with pytest.raises(CommitUnknownError, match="ZeroDivisionError: a bug"):
            client.put(1, b"a")
    assert "a bug" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(served.queue, "take", fail)
        with pytest.raises(HoldfastError, match="a bug"):
            client.take(1)


def test_a_parked_request_may_be_refused_later(served: Served, client: Client) -> None:
    """Here the queue is shut down; a bound that was lowered refuses what can never fit."""
    waits = client.send(Take(GROUP, client.number(1), 1, None, None))
    served.end_round()
    served.queue.group(GROUP).shut_down(None, immediate=True)
    served.end_round()
    with pytest.raises(ShutDown):
        client.reply(waits)


def test_an_attach_is_compared_with_what_is_stored(served: Served, client: Client) -> None:
    """The first program that says a setting sets it."""
    client.ask(Attach(GROUP, {"maxsize": 5}, {}, False))
    with pytest.raises(HoldfastError, match="maxsize"):
        client.ask(Attach(GROUP, {"maxsize": 6}, {}, False))


def test_a_machine_without_parked_requests_waits_for_its_sweep(served: Served) -> None:
    """And a group without a name of a parked request is never asked."""
    machine: Machine = served.machine
    served.end_round()
    assert machine.seconds_left(served.clock.monotonic()) == SWEEP_SECONDS
    assert served.queue.seconds_until_more([]) == math.inf
