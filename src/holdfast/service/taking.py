"""Taking messages from a typed queue. An undecodable message becomes a dead letter, and the next one comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from typing import Generic, Protocol, TypeVar, cast

from holdfast.errors import HoldfastError, LeaseExpiredError, SerializationError, ShutDown
from holdfast.persistence.format.message_headers import decode_headers
from holdfast.queue.consumer.draining import log_left
from holdfast.queue.dispatch.delivery import Delivery, DeliveryBatch, by_queue
from holdfast.queue.options.arguments import check_count, wait_for
from holdfast.queue.options.put_options import Seconds
from holdfast.serializers.codec import Codec
from holdfast.service.batches import Batches

Body = TypeVar("Body")


_DECODERS_MAX = 256
"""So many sets of headers are remembered with what decodes them. Most queues have one set; where each message has its
own, nothing is gained by more."""


class Source(Protocol):
    """A queue of bytes, or several that are taken from in turn."""

    def receive(self, *, timeout: float | None = None, lease_seconds: Seconds | None = None) -> Delivery:
        """As that of :class:`PersistentQueue`."""

    def receive_many(
        self, max_messages: int, *, timeout: float | None = None, lease_seconds: Seconds | None = None
    ) -> DeliveryBatch:
        """As that of :class:`PersistentQueue`."""


class TypedTaking(Generic[Body]):
    """The verbs of :class:`TypedQueue` that take.

    Parameters
    ----------
    name : str
        The queue's, for the log.
    source : Source
        Where messages come from.
    codec : Codec
        Decodes them.
    """

    def __init__(self, name: str, source: Source, codec: Codec[Body]) -> None:
        self.name = name
        self.codec = codec
        self._decoders: dict[bytes, Callable[[bytes], Body]] = {}
        self._take_from(source)

    def _take_from(self, source: Source) -> None:
        self._receive = source.receive
        self._receive_many = source.receive_many

    def receive(self, *, timeout: float | None = None, lease_seconds: Seconds | None = None) -> Delivery[Body]:
        """Take one message, to be acknowledged or given back: a context manager does either.

        Takes and raises what :meth:`PersistentQueue.receive` does. A message that cannot be decoded is skipped: it has
        become a dead letter, ``undecodable``.
        """
        deadline = None if not timeout else time.monotonic() + timeout
        while True:
            delivery: Delivery[Body] = self._receive(timeout=timeout, lease_seconds=lease_seconds)
            try:
                if self.decode_delivery(delivery):
                    return delivery
            except BaseException:
                _give_back(delivery)
                raise
            timeout = timeout if deadline is None else max(0.0, deadline - time.monotonic())

    def get(self, block: bool = True, timeout: float | None = None) -> Body:
        """Take one message, acknowledge it, and return its object: at most once, as :meth:`PersistentQueue.get`.

        A crash after this call loses a message that was taken and not yet processed: use :meth:`receive` if that
        matters. Waits and raises as that.
        """
        delivery = self.receive(timeout=wait_for(block, timeout))
        delivery.ack()
        return delivery.body

    def __iter__(self) -> Iterator[Body]:
        """Yield objects, each already acknowledged, until :meth:`get` raises ShutDown; log the messages left then."""
        while True:
            try:
                body = self.get()
            except ShutDown as error:
                log_left(self.name, error)
                return
            yield body

    def receive_many(
        self, max_messages: int, *, timeout: float | None = None, lease_seconds: Seconds | None = None
    ) -> DeliveryBatch[Body]:
        """Take from 1 to ``max_messages`` messages as soon as there is one; as :meth:`receive`."""
        deadline = None if not timeout else time.monotonic() + timeout
        while True:
            batch = self._receive_many(max_messages, timeout=timeout, lease_seconds=lease_seconds)
            try:
                decoded = [delivery for delivery in batch if self.decode_delivery(delivery)]
                if decoded:
                    return batch if len(decoded) == len(batch) else by_queue(decoded)[0]
            except BaseException:
                _give_back(batch)
                raise
            timeout = timeout if deadline is None else max(0.0, deadline - time.monotonic())

    def consume_many(
        self, max_messages: int, *, max_wait: float = 1.0, stop_when_empty: bool = False
    ) -> Iterator[DeliveryBatch[Body]]:
        """Yield batches for ever; each is acknowledged when the next one is asked for.

        Parameters
        ----------
        max_messages : int
            Largest batch.
        max_wait : float, seconds
            How long to wait for a batch to become full; then the messages so far come. To be shorter than the lease.
        stop_when_empty : bool
            End when nothing came in that time, instead of waiting on.

        Notes
        -----
        Messages that the loop leaves by ``break``, ``return`` or an exception have failed, unless they were
        settled before: ``with batch:`` in the loop settles it there. A redelivered message comes alone. The loop ends
        when the queue is shut down.
        """
        batches = Batches(self.name, self.receive_many, check_count(max_messages), wait_for(True, max_wait) or 0.0)
        return batches.run(stop_when_empty=stop_when_empty)

    def _decoded(self, loop: Iterator[Delivery]) -> Iterator[Delivery[Body]]:
        """Yield the deliveries of a loop that can be decoded; the end of this one is that of the loop."""
        with closing(cast(Generator[Delivery], loop)) as deliveries:
            for delivery in deliveries:
                try:
                    is_decoded = self.decode_delivery(delivery)
                except BaseException:
                    _give_back(delivery)
                    raise
                if is_decoded:
                    yield delivery

    def ack(self, deliveries: Iterable[Delivery[Body]]) -> None:
        """Finish messages of any takes in one step; as :meth:`DeliveryBatch.ack`."""
        for batch in by_queue(deliveries):
            batch.ack(batch)

    def decode_delivery(self, delivery: Delivery[Body]) -> bool:
        """Decode a taken message to its object; False if it has none, and is in hand no more."""
        try:
            decode = self._decoders.get(delivery.stored_headers) or self._find_decoder(delivery.stored_headers)
            delivery.body = decode(delivery.payload)
            return True
        except SerializationError as error:
            error.context["offset"] = delivery.offset
            try:
                delivery.park(error)
            except LeaseExpiredError:  # while it was decoded: it has been given back, which counts
                return False
            return False
        except MemoryError as error:  # counted: one that is too large each time must not block the head for ever
            with suppress(HoldfastError):
                delivery.nack(error=error)
            raise

    def _find_decoder(self, stored: bytes) -> Callable[[bytes], Body]:
        """Return what decodes messages with these headers; the same bytes mean the same headers."""
        decode = self.codec.decoder(decode_headers(stored))
        if len(self._decoders) >= _DECODERS_MAX:
            self._decoders.clear()
        self._decoders[stored] = decode
        return decode


def _give_back(taken: Delivery | DeliveryBatch) -> None:
    """Give messages back, uncounted, where decoding them is cut short: else they wait for the end of their lease."""
    with suppress(HoldfastError):
        taken.release()
