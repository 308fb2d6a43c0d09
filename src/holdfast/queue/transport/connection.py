"""The client's end of a connection: one thread asks, and waits for the answer.

After anything that leaves half a frame in the stream the connection is closed: an interruption, a timeout while it
sends. So no answer is ever taken for that of another request.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from holdfast import forks
from holdfast.queue.protocol.frames import NOTICE, REPLY, Frame, FrameDecoder, ProtocolError
from holdfast.queue.transport.sending import RECEIVE_BYTES, send_some, unsent, widen

_LATE, _LATE_MAX = 1.02, 1.05
"""A call may end so much later than its time is over: each change of a socket's timeout is a system call, and the times
of two requests hardly ever are the same."""


class ConnectionLostError(Exception):
    """The peer is gone, or the connection was closed because it was out of step.

    Attributes
    ----------
    was_sent : bool
        Whether the request may have been done: some of it was sent, and the owner has not said that it left it out.
    """

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class Connection:
    """A connection to the owner, for one thread, with one outstanding request.

    Parameters
    ----------
    sock : socket
        Connected. It is the connection's from here on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        widen(sock)
        self._decoder = FrameDecoder()
        self._is_in_step = True
        self._last_id = 0
        sock.settimeout(None)
        self._timeout: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the next request can be sent; that it arrives is another matter."""
        return self._is_in_step

    def next_id(self) -> int:
        """Return the id of the next request."""
        self._last_id += 1
        return self._last_id

    def ask(self, request_id: int, buffers: Sequence[bytes], timeout: float | None = None) -> Frame:
        """Send a request and return its answer.

        Parameters
        ----------
        request_id : int
            Larger than that of any request before on this connection.
        buffers : sequence of bytes
            The encoded frame.
        timeout : float or None, seconds
            For all of it; None waits for ever.

        Raises
        ------
        TimeoutError
            No answer yet. If the request was sent as a whole, the connection stays usable: :meth:`wait` waits on, or
            another request may follow, and the late answer is dropped. Otherwise it is closed.
        ConnectionLostError
            The connection has ended, and is closed; ``was_sent`` tells whether the request may have been done.
        """
        if forks.left:
            forks.forget_left()
        self._check(was_sent=False)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._is_in_step = False
        try:
            self._send(buffers, deadline)
            return self._receive(request_id, deadline)
        finally:
            if not self._is_in_step:
                self.close()

    def wait(self, request_id: int, timeout: float | None = None) -> Frame:
        """Return the answer of the latest request, after :meth:`ask` has raised TimeoutError; raises what that does."""
        self._check(was_sent=True)
        deadline = None if timeout is None else time.monotonic() + timeout
        self._is_in_step = False
        try:
            return self._receive(request_id, deadline)
        finally:
            if not self._is_in_step:
                self.close()

    def break_off(self) -> None:
        """From another thread: have the thread that waits get ConnectionLostError, as if the peer was gone."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is closed, or its peer has closed it
            return

    def close(self) -> None:
        """Close this process's copy; a parent that it was forked from keeps its own."""
        self._is_in_step = False
        self._sock.close()

    def __del__(self) -> None:
        self._sock.close()

    def _check(self, *, was_sent: bool) -> None:
        if not self._is_in_step:
            self.close()  # an interruption may have come before that
            raise ConnectionLostError("the connection to the owner was closed", was_sent=was_sent)

    def _send(self, buffers: Sequence[bytes], deadline: float | None) -> None:
        left = unsent(buffers)
        sent_bytes = 0
        try:
            while left:
                self._set_timeout(deadline)
                sent_bytes += send_some(self._sock, left)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLostError(f"the owner is gone: {error}", was_sent=sent_bytes > 0) from error

    def _receive(self, request_id: int, deadline: float | None) -> Frame:
        try:
            while True:
                frame = self._decoder.next()
                if frame is None:
                    self._set_timeout(deadline)
                    data = self._sock.recv(RECEIVE_BYTES)
                    if not data:
                        raise ConnectionLostError("the owner is gone", was_sent=True)
                    self._decoder.feed(data)
                elif frame.kind == NOTICE:  # the owner ends, and has done nothing of the requests behind this one
                    raise ConnectionLostError("the owner has ended", was_sent=frame.request_id >= request_id)
                elif frame.kind != REPLY or frame.request_id > request_id:
                    raise ProtocolError(f"a frame of kind {frame.kind} with id {frame.request_id}, not {request_id}")
                elif frame.request_id == request_id:
                    self._is_in_step = True
                    return frame
        except TimeoutError:
            self._is_in_step = True
            raise
        except (OSError, ProtocolError) as error:
            raise ConnectionLostError(f"the owner does not answer: {error}", was_sent=True) from error

    def _set_timeout(self, deadline: float | None) -> None:
        """Let the socket's next call end by the deadline."""
        timeout = None if deadline is None else deadline - time.monotonic()
        before = self._timeout
        if timeout is None:
            if before is None:
                return
        elif timeout <= 0:
            raise TimeoutError("the owner does not answer in time")
        elif before is not None and timeout <= before <= timeout * _LATE_MAX:
            return
        self._timeout = None if timeout is None else timeout * _LATE
        self._sock.settimeout(self._timeout)
