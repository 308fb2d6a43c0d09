"""What a client tells and asks if the owner dies between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.groups.group_files import DEFAULT_GROUP
from holdfast.persistence.ownership.owner_lock import read_owner_note
from holdfast.persistence.ownership.sessions import SessionFile, Sessions
from holdfast.queue.client.large_payloads import LargePayloads
from holdfast.queue.client.link import Answer, LinkLostError, SocketLink
from holdfast.queue.client.membership import Membership
from holdfast.queue.client.owner_finder import OwnerFinder
from holdfast.queue.client.shared_consumer import SharedConsumer
from holdfast.queue.client.upkeep import Upkeep
from holdfast.queue.options.queue_options import Options
from holdfast.queue.protocol.messages import AnyRequest, Arrived, Done, Settle, Take, Taken
from support.builders.clocks import FakeClock
from support.owners.machine_link import machine_links
from support.storages.simulated_storage import SimulatedStorage

NUMBER = 7 << 32 | 1


class _Asked(Membership):
    """Answers takes and verbs, and asks the consumer what it has in hand, as an owner does that begins meanwhile."""

    def __init__(self) -> None:
        self._link = None
        self.consumer: SharedConsumer | None = None
        self.told: list[list[int]] = []

    def next_number(self) -> int:
        return NUMBER

    def here(self, do: object) -> None:
        """Another process owns."""

    def ask(
        self,
        request: AnyRequest,
        payloads: Sequence[bytes] = (),
        seconds: float | None = 0.0,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Answer:
        if isinstance(request, Take):
            return Answer(Taken([(0, 0, b"", 1)], 30.0, 0), [b"a"], is_kept=True)
        if isinstance(request, Settle):
            assert self.consumer is not None
            self.told.append(self.consumer.numbers_in_hand())
        return Answer(Done({}), (), is_kept=True)


def _consumer(membership: _Asked, upkeep: Upkeep) -> SharedConsumer:
    """Return a consumer that has nothing to read from the log."""
    none = LargePayloads(None)  # type: ignore[arg-type]
    return SharedConsumer(membership, upkeep, "default", SystemClock(), None, none, lambda: 30.0)


@pytest.mark.parametrize("verb", ["ack", "nack", "release"])
def test_a_delivery_that_is_being_settled_is_still_in_hand(verb: str) -> None:
    """Else an owner that begins meanwhile would give it back, and refuse the verb that is sent again."""
    membership = _Asked()
    upkeep = Upkeep(membership)
    membership.consumer = consumer = _consumer(membership, upkeep)
    (delivery,) = consumer.receive(1, 0.0)
    getattr(consumer, verb)([delivery])
    upkeep.stop()
    assert membership.told == [[NUMBER]]
    assert consumer.numbers_in_hand() == []


@pytest.mark.parametrize("lives", [True, False])
def test_a_session_that_a_dead_owner_has_named_begins_anew(tmp_path: Path, *, lives: bool) -> None:
    """That owner renamed the file, and died before it told the number: to the next owner, or to the one that it is."""
    path = tmp_path / "q"
    with PersistentQueue(path, mode="shared") as owner:
        finder = OwnerFinder(OsStorage(), SystemClock(), path, Options("shared", DEFAULT_GROUP, can_own=not lives))
        Sessions(OsStorage(), path).admit(finder._session.making)
        if not lives:
            owner.close()
        link = finder.find()
        try:
            assert link is not None
            assert finder._session.number
        finally:
            if link is not None:
                link.close()
            finder.leave()


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[tuple[SocketLink, SessionFile]]:
    """A link that has greeted an owner, and the session that it greets for."""
    with PersistentQueue(tmp_path / "q", mode="shared"):
        note = read_owner_note(OsStorage(), tmp_path / "q")
        assert note is not None
        assert note.socket is not None
        session = SessionFile.begin(OsStorage(), tmp_path / "q")
        link = SocketLink(note.socket, note.epoch)
        session.named(link.greet(0, session.making).session)
        try:
            yield link, session
        finally:
            link.close()
            session.end()


def _asked_on_a_new_connection(link: SocketLink) -> LinkLostError:
    """Ask while no connection is idle; return what that raises."""
    idle = link._connections.take()
    assert idle is not None
    idle.close()
    with pytest.raises(LinkLostError) as raised:
        link.ask(Arrived(bytes(8), 0), (), 0.0)
    return raised.value


def test_a_thread_that_meets_the_next_owner_at_the_old_path_has_lost_its_link(
    linked: tuple[SocketLink, SessionFile],
) -> None:
    """The socket has the same name; the next owner refuses the epoch, and nothing was done."""
    link, _ = linked
    link._hello.epoch = bytes(16)
    assert not _asked_on_a_new_connection(link).was_sent


def test_a_thread_whose_session_was_found_dead_has_lost_its_link(linked: tuple[SocketLink, SessionFile]) -> None:
    """The membership then begins another session; the caller is not told."""
    link, session = linked
    session.end()
    assert not _asked_on_a_new_connection(link).was_sent


@pytest.mark.parametrize("are_own", [True, False], ids=["in this process", "in another one"])
@pytest.mark.parametrize("end", ["close", "shut down"])
def test_what_a_handle_gives_back_as_it_ends_does_not_count_whichever_owner_hears_of_it(
    are_own: bool, end: str
) -> None:
    """Another owner has begun since the message was taken."""
    storage, clock = SimulatedStorage(), FakeClock()
    with machine_links() as machines:
        machines.are_own = are_own
        queue, other = (PersistentQueue("/q", mode="shared", storage=storage, clock=clock) for _ in range(2))
        queue.put(b"a")
        queue.receive(timeout=0)
        machines.succeed(are_own=are_own)
        if end == "close":
            queue.close()
        else:
            queue.shutdown(immediate=True)
        assert other.receive(timeout=0).delivery_count == 1
        other.close()
        queue.close()
