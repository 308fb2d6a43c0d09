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


def taken_away(offset: int, *, is_finished: bool) -> LeaseExpiredError:
    """Return the error for a delivery that its owner took away; ``is_finished``: so the message does not come again."""
    if is_finished:
        text = (
            f"offset {offset} was taken away and is finished: its group was moved by seek, or skipped it, being "
            "further behind than max_lag_age or max_lag_bytes allows, or its lease ran out and another consumer "
            "finished it"
        )
    else:
        text = (
            f"the delivery of offset {offset} was taken away: its lease ran out, or its group was moved by seek; "
            "work inside `with delivery:`, call extend(), or receive it with a longer lease_seconds"
        )
    return LeaseExpiredError(text, offset=offset)
