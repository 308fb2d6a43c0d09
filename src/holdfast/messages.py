"""What a queue carries: offsets, positions and messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

Offset = NewType("Offset", int)
"""Logical number of a record in its queue: 0, 1, 2 ..."""

Position = NewType("Position", int)
"""A byte in one file, counted from its start."""


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
