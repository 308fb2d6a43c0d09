"""One client's connection as the server sees it: what has come of a frame, and what the client has not read yet."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence
from selectors import EVENT_READ, EVENT_WRITE

from holdfast.queue.protocol.frames import Frame, FrameDecoder
from holdfast.queue.transport.sending import RECEIVE_BYTES, Unsent, send_some, unsent, widen

UNREAD_BYTES_MAX = 2**20
"""Above this much unread output no more is read from a client, and its time runs."""


RECEIVES_PER_ROUND = 4
"""Of one connection: so a batch of 200 KB is there after one round, as far as its socket could hold it."""


class ServedConnection:
    """The server's end of a connection. Its socket does not block.

    Attributes
    ----------
    number : int
        Names it towards the handler; never used again.
    deadline : float or None, seconds on the monotonic clock
        When it is closed, unless the client has said hello, or has read, by then.
    has_said_hello : bool
        Whether a first frame has come.
    has_frames : bool
        Whether there may be whole frames that were not yet taken from it.
    events : int
        What its selector waits for.
    taken_id : int
        The id of the last request that the handler was given.
    """

    __slots__ = ("_decoder", "_unread", "_unread_bytes", "deadline", "events", "has_frames", "has_said_hello",
                 "number", "sock", "taken_id")  # fmt: skip

    def __init__(self, sock: socket.socket, number: int, deadline: float) -> None:
        widen(sock)
        self.sock = sock
        self.number = number
        self.deadline: float | None = deadline
        self.has_said_hello = False
        self.has_frames = False
        self.events = EVENT_READ
        self.taken_id = 0
        self._decoder = FrameDecoder()
        self._unread: Unsent = deque()
        self._unread_bytes = 0

    @property
    def is_choked(self) -> bool:
        """Whether the client has not read so much that nothing more is read from it."""
        return self._unread_bytes > UNREAD_BYTES_MAX

    @property
    def wanted_events(self) -> int:
        """What its selector has to wait for."""
        return (0 if self.is_choked else EVENT_READ) | (EVENT_WRITE if self._unread else 0)

    def receive(self) -> bool:
        """Read what has come, within a bound; return False if the client is gone. Raises ProtocolError."""
        data = b""
        try:
            for _ in range(RECEIVES_PER_ROUND):
                data = self.sock.recv(RECEIVE_BYTES)
                self._decoder.feed(data)
                self.has_frames = True
                if len(data) < RECEIVE_BYTES:
                    break
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(data)

    def next(self) -> Frame | None:
        """Return the next whole frame, if there is one. Raises ProtocolError."""
        frame = self._decoder.next()
        self.has_frames = frame is not None
        return frame

    def send(self, buffers: Sequence[bytes] = ()) -> bool:
        """Send what is unread and then these buffers, as far as possible now; return False if the client is gone."""
        self._unread.extend(unsent(buffers))
        self._unread_bytes += sum(map(len, buffers))
        try:
            while self._unread:
                self._unread_bytes -= send_some(self.sock, self._unread)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True
