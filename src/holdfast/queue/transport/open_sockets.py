"""Sockets that a forked child closes: its copy of a connection would hide from the peer that this process has ended."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from socket import socket

from holdfast import forks

_open_sockets: weakref.WeakSet[socket] = weakref.WeakSet()
_gate = forks.gate()


def made(make: Callable[[], socket]) -> socket:
    """Return the socket that ``make`` returns; a child of any later fork closes its copy.

    A fork of another thread waits meanwhile, so ``make`` must not block.
    """
    with _gate:
        made_socket = make()
        _open_sockets.add(made_socket)
    return made_socket


def _close_copies() -> None:
    for each in list(_open_sockets):
        with suppress(OSError):
            each.close()


forks.in_child(_close_copies)
