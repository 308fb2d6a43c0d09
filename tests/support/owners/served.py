"""An owner without sockets and threads: its machine on a simulated disk, and clients that send it encoded frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.clock import Clock
from holdfast.errors import Empty, HoldfastError
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.format.commit_record import CommitRecord, Participant
from holdfast.persistence.format.constants import NONCE, SESSION_SHIFT
from holdfast.persistence.outcomes.redo import OWN
from holdfast.persistence.segment.batch_file import BatchFileWriter
from holdfast.persistence.segment.staged_file import stage
from holdfast.queue.engine.handle_settings import HandleSettings
from holdfast.queue.options.put_options import encode_put
from holdfast.queue.options.queue_options import Options
from holdfast.queue.options.settings import GROUP_SETTINGS, QUEUE_SETTINGS, checked, stored
from holdfast.queue.owner.machine import Machine
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.protocol.error_text import from_text
from holdfast.queue.protocol.frames import REQUEST, FrameDecoder, encode_frame
from holdfast.queue.protocol.messages import (
    VERSION,
    AnyReply,
    AnyRequest,
    Attach,
    Commit,
    Hello,
    OtherPart,
    Prepare,
    Put,
    Refused,
    Settle,
    Take,
    Taken,
    Verb,
    decode_reply,
    encode,
)
from support.builders.clocks import FakeClock
from support.builders.jobs import ROOT
from support.storages.simulated_storage import SimulatedStorage

EPOCH = b"e" * 16
THREAD = b"a thread"
FAILED = ("rejected", "it cannot be done", "", "")
GROUP = "default"
BOUNDS = {"maxsize", "max_bytes"}


class FakeSessions:
    """The sessions of a directory, as a test says. Those without a name of a file live until they are removed."""

    def __init__(self, *living: int, numbers: Iterator[int] | None = None) -> None:
        self.living = set(living)
        self._known = set(living)
        self._numbers = numbers or count(1)

    def admit(self, making: str) -> int:
        number = next(each for each in self._numbers if each not in self._known)
        self.living.add(number)
        self._known.add(number)
        return number

    def is_alive(self, number: int) -> bool:
        return number in self.living

    def sweep(self) -> list[int]:
        found = self._known - self.living
        self._known &= self.living
        return sorted(found)

    def remove(self, number: int) -> None:
        self.living.discard(number)
        self._known.discard(number)


class Served:
    """An owner: everything of it but locks, sockets and threads.

    Parameters
    ----------
    storage, clock, sessions
        What outlives it.
    path : Path
        The queue.
    **settings
        What a program asks for.
    """

    def __init__(
        self,
        storage: Storage | None = None,
        clock: Clock | None = None,
        sessions: FakeSessions | None = None,
        path: Path = ROOT,
        **settings: Any,
    ) -> None:
        self.storage = storage or SimulatedStorage()
        self.clock = clock or FakeClock()
        self.sessions = sessions or FakeSessions()
        made_with = checked({"data_file_bytes": 16 * 2**10, **settings})
        options = Options("shared", GROUP, made_with)
        open_directory(self.storage, path, create=True, settings=HandleSettings(path, options).of_new_queue)
        self.queue = OwnedQueue(self.storage, self.clock, path, options, self.sessions.is_alive)
        _begun.add(self)
        asked = checked({name: value for name, value in settings.items() if name in GROUP_SETTINGS | BOUNDS})
        self.queue.attach(GROUP, stored(asked, QUEUE_SETTINGS | GROUP_SETTINGS), {})
        self.machine = Machine(self.queue, self.sessions, EPOCH)
        self._connections = count(1)
        self._replies: dict[tuple[int, int], tuple[AnyReply, list[bytes]]] = {}

    def close(self) -> None:
        """Close it; one that was killed has a disk of its own, and threads that this ends."""
        _begun.discard(self)
        self.queue.close()

    def connect(self, session: int = 0) -> Client:
        """Connect a client; 0: it begins a session."""
        client = Client(self, next(self._connections))
        self.machine.connected(client.connection)
        welcome = client.ask(Hello(VERSION, EPOCH, session, "" if session else "0123456789abcdef.making"))
        client.session = welcome.session  # type: ignore[union-attr]  # an error is raised
        return client

    def step(self, connection: int, request_id: int, request: AnyRequest, payloads: Sequence[bytes] = ()) -> None:
        """Hand a request to the machine, through its encoding."""
        decoder = FrameDecoder()
        decoder.feed(b"".join(encode_frame(REQUEST, request_id, encode(request), payloads)))
        frame = decoder.next()
        assert frame is not None
        self.machine.step(connection, frame, self.clock.monotonic())

    def end_round(self) -> None:
        """End a round; keep the answers until they are read."""
        for connection, buffers in self.machine.end_round(self.clock.monotonic()):
            decoder = FrameDecoder()
            decoder.feed(b"".join(buffers))
            frame = decoder.next()
            assert frame is not None
            assert (connection, frame.request_id) not in self._replies, "answered twice"
            self._replies[connection, frame.request_id] = decode_reply(frame.body), frame.payloads

    def reply(self, connection: int, request_id: int) -> tuple[AnyReply, list[bytes]] | None:
        """Return the answer to a request and its payloads, once; None if there is none yet."""
        return self._replies.pop((connection, request_id), None)

    def sweep(self) -> None:
        """Let time pass until sessions are tested, and test them."""
        self.fake_clock.advance(1)
        self.end_round()

    @property
    def fake_clock(self) -> FakeClock:
        """The clock, which is a fake one."""
        assert isinstance(self.clock, FakeClock)
        return self.clock

    @property
    def disk(self) -> SimulatedStorage:
        """The storage, which is simulated."""
        assert isinstance(self.storage, SimulatedStorage)
        return self.storage

    # -- Succession --------------------------------------------------------------------------------------------------

    def killed(self) -> Served:
        """Return a successor of this owner, which is killed now; sessions live on."""
        return Served(self.disk.crash_keeping_all(), self.clock, self.sessions)

    def without_power(self) -> Served:
        """Return the first owner behind a loss of power, which takes all that was not synced; no session lives."""
        return Served(self.disk.crash_dropping_unsynced(), self.clock)

    def handed_over(self) -> Served:
        """Return a successor of this owner, which closes; sessions live on."""
        self.queue.close()
        return Served(self.storage, self.clock, self.sessions)


_begun: set[Served] = set()


def close_all() -> None:
    """Close all owners, also those that were killed: their queues have threads."""
    for each in list(_begun):
        with suppress(HoldfastError):
            each.close()


class Client:
    """A connection to the owner; requests are counted from 1.

    Attributes
    ----------
    served : Served
        The owner.
    connection, session : int
        Its number, and that of its session.
    """

    def __init__(self, served: Served, connection: int) -> None:
        self.served = served
        self.connection = connection
        self.session = 0
        self._ids = count(1)
        self.payloads: list[bytes] = []

    def number(self, take: int) -> int:
        """Return the delivery number of a take of this session."""
        return self.session << SESSION_SHIFT | take

    def send(self, request: AnyRequest, payloads: Sequence[bytes] = ()) -> int:
        """Send a request, and return its id; its round does not end yet."""
        request_id = next(self._ids)
        self.served.step(self.connection, request_id, request, payloads)
        return request_id

    def reply(self, request_id: int) -> AnyReply | None:
        """Return an answer, once, and keep its payloads; None if there is none yet. Raises what it refuses with."""
        found = self.served.reply(self.connection, request_id)
        if found is None:
            return None
        reply, self.payloads = found
        if isinstance(reply, Refused):
            raise from_text(reply.text)
        return reply

    def ask(self, request: AnyRequest, payloads: Sequence[bytes] = ()) -> AnyReply:
        """Have a request done in a round of its own; raises what it is refused with."""
        request_id = self.send(request, payloads)
        self.served.end_round()
        reply = self.reply(request_id)
        assert reply is not None, "it has to wait"
        return reply

    def disconnect(self) -> None:
        """Close the connection."""
        self.served.machine.disconnected(self.connection, self.served.clock.monotonic())

    # -- Requests ----------------------------------------------------------------------------------------------------

    def attach(self, group: str = GROUP, *, is_new: bool = False, **settings: Any) -> AnyReply:
        """Open a handle."""
        return self.ask(Attach(group, settings, {}, is_new))

    def put(self, number: int, *payloads: bytes, timeout: float | None = 0, dedup_id: str = "") -> AnyReply:
        """Put a batch, as the request of this number of a thread."""
        return self.ask(put(number, timeout=timeout, dedup_id=dedup_id), payloads)

    def take(self, take: int, count_max: int = 1, *, group: str = GROUP, timeout: float | None = 0) -> list[bytes]:
        """Take messages, as the take of this number of the session; return their payloads."""
        reply = self.ask(Take(group, self.number(take), count_max, None, timeout))
        assert isinstance(reply, Taken)
        return self.payloads

    def settle(self, verb: str, take: int, *offsets: int, group: str = GROUP, seconds: float | None = None) -> AnyReply:
        """Settle deliveries of a take."""
        return self.ask(self.settling(verb, take, *offsets, group=group, seconds=seconds))

    def settling(self, verb: str, take: int, *offsets: int, group: str = GROUP, seconds: float | None = None) -> Settle:
        """Return the request of a settling verb."""
        failure = FAILED if verb in ("nack", "reject", "park") else None
        return Settle(group, verb, [(self.number(take), offset) for offset in offsets], seconds, failure)

    def commit(
        self, number: int, *payloads: bytes, acks: Sequence[tuple[int, int]] = (), timeout: float | None = 0
    ) -> AnyReply:
        """Commit puts and acknowledgements: each a take of the session, and an offset."""
        return self.ask(self.committing(number, *acks, timeout=timeout), payloads)

    def committing(self, number: int, *acks: tuple[int, int], timeout: float | None = 0) -> Commit:
        """Return the request of a commit."""
        receipts = [(self.number(take), offset) for take, offset in acks]
        return Commit(NONCE.pack(THREAD, number), f"transaction {number}", {}, timeout, GROUP, receipts)

    def staging(self, number: int, transaction_id: str, *payloads: bytes, **fields: Any) -> BatchFileWriter:
        """Stage the puts of the transaction of this number, as a client does; ``fields`` are those of its record."""
        handle = self.served.queue.handle
        self.served.storage.make_directory(handle.directory.prepared)
        nonce = NONCE.pack(THREAD, number)
        writer = stage(self.served.storage, handle.directory, nonce, handle.queue_id)
        writer.add_many(payloads, {}, 1)
        waiting = f"prepared/{transaction_id}.batch"
        writer.finish(CommitRecord(transaction_id, nonce, len(payloads), 1, waiting_file=waiting, **fields))
        writer.sync()
        return writer

    def preparing(
        self,
        number: int,
        transaction_id: str,
        *acks: tuple[int, int],
        is_staged: bool = True,
        group: str = GROUP,
        coordinator: OtherPart | None = None,
    ) -> Prepare:
        """Return the request to prepare the transaction of this number: acks are each a take, and an offset."""
        receipts = [(self.number(take), offset) for take, offset in acks]
        return Prepare(NONCE.pack(THREAD, number), transaction_id, {}, group, receipts, is_staged, coordinator)

    def voter(self, group: str = GROUP) -> Participant:
        """Return the vote of a group, as the record of a transaction names it that acknowledges."""
        return Participant(OWN, self.served.queue.handle.queue_id, group)

    def other(self, part: tuple[str, bytes, str]) -> Participant:
        """Return another queue, as the record of a transaction names it."""
        return Participant(*part)

    def do(self, verb: str, *, group: str = GROUP, **fields: Any) -> dict[str, Any]:
        """Have a verb done; return its result."""
        return self.ask(Verb(group, {"verb": verb, **fields})).result  # type: ignore[union-attr]  # an error is raised


def put(number: int, *, timeout: float | None = 0, dedup_id: str = "", synced: bool = False) -> Put:
    """Return the request of a put: the one of this number of a thread."""
    headers = {0: encode_put(FakeClock(), None, dedup_id=dedup_id)} if dedup_id else {}
    return Put(NONCE.pack(THREAD, number), synced, dedup_id, headers, timeout)


def left(client: Client) -> list[bytes]:
    """Return what can be taken now, one by one."""
    other, found = client.served.connect(), []
    try:
        for number in range(1, 100):
            found += other.take(number)
    except Empty:
        return found
    raise AssertionError("more than there is")
