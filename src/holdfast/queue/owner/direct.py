"""What a handle in the owner's own process does without a request: it calls the owner's sides, in its own thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from holdfast.errors import NOTHING_CAME, Empty
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.dispatch.delivery import Deliverer, Delivery
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.protocol.messages import Take

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
    queue: OwnedQueue, take: Take, deliverer: Deliverer, is_over: Callable[[], bool]
) -> tuple[list[Delivery], int]:
    """Take messages, and finish none; return their deliveries, at least one.

    ``deliverer`` settles them. The second value is as of ``Taken``. Raises as :func:`fetch`.
    """
    side = queue.group(take.group)
    try:
        found = side.receive(take.count_max, 0, None, take.lease, number=take.number, deliverer=deliverer)
    except Empty:
        receive = partial(side.receive, take.count_max, 0, None, take.lease, number=take.number, deliverer=deliverer)
        found = wait_and(receive, side, take.timeout, is_over)
    return found, side.deliveries_max


def ack(queue: OwnedQueue, group: str, deliveries: Sequence[Delivery]) -> bool:
    """Finish deliveries of :func:`take`, all in one step, as durably as the policy says.

    False, and nothing is done, if one is of an owner before, or not in hand any more.
    """
    side = queue.group(group)
    if not side.ack_same(deliveries):
        return False
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
