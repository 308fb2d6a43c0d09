"""The sessions behind the connections of a machine: greets them, and finds those that have ended. For its thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from holdfast.errors import RetryableError, UsageError
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.constants import SESSION_SHIFT
from holdfast.queue.protocol.messages import VERSION, AnyRequest, Hello, Receipt, SessionLostError, UnreadableError


class SessionTable(Protocol):
    """The sessions of the directory, as the machine sees them: ``persistence/ownership/sessions.py``."""

    def admit(self, making: str) -> int:
        """Give the maker of a session file its number; empty: one without a file, which lives until it is removed."""

    def is_alive(self, number: int) -> bool:
        """Whether a session lives; one that was found dead never does again."""

    def sweep(self) -> Sequence[int]:
        """Return the numbers found dead since the last call."""

    def remove(self, number: int) -> None:
        """Note that a session has ended."""


class ConnectedSessions:
    """Which session each connection is of.

    Parameters
    ----------
    sessions : SessionTable
        Who lives.
    epoch : bytes, length 16
        That of the owner's lock: a client shows it.
    path : Path
        The queue, for errors.

    Attributes
    ----------
    of : dict of int to (int or None)
        The session of each connection; None before its hello.
    """

    def __init__(self, sessions: SessionTable, epoch: bytes, path: Path) -> None:
        self._sessions = sessions
        self._epoch = epoch
        self._path = path
        self._without_file: dict[int, bool] = {}
        self.of: dict[int, int | None] = {}

    def greet(self, connection: int, request: AnyRequest) -> int:
        """Take the first request of a connection; return the number of its session.

        Raises
        ------
        UnreadableError
            It is no hello.
        SessionLostError
            The session was found dead.
        HoldfastError
            It is of another version, or to another owner; or the disk refuses.
        """
        if not isinstance(request, Hello):
            raise UnreadableError("the first request of a connection is a hello")
        if request.version != VERSION:
            raise UsageError(
                f"the owner of {self._path} speaks version {VERSION} of the protocol, and this program "
                f"version {request.version}: use one version of Holdfast for all programs that share a queue"
            )
        if request.epoch != self._epoch:
            raise RetryableError("another owner has taken the lock since; connect to that one")
        number = request.session
        with storage_errors("greeting a session", self._path):
            if not number:
                number = self._admit(request.making)
            elif not self._sessions.is_alive(number):
                raise SessionLostError(f"session {number:08x} was found dead: begin another one")
        self.of[connection] = number
        return number

    def _admit(self, making: str) -> int:
        """Give a session its number; an owner that died may have done that, and not have said which."""
        try:
            number = self._sessions.admit(making)
        except UsageError as error:
            raise SessionLostError(str(error)) from error
        if not making:
            self._without_file[number] = False
        return number

    def find_ended(self, ended: list[int]) -> None:
        """Add the sessions that have ended since the last call. Raises OSError if some cannot be tested."""
        ended += self._sessions.sweep()
        ended += self._end_without_file()

    def _end_without_file(self) -> list[int]:
        """End the sessions without a file that had no connection at the last call, and have none now; return them."""
        connected = set(self.of.values())
        ended = [number for number, is_lonely in self._without_file.items() if is_lonely and number not in connected]
        for number in ended:
            del self._without_file[number]
            self._sessions.remove(number)
        self._without_file = {number: number not in connected for number in self._without_file}
        return ended


def check_number(session: int, number: int) -> None:
    """Raise SessionLostError unless a delivery number is of the session."""
    if number >> SESSION_SHIFT != session:
        raise SessionLostError(f"delivery number {number:016x} is not of session {session:08x}")


def check_receipts(session: int, receipts: Sequence[Receipt]) -> None:
    """Raise SessionLostError unless all deliveries are those of the session."""
    if {number >> SESSION_SHIFT for number, _ in receipts} - {session}:
        raise SessionLostError(f"a delivery is not of session {session:08x}")
