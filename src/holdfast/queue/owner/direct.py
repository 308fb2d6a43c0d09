"""What a handle in the owner's own process does without a request: it calls the owner's sides, in its own thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from holdfast.errors import NOTHING_CAME, Empty, LeaseExpiredError
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.protocol.messages import Receipt, Settle

Found = TypeVar("Found", Delivery, bytes)


def put(queue: OwnedQueue, payload: bytes, headers: bytes, dedup_id: str, timeout: float | None, synced: bool) -> int:
    """Append one message; return its offset, or that of the message with its id.

    ``synced``: on the disk under any policy. Raises as ``WriteSide.put``.
    """
    side = queue.write_side
    offset = side.put_once(payload, headers, dedup_id, timeout) if dedup_id else side.put(payload, headers, timeout)
    if synced:
        side.confirm(offset + 1, synced=True)
    return offset


def put_many(
    queue: OwnedQueue, payloads: Sequence[bytes], headers: Mapping[int, bytes], timeout: float | None, synced: bool
) -> range:
    """Append a batch as one commit; return its offsets. As :func:`put`."""
    offsets = queue.write_side.put_many(payloads, timeout, headers)
    if synced:
        queue.write_side.confirm(offsets.stop, synced=True)
    return offsets


def fetch(
    queue: OwnedQueue, group: str, count_max: int, timeout: float | None, is_over: Callable[[], bool]
) -> list[bytes]:
    """Take messages and finish them in the same step; return their payloads.

    No client in another process may ask so: if the answer is lost on the way, the messages are too.

    Raises
    ------
    queue.Empty
        Nothing has come within ``timeout`` seconds, or before ``is_over()`` at a wake.
    HoldfastError
        As ``ReadSide.get_many``.
    """
    side = queue.group(group)
    try:
        return side.fetch(count_max, is_over)
    except Empty:
        return wait_and(lambda: side.fetch(count_max, is_over), side, timeout, is_over)


def take(
    queue: OwnedQueue,
    group: str,
    finished: Sequence[Receipt],
    number: int,
    count_max: int,
    lease_seconds: float | None,
    timeout: float | None,
    is_over: Callable[[], bool],
) -> tuple[list[Delivery], int]:
    """Finish deliveries, and take others under a delivery number; return those of the owner, at least one.

    Their records and counts are the messages, and they are not to be settled. The second value is as of ``Taken``.
    Raises as :func:`fetch` and :func:`ack`.
    """
    side = queue.group(group)
    if finished:
        ack(queue, group, finished)
    try:
        found = side.receive(count_max, 0, None, lease_seconds, number=number)
    except Empty:
        receive = lambda: side.receive(count_max, 0, None, lease_seconds, number=number)  # noqa: E731
        found = wait_and(receive, side, timeout, is_over)
    return found, side.deliveries_max


def ack(queue: OwnedQueue, group: str, receipts: Sequence[Receipt]) -> bool:
    """Finish deliveries, all in one step, as durably as the policy says; return True.

    Raises
    ------
    LeaseExpiredError, StaleReceiptError
        One is not in hand any more; nothing was done.
    """
    side = queue.group(group)
    if not side.ack_in_hand(receipts):  # seldom, and then this tells why
        settle = Settle(group, "ack", list(receipts))
        try:
            queue.settle(settle)
        except LeaseExpiredError as error:  # the caller hears of it for sure
            queue.forget_taken_away(settle, error)
            raise
    side.make_durable()
    return True


def wait_and(
    take: Callable[[], list[Found]], side: ReadSide, timeout: float | None, is_over: Callable[[], bool]
) -> list[Found]:
    """Wait for messages until a take finds some; raise queue.Empty once the time is over."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        now = time.monotonic()
        if is_over() or now >= deadline:
            raise Empty(NOTHING_CAME)
        side.wait_for_more(None if timeout is None else deadline - now, is_over)
        with suppress(Empty):
            return take()
