"""Who is at the other end of a Unix socket: only processes of this user may talk to one another.

The kernel notes the effective user of a client at its connect, and that of a server at its listen. So it is told who
had the right to reach the socket, whatever the peer has become since.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable

from holdfast.errors import ConfigError

_LINUX = struct.Struct("=iII")
"""``struct ucred``: process, user, group."""

_MACOS = struct.Struct("=IIhxx16I")
"""``struct xucred``: version, user, count of groups, groups."""

_MACOS_VERSION = 0
_SOL_LOCAL, _LOCAL_PEERCRED = 0, 1


def _linux_uid(sock: socket.socket) -> int:
    _, uid, _ = _LINUX.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _LINUX.size))
    return int(uid)


def _macos_uid(sock: socket.socket) -> int:
    version, uid, *_ = _MACOS.unpack(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _MACOS.size))
    if version != _MACOS_VERSION:
        raise ConfigError(f"this system tells in an unknown form ({version}) who is at the other end of a socket")
    return int(uid)


_READERS: dict[str, Callable[[socket.socket], int]] = {"linux": _linux_uid, "darwin": _macos_uid}


def peer_uid(sock: socket.socket) -> int:
    """Return the effective user of the process at the other end of a connected Unix socket.

    Raises
    ------
    ConfigError
        This system does not tell.
    OSError
        The socket is not connected.
    """
    reader = _READERS.get(sys.platform)
    if reader is None:
        raise ConfigError(
            f"this system ({sys.platform}) does not tell who is at the other end of a socket, so processes cannot "
            "share a queue here: open it in one process only"
        )
    return reader(sock)


def check_peer(sock: socket.socket) -> None:
    """Refuse a connection whose other end is a process of another user.

    Raises
    ------
    ConfigError
        It is, or this system does not tell.
    OSError
        The socket is not connected.
    """
    peer, user = peer_uid(sock), os.geteuid()
    if peer != user:
        raise ConfigError(
            f"the process at the other end of the socket is of user {peer}, this is user {user}; run both as one user"
        )
