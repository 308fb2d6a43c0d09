"""The id of a prepared transaction is used again as soon as it is free: a crash does not take the one for the other."""

from collections.abc import Callable

import pytest

from holdfast import FlushPolicy, PersistentQueue
from support.builders.takes import taken
from support.builders.transactions import cut_power, kill, open_queue
from support.storages.simulated_storage import SimulatedStorage

POLICIES = (FlushPolicy.every_commit(), FlushPolicy.never())

End = Callable[..., SimulatedStorage]


def prepare(queue: PersistentQueue, payload: bytes) -> None:
    """Prepare a transaction of one message, always under the same id."""
    tx = queue.begin()
    tx.put(payload)
    tx.prepare("again")


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("end", [kill, cut_power])
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
def test_what_waits_under_the_id_of_a_decided_transaction_is_not_taken_for_that(
    end: End, policy: FlushPolicy, is_committed: bool
) -> None:
    """Recovery does again what was decided of the first one, and leaves the second one in doubt."""
    storage = SimulatedStorage()
    queue = open_queue(storage, flush=policy)
    prepare(queue, b"first")
    if is_committed:
        queue.commit_prepared("again")
    else:
        queue.abort_prepared("again")
    prepare(queue, b"second")
    with open_queue(end(storage, queue), flush=policy) as queue:
        assert [each.id for each in queue.prepared()] == ["again"]
        assert len(queue.commit_prepared("again")) == 1
        expected = [b"first", b"second"] if is_committed else [b"second"]
        assert taken(queue) == expected
