"""What a queue carries: messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Message:
    """A record decoded for the application.

    Attributes
    ----------
    payload : bytes
        What was put.
    offset : int
        Its number in the queue.
    timestamp_ns : int
        When it was put, in nanoseconds since the epoch; never smaller than that of an earlier message.
    headers : mapping of str to str
        What was put beside the payload.
    delivery_count : int
        How often it has been handed out by ``receive`` so far.
    """

    payload: bytes
    offset: int
    timestamp_ns: int
    headers: Mapping[str, str] = field(default_factory=dict)
    delivery_count: int = 0
