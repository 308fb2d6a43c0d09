"""The verbs of clients beside putting and taking."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Empty, FlushPolicy, GroupNotFoundError, TransactionNotFoundError, UsageError
from holdfast.queue.owner.verbs import perform_verb
from holdfast.queue.protocol.messages import Verb
from support.owners.served import GROUP, Client, Served


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


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "no verb None"),
        ({"verb": 7}, "no verb 7"),
        ({"verb": "explode"}, "configure, .*flush, .*purge, .*resolve"),
        ({"verb": "resolve", "x": 1}, "unknown field `x`"),
        ({"verb": "begin"}, "required field `nonce`"),
        ({"verb": "flush", "x": 1}, "flush knows no x"),
        ({"verb": "purge", "x": 1}, "purge knows no x"),
        ({"verb": "configure", "x": 1}, "configure knows no x"),
        ({"verb": "pause", "x": 1}, "pause knows no x"),
        ({"verb": "give_up", "x": 1}, "give_up knows no x"),
        ({"verb": "hand_over", "x": 1}, "hand_over knows no x"),
        ({"verb": "hand_over", "heir": 0}, "number of a session"),
        ({"verb": "left", "x": 1}, "left knows no x"),
        ({"verb": "counts", "x": 1}, "counts knows no x"),
        ({"verb": "give_up"}, "1 or more"),
        ({"verb": "give_up", "number": "1"}, "1 or more"),
    ],
)
def test_a_verb_that_is_not_known_changes_nothing(client: Client, fields: dict[str, Any], text: str) -> None:
    """Nor one with fields that are not."""
    with pytest.raises(UsageError, match=text):
        client.ask(Verb(GROUP, fields))
    assert client.take(1, 2) == [b"a", b"b"]


def test_a_group_is_paused_and_resumed(served: Served, client: Client) -> None:
    """A take that waits has the message when it is resumed."""
    client.do("pause", reason="a reason")
    with pytest.raises(Empty):
        client.take(1)
    client.do("resume")
    assert client.take(2) == [b"a"]


def test_a_purge_finishes_what_is_ready(client: Client) -> None:
    """What is in hand stays."""
    client.take(1)
    assert client.do("purge") == {"count": 1}
    client.settle("release", 1, 0)
    assert client.take(2) == [b"a"]


def test_dead_letters_are_handed_out_again(client: Client) -> None:
    """And a count says how many."""
    client.take(1)
    client.settle("reject", 1, 0)
    assert client.do("dead_retry", offsets=[0, 1]) == {"count": 1}
    assert client.take(2) == [b"a"]


def test_settings_are_changed_and_reset(served: Served, client: Client) -> None:
    """Of the group that is named, too."""
    client.do("configure", settings={"max_deliveries": 7})
    assert served.queue.group(GROUP).deliveries_max == 7
    client.do("configure", reset=["max_deliveries"])
    assert served.queue.group(GROUP).deliveries_max != 7


def test_a_flush_syncs_puts_and_acknowledgements() -> None:
    """Under a policy that syncs neither."""
    served = Served(flush=FlushPolicy.never())
    client = served.connect()
    client.put(1, b"a", b"b")
    client.take(1)
    client.settle("ack", 1, 0)
    client.do("flush", group="")
    assert served.without_power().connect().take(1, 2) == [b"b"]


def test_a_group_that_does_not_exist_is_not_made(client: Client) -> None:
    """By none of them."""
    for verb in ("pause", "resume", "purge"):
        with pytest.raises(GroupNotFoundError):
            client.do(verb, group="missing")


def test_the_log_names_the_process_that_has_asked(
    served: Served, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """As far as its session tells; verbs of this very process are its own."""
    caplog.set_level(logging.INFO, logger="holdfast")
    served.queue.pid_of = lambda session: 4711 if session == client.session else None
    prepared = {"verb": "abort_prepared", "id": "t"}
    for fields in ({"verb": "pause"}, {"verb": "configure", "settings": {"maxsize": 7}}, prepared):
        with suppress(TransactionNotFoundError):
            client.ask(Verb(GROUP, fields))
    perform_verb(served.queue, 0, GROUP, {"verb": "resume"})
    assert [each.pid for each in caplog.records if hasattr(each, "pid")] == [4711, 4711, 4711, os.getpid()]
