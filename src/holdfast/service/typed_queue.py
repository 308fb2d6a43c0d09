"""``TypedQueue``: one queue of a service. Objects in, objects out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, Unpack

from holdfast.errors import UsageError
from holdfast.messages import CommonHeaders, Message
from holdfast.persistence.format.message_headers import encode_headers
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.inspect.browse import BrowsedMessage, State
from holdfast.queue.inspect.dead_letters import DeadLetter, DeadLetters
from holdfast.queue.inspect.groups import Groups
from holdfast.queue.inspect.log_reading import LogReading
from holdfast.queue.inspect.stats import QueueStats
from holdfast.queue.options.log_start import Start
from holdfast.queue.options.put_options import Put, PutOptions, Seconds
from holdfast.queue.options.settings import Settings
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.serializers.codec import Codec
from holdfast.serializers.headers import RESERVED_HEADERS
from holdfast.service.failover import FailoverSource
from holdfast.service.taking import TypedTaking

Body = TypeVar("Body")
Function = TypeVar("Function", bound=Callable[..., Any])


class TypedQueue(TypedTaking[Body]):
    """A queue of objects; made by :meth:`QueueService.queue`. Threads share it.

    Attributes
    ----------
    name : str
        Its name in the service.
    raw : PersistentQueue
        The queue of bytes below: other methods are there.
    codec : Codec
        Turns its objects into bytes and back.
    failover : FailoverSource
        The queues of dead nodes that are taken from too.
    """

    def __init__(self, name: str, raw: PersistentQueue, codec: Codec[Body], failover: FailoverSource) -> None:
        super().__init__(name, failover if failover.paths else raw, codec)
        self.raw = raw
        self.failover = failover
        self._encode = self._encode_anything if codec.takes_anything else codec.encode
        self._put_encoded = raw.put_encoded

    @property
    def path(self) -> Path:
        """The queue's directory."""
        return self.raw.path

    # -- Putting -----------------------------------------------------------------------------------------------------

    def put(self, body: Body, **options: Unpack[PutOptions]) -> int:
        """Append one object; return its offset.

        Parameters
        ----------
        body : object
            Of the queue's type.
        **options
            ``headers``, ``delay``, ``not_before``, ``priority``, ``ttl``, ``dedup_id``, ``order_key``, ``timeout``: as
            :meth:`PersistentQueue.put` has them.

        Raises
        ------
        EncodeError
            The object is not of the queue's type, or cannot be serialized; nothing was written.
        TypeError
            It is a Put, in a queue of any objects: that is the same as the options, and belongs into a batch.
        UsageError
            A header that is reserved for decoding the payload; nothing was written.
        HoldfastError, queue.Full
            As :meth:`PersistentQueue.put`.
        """
        payload, described = self._encode(body)
        if not options:
            return self._put_encoded(payload, described.encoded or encode_headers(described), None)
        headers = options.get("headers")
        options["headers"] = described if headers is None else with_headers(described, headers)
        return self.raw.put(payload, **options)

    def put_many(
        self,
        bodies: Iterable[Body | Put],
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> range:
        """Append one batch atomically; return its offsets in the order given.

        Parameters
        ----------
        bodies : iterable of objects, or of Put
            ``Put(order, delay=60)`` asks more for one of them.
        headers : mapping of str to str or None
            Of every message; a ``Put`` adds its own, which win.
        timeout : float or None, seconds
            As :meth:`PersistentQueue.put_many`.

        Raises
        ------
        EncodeError
            One of the objects does not fit; nothing was written.
        UsageError
            As :meth:`put`.
        HoldfastError, queue.Full
            As :meth:`PersistentQueue.put_many`.
        """
        return self.raw.put_many(self.encode_many(bodies, headers), timeout=timeout)

    def encode_many(self, bodies: Iterable[Body | Put], headers: Mapping[str, str] | None = None) -> list[Put]:
        """Return objects as the queue of bytes takes them into a batch; raises as :meth:`put`."""
        if isinstance(bodies, str | bytes | bytearray | memoryview | Mapping) or not isinstance(bodies, Iterable):
            raise TypeError(f"put_many takes several objects, not one {type(bodies).__name__}; put takes one")
        return [self._encode_put(body, headers or {}) for body in bodies]

    def _encode_put(self, body: Body | Put, common: Mapping[str, str]) -> Put:
        if isinstance(body, Put):
            payload, described = self._encode(body.payload)  # type: ignore[arg-type]  # of a Put for a queue of objects
            own = body.headers or {}
            headers = with_headers(described, {**common, **own}) if common or own else described
            return replace(body, payload=payload, headers=headers)
        payload, described = self._encode(body)
        return Put(payload, with_headers(described, common) if common else described)

    def _encode_anything(self, body: Body) -> tuple[bytes, CommonHeaders]:
        if isinstance(body, Put):  # which msgspec would take for an object like any other
            raise TypeError("a Put belongs into a batch: put_many takes it; put takes an object, and options by name")
        return self.codec.encode(body)

    def adopt(self, path: Path) -> None:
        """Take over the queue of a dead node until it is finished; as :meth:`QueueService.adopt`."""
        self.failover.adopt(path)
        self._take_from(self.failover)

    def consume(
        self, *, prefetch: int = 100, timeout: float | None = None, lease_seconds: Seconds | None = None
    ) -> Iterator[Delivery[Body]]:
        """Yield messages that the loop finishes by coming back for the next one; as :meth:`PersistentQueue.consume`.

        A message that cannot be decoded is skipped, as by :meth:`receive`. Messages of dead nodes (``also_read``) come
        by :meth:`consume_many`, and not here.
        """
        return self._decoded(self.raw.consume(prefetch=prefetch, timeout=timeout, lease_seconds=lease_seconds))

    # -- The queue itself --------------------------------------------------------------------------------------------

    def upcast(
        self, from_version: int, to_version: int, *, schema: type | str | None = None
    ) -> Callable[[Function], Function]:
        """Have a function turn the plain data of an older version into that of a newer one; as :meth:`Codec.upcast`.

        Examples
        --------
        >>> @orders.upcast(1, 2)  # doctest: +SKIP
        ... def add_currency(order: dict) -> dict:
        ...     return {**order, "currency": "EUR"}
        """
        return self.codec.upcast(from_version, to_version, schema=schema)

    def decode(self, message: Message | BrowsedMessage | DeadLetter) -> Body:
        """Return the object of a message that was shown and not taken; raises SerializationError."""
        return self.codec.decode(message.payload, message.headers)

    def peek(self, max_messages: int = 1) -> list[Message]:
        """Return messages that would come next, as bytes; :meth:`decode` returns their objects."""
        return self.raw.peek(max_messages)

    def browse(
        self,
        state: State = "ready",
        *,
        limit: int = 100,
        after: int | None = None,
        filter: str | None = None,  # as in PersistentQueue
    ) -> list[BrowsedMessage]:
        """Return messages of one state, as bytes; as :meth:`PersistentQueue.browse`."""
        return self.raw.browse(state, limit=limit, after=after, filter=filter)

    def read(
        self,
        start: Start = "earliest",
        stop: Start | None = None,
        *,
        filter: str | None = None,  # as in PersistentQueue
        follow: bool = False,
        timeout: float | None = None,
    ) -> LogReading:
        """Return an iterator over the messages of the log, as bytes; as :meth:`PersistentQueue.read`."""
        return self.raw.read(start, stop, filter=filter, follow=follow, timeout=timeout)

    @property
    def groups(self) -> Groups:
        """The consumer groups; as ``PersistentQueue.groups``."""
        return self.raw.groups

    @property
    def dead(self) -> DeadLetters:
        """The dead letters; as :attr:`PersistentQueue.dead`."""
        return self.raw.dead

    def pause(self, until: datetime | float | None = None, reason: str | None = None) -> None:
        """Hand out nothing; as :meth:`PersistentQueue.pause`."""
        self.raw.pause(until, reason)

    def resume(self) -> None:
        """Hand messages out again."""
        self.raw.resume()

    def purge(self) -> int:
        """Finish all messages that are ready now, unseen; return how many. As :meth:`PersistentQueue.purge`."""
        return self.raw.purge()

    @property
    def settings(self) -> Settings:
        """The settings of the queue and its group, as they count now; as :attr:`PersistentQueue.settings`."""
        return self.raw.settings

    def configure(self, *, reset: Iterable[str] = (), **settings: Unpack[Settings]) -> None:
        """Change settings of the queue and its group; as :meth:`PersistentQueue.configure`.

        What ``holdfast.toml`` sets is changed there.
        """
        self.raw.configure(reset=reset, **settings)

    def qsize(self) -> int:
        """Return how many messages can be taken now; as :meth:`PersistentQueue.qsize`, of the queue itself."""
        return self.raw.qsize()

    def stats(self) -> QueueStats:
        """Return figures about the queue; as :meth:`PersistentQueue.stats`."""
        return self.raw.stats()

    def close(self) -> None:
        """Close the queue, and those it has taken over; as :meth:`PersistentQueue.close`."""
        self.failover.close()

    def __repr__(self) -> str:
        return f"<TypedQueue {self.name} at {self.path}>"


def with_headers(described: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str]:
    """Return an application's headers together with those for decoding the payload."""
    taken = RESERVED_HEADERS.intersection(headers)
    if taken:
        raise UsageError(f"the header {min(taken)!r} says how the payload is to be read: choose another name")
    return {**described, **headers}
