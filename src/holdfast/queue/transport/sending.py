"""Sends the buffers of frames, piece by piece as the socket takes them; used by both ends."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

JOINED_BYTES_MAX = 64 * 2**10
"""Up to here buffers are copied into one: measured, 100 payloads of 200 bytes take half the time that way."""

BUFFERS_MAX = 1024
"""In one call: Linux and macOS take no more (``IOV_MAX``)."""

RECEIVE_BYTES = 64 * 2**10
"""Of one call. More takes longer also if little has come, because memory of that size is mapped for each call."""

_BUFFER_BYTES = 256 * 2**10
"""Asked of the kernel for what is sent and not yet read. Measured: a batch of 200 KB takes 2/3 of the time, because its
sender need not be woken for the rest. More would only be memory for clients that do not read."""

_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)
"""A peer that is gone is an error, also in a program that gave SIGPIPE back its default: that would end it."""

Unsent = deque[bytes | memoryview]


def widen(sock: socket.socket) -> None:
    """Let a socket hold more of what its peer has not read, as far as the system allows."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def unsent(buffers: Sequence[bytes]) -> Unsent:
    """Return what is to be sent, in as few buffers as is fast."""
    if len(buffers) > 1 and sum(map(len, buffers)) <= JOINED_BYTES_MAX:
        return deque((b"".join(buffers),))
    return deque(buffers)


def send_some(sock: socket.socket, left: Unsent) -> int:
    """Send once, remove from ``left`` what was sent, and return how many bytes that is; raises what the socket does."""
    is_one = len(left) == 1  # usually, and faster
    rest = sent = sock.send(left[0], _FLAGS) if is_one else sock.sendmsg(list(islice(left, BUFFERS_MAX)), (), _FLAGS)
    if rest == sum(map(len, left)):  # usually, and in a third of the time of the loop
        left.clear()
        return sent
    while left and rest >= len(left[0]):
        rest -= len(left.popleft())
    if rest:
        left[0] = memoryview(left[0])[rest:]
    return sent
