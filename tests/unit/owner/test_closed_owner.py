"""An owner that is closed: another process may own the queue, so it changes nothing, and answers nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holdfast import ClosedError
from holdfast.persistence.format.constants import NONCE
from holdfast.queue.options.log_start import LogStart
from holdfast.queue.owner.verbs import _VERBS
from holdfast.queue.protocol.messages import AnyRequest, Attach, Put, Take, Verb
from holdfast.queue.protocol.prepared_verbs import (
    PREPARED_VERBS,
    AbortJointly,
    AbortPrepared,
    AskOutcome,
    Begin,
    Collect,
    CommitJointly,
    CommitPrepared,
    End,
    Follow,
    HasSpace,
    Resolve,
    as_request,
)
from holdfast.queue.verbs.group_verbs import VERBS as GROUP_VERBS
from support.owners.machine_link import MachineOwner
from support.owners.served import GROUP, THREAD, Client, Served

Making = Callable[[Client], AnyRequest]


def nonce(number: int) -> bytes:
    """Return the nonce of a transaction."""
    return NONCE.pack(THREAD, number)


@pytest.fixture
def client() -> Client:
    """Return a client with deliveries in hand, a dead letter, two prepared transactions and a staged file."""
    client = Served(max_deliveries=5, backoff=[]).connect()
    client.put(1, b"a", b"b", b"c", b"d")
    for take in (1, 2, 3):
        client.take(take)
    client.settle("reject", 3, 2)
    client.ask(client.preparing(2, "acks", (2, 1), is_staged=False))
    client.staging(3, "puts", b"x").close()
    client.ask(client.preparing(3, "puts"))
    client.staging(4, "later", b"y").close()
    return client


VERBS: Mapping[str, Mapping[str, Any]] = {
    "flush": {},
    "purge": {},
    "configure": {"settings": {"maxsize": 5}},
    "give_up": {"number": 1 << 32 | 7},
    "recovery": {},
    "is_full": {},
    "hand_over": {"heir": 1},
    "close_group": {},
    "left": {},
    "counts": {},
    "seek": {"start": LogStart.of("earliest", 0).to_fields()},
    "compact": {"dry_run": False},
    "reserve": {"nonce": nonce(20).hex(), "prefix": "r", "count_max": 1, "bytes_max": 100, "end_offset": 99},
    "settle_reserved": {"id": "r", "nonce": nonce(20).hex(), "is_committed": True},
    "pause": {},
    "resume": {},
    "dead_retry": {"offsets": [2]},
    "dead_discard": {"offsets": [2]},
}

PREPARED = (
    HasSpace(1, 1),
    CommitPrepared("puts"),
    AbortPrepared("puts"),
    Resolve(),
    Begin(nonce(11)),
    End(nonce(11), is_followed=True),
    Follow("puts", nonce(3), is_committed=False),
    AskOutcome(nonce(3)),
    CommitJointly("app", 1, ["puts"], is_remembered=True),
    AbortJointly("app", 1),
    Collect(0, ""),
)

REQUESTS: dict[str, Making] = {
    "put": lambda client: Put(nonce(9), False, "", {}, 0),
    "commit": lambda client: client.committing(9, (1, 0)),
    "take": lambda client: Take(GROUP, client.number(7), 1, None, 0),
    **{
        verb: (lambda client, verb=verb: client.settling(verb, 1, 0, seconds=1))  # type: ignore[misc]
        for verb in ("ack", "nack", "reject", "park", "release", "extend")
    },
    "attach": lambda client: Attach(GROUP, {"maxsize": 77}, {}, False),
    "attach another group": lambda client: Attach("audit", {}, {}, True),
    "prepare puts": lambda client: client.preparing(4, "later", is_staged=False),
    "prepare staged puts": lambda client: client.preparing(4, "later"),
    "prepare acknowledgements": lambda client: client.preparing(5, "others", (1, 0), is_staged=False),
    **{
        f"verb {name}": (lambda client, name=name, fields=fields: Verb(GROUP, {"verb": name, **fields}))  # type: ignore[misc]
        for name, fields in VERBS.items()
    },
    **{
        f"verb {verb.__struct_config__.tag}": (lambda client, verb=verb: as_request(verb))  # type: ignore[misc]
        for verb in PREPARED
    },
}


def test_every_verb_is_among_the_requests() -> None:
    """So a new one is tried too."""
    tried = {*VERBS, *(str(each.__struct_config__.tag) for each in PREPARED)}
    assert tried == {*_VERBS, *PREPARED_VERBS, *GROUP_VERBS}


@pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS.keys())
def test_a_closed_owner_does_nothing(client: Client, make: Making) -> None:
    """A handle of its own process gets ClosedError, and asks the next owner."""
    request, served = make(client), client.served
    served.queue.close()
    before = served.disk.mutation_count
    with pytest.raises(ClosedError):
        MachineOwner(served).perform(client.session, request, [b"z"], lambda: True)
    assert served.disk.mutation_count == before
