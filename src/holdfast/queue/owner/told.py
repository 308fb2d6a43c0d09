"""What clients were told by their last answers: that deliveries were taken away. It is forgotten once they have heard.

An answer may be lost with its connection, and the request comes again. Only the next request on the same connection
says that the answer has arrived; what no such request says is remembered as long as the session.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import LeaseExpiredError
from holdfast.queue.protocol.messages import AnyRequest


class Told:
    """The refusals that clients may not have heard of yet, by connection; for the thread of the machine.

    Parameters
    ----------
    forget : callable
        Takes a request and its refusal, once that was heard: ``OwnedQueue.forget_taken_away``.

    Attributes
    ----------
    last : dict of int to (request, LeaseExpiredError)
        Nearly always empty.
    """

    def __init__(self, forget: Callable[[AnyRequest, LeaseExpiredError], object]) -> None:
        self._forget = forget
        self.last: dict[int, tuple[AnyRequest, LeaseExpiredError]] = {}

    def note(self, connection: int, request: AnyRequest, error: Exception) -> None:
        """Note the answer to a request, if it says that a delivery was taken away."""
        if isinstance(error, LeaseExpiredError):
            self.last[connection] = request, error

    def has_arrived(self, connection: int) -> None:
        """Forget what the last answer on a connection has told."""
        told = self.last.pop(connection, None)
        if told is not None:
            self._forget(*told)
