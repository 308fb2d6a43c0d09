"""The message of a queue: messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Message:
    """A record decoded for the application.

    Attributes
    ----------
    payload : bytes
        The bytes that were put.
    offset : int
        Its number in the queue.
    timestamp_ns : int
        When it was put, in nanoseconds since the epoch; never smaller than that of an earlier message.
    headers : mapping of str to str
        The headers of the put; a listing shows none if they cannot be read.
    delivery_count : int
        How often ``receive`` has delivered it so far.
    """

    payload: bytes
    offset: int
    timestamp_ns: int
    headers: Mapping[str, str] = field(default_factory=dict)
    delivery_count: int = 0


class CommonHeaders(Mapping[str, str]):
    """Headers that many messages share; they do not change, so they are encoded once.

    Parameters
    ----------
    headers : mapping of str to str
        Copied.

    Attributes
    ----------
    encoded : bytes
        As they are stored; empty until the first message that has them.
    """

    __slots__ = ("_headers", "encoded")

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)
        self.encoded = b""

    def __getitem__(self, name: str) -> str:
        return self._headers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)

    def __repr__(self) -> str:
        return f"CommonHeaders({self._headers!r})"
