"""Sending buffers: what the socket has taken is gone, and nothing else."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

import pytest

from holdfast.queue.transport.sending import send_some


class FakeSocket:
    """Takes so many bytes of one call.

    Attributes
    ----------
    taken : bytes
        What it has taken.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.taken = b""

    def send(self, data: Any, flags: int) -> int:
        self.taken = bytes(data)[: self._count]
        return len(self.taken)

    def sendmsg(self, buffers: list[Any], ancillary: Any, flags: int) -> int:
        return self.send(b"".join(buffers), flags)


@pytest.mark.parametrize("buffers", [[b"abcdef"], [b"ab", b"cd", b"ef"], [b"a", b"bcde", b"f"]])
@pytest.mark.parametrize("count", range(1, 7))
def test_what_was_not_sent_is_left(buffers: list[bytes], count: int) -> None:
    """Wherever the socket stops: inside of a buffer, between two, or behind the last."""
    left: deque[bytes | memoryview] = deque(buffers)
    fake = FakeSocket(count)
    sock: socket.socket = fake  # type: ignore[assignment]  # it sends, which is all that is used
    assert send_some(sock, left) == count
    assert fake.taken == b"abcdef"[:count]
    assert b"".join(left) == b"abcdef"[count:]
