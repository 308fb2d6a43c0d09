"""The requests of a client and the replies of an owner: the bodies of frames, as MessagePack. docs/protocol.md. Pure.

Payloads of messages are not in here: they travel behind the body as they are, in the order in which the body counts
them. Every field is checked by its type when it is decoded; what a field means is checked by the owner.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from holdfast.errors import HoldfastError

VERSION = 1
"""Of the requests and replies: an owner refuses a hello of another one."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
DeliveryNumber = Annotated[int, msgspec.Meta(ge=1)]
SessionNumber = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Nonce = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Thread = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
Name = Annotated[str, msgspec.Meta(max_length=100)]
Receipt = tuple[DeliveryNumber, Count]
"""A delivery: its number, and the offset of the message."""

OtherPart = tuple[str, Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)], Name]
"""A part of another queue: its path as seen from here, its id, and the group; empty: its puts."""

Place = tuple[Count, Count, Count]
"""A message in the log: sequence of its data file, start and end of its frame."""


class Request(msgspec.Struct, array_like=True, tag=True):
    """Base of what a client asks."""


class Hello(Request):
    """The first request of each connection: names the session, and shows that the client can read the owner's note.

    Attributes
    ----------
    version : int
        :data:`VERSION` of the client.
    epoch : bytes, length 16
        That of the owner's lock.
    session : int
        The number of the session; 0: it has none yet.
    making : str
        The name of its file; empty: it has no file.
    """

    version: int
    epoch: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    session: SessionNumber
    making: Name


class Resume(Request):
    """Follows the hello of a session to a successor: what it has in hand, so that the rest comes again at once."""

    group: Name
    numbers: list[DeliveryNumber]


class Attach(Request):
    """Opens a handle on the queue: its owner compares the settings of the program with those that are stored.

    Attributes
    ----------
    group : str
        The consumer group of the handle.
    settings, configured : dict
        What the program asks for and what an operator has chosen, as they are stored.
    is_new : bool
        Whether the program has just made the queue: its group is made too.
    """

    group: Name
    settings: dict[str, Any]
    configured: dict[str, Any]
    is_new: bool


class Put(Request):
    """Appends the payloads of this frame, or of a staged file, as one batch.

    Attributes
    ----------
    nonce : bytes, length 16
        Names this request: sent again, it has the same answer.
    synced : bool
        Whether the answer waits for a sync under any flush policy.
    dedup_id : str
        Of a single message; empty: it has none.
    headers : dict of int to bytes
        Encoded headers by place in the batch; those of other messages are empty.
    timeout : float or None, seconds
        How long to wait for space in a bounded queue; None: for ever.
    is_staged : bool
        Whether payloads and headers are in the file that the client has staged under the nonce: those of a request that
        is too large for a frame.
    """

    nonce: Nonce
    synced: bool
    dedup_id: Annotated[str, msgspec.Meta(max_length=255)]
    headers: dict[Count, bytes]
    timeout: Seconds | None
    is_staged: bool = False


class Commit(Request):
    """Commits a transaction: appends the payloads of this frame and finishes deliveries, as one.

    Attributes
    ----------
    nonce, headers, timeout, is_staged
        As for :class:`Put`.
    id : str
        Of the transaction.
    group : str
        The group of ``receipts``.
    receipts : list of (int, int)
        What it acknowledges.
    participants : list of (str, bytes, str)
        What other queues have prepared and follow: path as seen from this queue, id of the queue, group. With any, the
        nonce has to be one that the session has begun here, and no space is waited for.
    """

    nonce: Nonce
    id: Name
    headers: dict[Count, bytes]
    timeout: Seconds | None
    group: Name
    receipts: list[Receipt]
    is_staged: bool = False
    participants: list[OtherPart] = []  # msgspec copies it


class Prepare(Request):
    """Prepares a transaction: the payloads of this frame, or a staged file, and what it acknowledges wait as one.

    Attributes
    ----------
    nonce : bytes, length 16
        Of the transaction: sent again, it was done before.
    id : str
        What it is decided by.
    headers
        As for :class:`Put`.
    group, receipts
        As for :class:`Commit`. Without payloads, receipts and a file, a transaction of nothing is prepared.
    is_staged : bool
        Whether the puts are in the file that the client has staged under the nonce, with the commit record in which
        they wait. They are if they are too large for a frame, or if a joint commit or another queue decides them.
    coordinator : (str, bytes, str) or None
        The other queue whose log decides; None: the caller does, by id.
    """

    nonce: Nonce
    id: Name
    headers: dict[Count, bytes]
    group: Name
    receipts: list[Receipt]
    is_staged: bool = False
    coordinator: OtherPart | None = None


class Arrived(Request):
    """The answers to all requests of a thread up to this count have arrived: they may be forgotten."""

    thread: Thread
    count: Count


class Take(Request):
    """Takes messages and leases them; before that, finishes others.

    Attributes
    ----------
    group : str
        The consumer group.
    number : int
        The delivery number of this take: sent again, it has the same messages.
    count_max : int
        How many at most.
    lease : float or None, seconds
        None: as the group has it.
    timeout : float or None, seconds
        How long to wait for the first one; None: for ever.
    finished : list of (int, int)
        Deliveries that it acknowledges first: all of them, or nothing is acknowledged and nothing taken. Any answer but
        an error says that they are finished; Empty says it too.
    """

    group: Name
    number: DeliveryNumber
    count_max: Positive
    lease: Seconds | None
    timeout: Seconds | None
    finished: list[Receipt] = []  # msgspec copies it


class Settle(Request):
    """Ends deliveries, or extends their leases.

    Attributes
    ----------
    group : str
        The consumer group.
    verb : str
        "ack", "nack", "reject", "park", "release" or "extend".
    receipts : list of (int, int)
        The deliveries; all of them, or none is settled.
    seconds : float or None
        The delay of a nack, or the new length of a lease; None: as the group has it.
    failure : tuple of str or None
        Why, as ``Failure`` has it: reason, detail, exception, traceback.
    """

    group: Name
    verb: str
    receipts: list[Receipt]
    seconds: Seconds | None = None
    failure: tuple[str, str, str, str] | None = None


class Verb(Request):
    """Has a verb on the queue or a group done; ``fields`` has its name under "verb"."""

    group: Name
    fields: dict[str, Any]


class Reply(msgspec.Struct, array_like=True, tag=True):
    """Base of what an owner answers."""


class Welcome(Reply):
    """Answers :class:`Hello`.

    Attributes
    ----------
    session : int
        The number of the session from now on.
    queue_id : bytes
        The queue that is served.
    """

    session: SessionNumber
    queue_id: bytes


class Offsets(Reply):
    """Answers :class:`Put` and :class:`Commit`: offset of the first message, and how many there are."""

    first: Count
    count: Count


class Taken(Reply):
    """Answers :class:`Take`; the payloads follow in the same order.

    Attributes
    ----------
    messages : list of (int, int, bytes, int)
        Offset, time of the put in nanoseconds, encoded headers and delivery count of each.
    lease_seconds : float
        How long they are leased.
    deliveries_max : int
        After so many deliveries a failure makes a dead letter; 0: never.
    places : dict of int to (int, int, int)
        Large messages by their number in ``messages``. Their payloads are empty: the client reads them from the log.
    """

    messages: list[tuple[Count, int, bytes, Count]]
    lease_seconds: float
    deliveries_max: Count
    places: dict[Count, Place] = {}  # msgspec copies it


class Done(Reply):
    """Answers everything else: the result of a verb."""

    result: dict[str, Any]


class Refused(Reply):
    """An error, as ``error_text`` writes it."""

    text: str


AnyRequest = Hello | Resume | Attach | Put | Commit | Prepare | Arrived | Take | Settle | Verb
AnyReply = Welcome | Offsets | Taken | Done | Refused
Message = TypeVar("Message", bound=msgspec.Struct)

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[AnyRequest] = msgspec.msgpack.Decoder(AnyRequest)
_replies: msgspec.msgpack.Decoder[AnyReply] = msgspec.msgpack.Decoder(AnyReply)


def encode(message: object) -> bytes:
    """Return a message as the body of a frame. Lone surrogates, as exceptions may have them, are written as escapes."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        return _encoder.encode(_as_utf8(msgspec.to_builtins(message, builtin_types=(bytes,))))


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_as_utf8(name): _as_utf8(each) for name, each in value.items()}
    return [_as_utf8(each) for each in value] if isinstance(value, list | tuple) else value


class UnreadableError(HoldfastError):
    """The body of a frame is no request, or no reply."""

    code = "unreadable"


class SessionLostError(HoldfastError):
    """The owner has found the session dead: what it had in hand was given back."""

    code = "session_lost"


def decode_request(body: bytes) -> AnyRequest:
    """Return the request of a body; raises UnreadableError."""
    try:
        return _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(f"no request of this version: {error}") from None


def decode_reply(body: bytes) -> AnyReply:
    """Return the reply of a body; raises UnreadableError."""
    try:
        return _replies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(f"no reply of this version: {error}") from None
