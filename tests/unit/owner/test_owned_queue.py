"""What an owner has open: groups, settings that programs say, and verbs on deliveries."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast import (
    ClosedError,
    ConfigError,
    Empty,
    ForkedError,
    Full,
    GroupNotFoundError,
    LeaseExpiredError,
    StaleReceiptError,
    UsageError,
)
from holdfast.queue.engine import consumer_lag
from holdfast.queue.protocol.messages import AnyRequest, Settle, Take, Verb
from support.owners.served import GROUP, Client, Served, put
from support.storages.refusals import refusing


@pytest.fixture
def served() -> Served:
    """Return an owner."""
    return Served()


@pytest.fixture
def client(served: Served) -> Client:
    """Return a client that has put a and b."""
    client = served.connect()
    client.put(1, b"a", b"b")
    return client


def test_a_group_that_is_not_open_has_no_objects_to_part_with(served: Served, client: Client) -> None:
    """It was closed meanwhile, so nothing of it is in hand."""
    served.queue.part_with("audit", [])
    assert served.queue.groups == []
    assert client.take(1, 2) == [b"a", b"b"]


# -- Groups and settings ---------------------------------------------------------------------------------------------


def test_a_group_is_opened_when_it_is_first_named(served: Served, client: Client) -> None:
    """Before that, nothing holds its lock; the default one begins at the first take."""
    assert served.queue.groups == []
    client.take(1)
    assert served.queue.groups == [served.queue.group(GROUP)]


def test_a_program_that_makes_the_queue_makes_its_group(client: Client) -> None:
    """Any other needs one that is there."""
    with pytest.raises(GroupNotFoundError):
        client.attach("audit")
    client.attach("audit", is_new=True, max_deliveries=3)
    client.attach("audit")
    with pytest.raises(ConfigError, match="max_deliveries"):
        client.attach("audit", max_deliveries=4)
    client.put(2, b"c")
    assert client.take(1, 9, group="audit") == [b"a", b"b", b"c"]


def test_settings_that_a_program_says_first_count_at_once(served: Served, client: Client) -> None:
    """Of the queue, and of a group that is open."""
    client.take(1)
    client.attach(max_deliveries=1, maxsize=2)
    assert served.queue.group(GROUP).deliveries_max == 1
    assert served.queue.handle.capacity.maxsize == 2
    client.settle("nack", 1, 0, seconds=0)
    assert client.take(2, 9) == [b"b"]


def test_what_a_group_finishes_makes_space_at_once_though_its_files_were_looked_at(
    served: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor looks at the files of a group until it is opened."""
    monkeypatch.setattr(consumer_lag, "_LOOK_SECONDS", 1000)
    client.attach(maxsize=2)
    client.take(1)
    client = served.handed_over().connect()
    with pytest.raises(Full):
        client.put(2, b"c")
    client.take(1)
    client.settle("ack", 1, 1)
    client.put(3, b"c")


def test_a_closed_owner_opens_no_group(served: Served) -> None:
    """It would hold a lock for ever."""
    served.queue.close()
    with pytest.raises(ClosedError):
        served.queue.group(GROUP)


def test_a_forked_child_has_nothing(served: Served, client: Client) -> None:
    """The parent's files stay as they are."""
    client.take(1)
    side = served.queue.group(GROUP)
    served.queue.forget_after_fork()
    with pytest.raises(ForkedError):
        side.receive(1, 0)
    with pytest.raises(ForkedError):
        served.queue.write_side.put(b"x", b"", 0)


# -- Putting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_of",
    [lambda _: replace(put(3), headers={2: b"h"}), lambda client: replace(client.committing(3), headers={5: b"h"})],
    ids=["a put", "a commit"],
)
def test_headers_of_no_message_are_refused(
    served: Served, client: Client, request_of: Callable[[Client], AnyRequest]
) -> None:
    """The log would have a hole of their size."""
    end = served.queue.write_side.next_offset
    with pytest.raises(UsageError, match="a batch of 2 messages has none with the number"):
        client.ask(request_of(client), [b"c", b"d"])
    assert served.queue.write_side.next_offset == end
    client.put(4, b"e")


def test_a_put_without_messages_is_refused(client: Client) -> None:
    """No client of this version sends one."""
    with pytest.raises(UsageError, match="one message at least"):
        client.put(3)


# -- Deliveries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settle", "text"),
    [
        (Settle(GROUP, "explode", []), "no verb 'explode'"),
        (Settle(GROUP, "nack", [], 0.0), "nack needs a failure"),
        (Settle(GROUP, "reject", [], None, ("bad luck", "", "", "")), "no failure 'bad luck'"),
    ],
    ids=lambda value: getattr(value, "verb", ""),
)
def test_a_settling_verb_that_is_not_known_changes_nothing(client: Client, settle: Settle, text: str) -> None:
    """The delivery stays in hand."""
    client.take(1)
    with pytest.raises(UsageError, match=text):
        client.ask(replace_receipts(settle, [(client.number(1), 0)]))
    assert client.take(1) == [b"a"]


def replace_receipts(settle: Settle, receipts: list[tuple[int, int]]) -> Settle:
    """Return the same verb on other deliveries."""
    return Settle(settle.group, settle.verb, receipts, settle.seconds, settle.failure)


@pytest.mark.parametrize("verb", ["ack", "release", "nack"])
def test_a_verb_on_nothing_is_done(served: Served, verb: str) -> None:
    """Also in a group that has not begun."""
    client = served.connect()
    assert client.settle(verb, 1) is not None


@pytest.mark.parametrize("verb", ["nack", "reject", "park", "release", "ack"])
def test_a_verb_settles_several_deliveries_at_once(served: Served, client: Client, verb: str) -> None:
    """All of them."""
    client.take(1, 2)
    client.settle(verb, 1, 0, 1, seconds=60)
    assert served.queue.group(GROUP).in_flight_count == 0


def test_a_park_is_done_for_all_or_for_none(served: Served, client: Client) -> None:
    """A disk that refuses the second of two would leave half."""
    client.take(1, 2)
    with refusing(served.disk, "write_at"), pytest.raises(Exception, match=r"."):
        client.settle("park", 1, 0, 1)
    assert served.queue.group(GROUP).in_flight_count in (0, 2)


@pytest.mark.parametrize("verb", ["nack", "commit", "take"])
def test_what_was_taken_away_is_told_again_until_the_answer_has_arrived(
    served: Served, client: Client, verb: str
) -> None:
    """The next request on its connection says so. A connection that is lost may have lost the answer."""
    client.take(1)
    served.fake_clock.advance(10_000)

    def ask(client: Client) -> None:
        if verb == "take":
            client.ask(Take(GROUP, client.number(7), 1, None, 0.0, [(client.number(1), 0)]))
        elif verb == "commit":
            client.commit(2, b"c", acks=[(1, 0)])
        else:
            client.settle("nack", 1, 0)

    for _ in range(2):
        with pytest.raises(LeaseExpiredError):
            ask(client)
        client.disconnect()
        client = served.connect(client.session)
    with pytest.raises(LeaseExpiredError):
        ask(client)
    assert served.queue.group(GROUP).progress.taken_away != {}
    client.ask(Verb("", {"verb": "flush"}))
    assert served.queue.group(GROUP).progress.taken_away == {}


def test_what_a_verb_was_told_is_remembered_as_long_as_its_session(served: Served, client: Client) -> None:
    """No receipts are known of it."""
    client.take(1)
    served.fake_clock.advance(10_000)
    served.queue.group(GROUP).in_flight_count  # noqa: B018  # the lease ends
    served.queue.forget_taken_away(Verb(GROUP, {"verb": "flush"}), LeaseExpiredError("told", offset=0))
    with pytest.raises(LeaseExpiredError):
        client.settle("ack", 1, 0)


def test_a_lease_is_extended(served: Served, client: Client) -> None:
    """For as long as is asked."""
    client.take(1)
    client.settle("extend", 1, 0, seconds=20_000)
    served.fake_clock.advance(10_000)
    client.settle("ack", 1, 0)


# -- Transactions ----------------------------------------------------------------------------------------------------


def test_a_commit_whose_deliveries_are_gone_puts_nothing(served: Served, client: Client) -> None:
    """And one that fails leaves its deliveries in hand."""
    client.take(1)
    served.fake_clock.advance(10_000)
    with pytest.raises(LeaseExpiredError):
        client.commit(2, b"c", acks=[(1, 0)])
    client.take(2)
    with refusing(served.disk, "write_at"), pytest.raises(Exception, match=r"."):
        client.commit(3, b"c", acks=[(2, 0)])
    assert client.take(2) == [b"a"]
    assert served.queue.group(GROUP).depth == 2


def test_a_delivery_is_in_one_commit_only(client: Client) -> None:
    """The second one puts nothing: what comes of a message is put once."""
    client.take(1)
    client.commit(2, b"c", acks=[(1, 0)])
    with pytest.raises(StaleReceiptError, match="acknowledged"):
        client.commit(3, b"d", acks=[(1, 0)])
    assert client.take(2, 9) == [b"b", b"c"]


def test_a_take_behind_a_closed_read_side_says_so(served: Served, client: Client) -> None:
    """The owner ends."""
    served.queue.close()
    with pytest.raises((ClosedError, Empty)):
        client.take(1)


def test_an_acknowledgement_behind_a_closed_read_side_says_so(served: Served, client: Client) -> None:
    """It may still come from a thread of the owner's process."""
    client.put(1, b"a")
    side = served.queue.group(GROUP)
    (delivery,) = side.receive(1, 0, None)
    served.queue.close()
    with pytest.raises(ClosedError):
        side.ack_in_hand([(delivery.number, delivery.offset)])


# -- Settings that are changed ---------------------------------------------------------------------------------------


def test_settings_that_one_group_changes_are_kept_by_a_change_of_another(served: Served, client: Client) -> None:
    """Those of the queue, which both have."""
    client.attach("audit", is_new=True)
    client.take(1)
    client.take(1, group="audit")
    client.do("configure", settings={"dedup_window": 10, "maxsize": 50})
    client.do("configure", group="audit", settings={"data_file_bytes": 32 * 2**10})
    client.put(2, b"c", dedup_id="c")
    served.fake_clock.advance(11)
    client.put(3, b"d", dedup_id="c")
    assert served.queue.handle.capacity.maxsize == 50
    assert served.queue.write_side.next_offset == 4
    assert served.queue.handle.settings.values["data_file_bytes"] == 32 * 2**10
