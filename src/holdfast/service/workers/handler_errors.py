"""The exceptions by which a handler settles its message."""

from __future__ import annotations

from holdfast.queue.options.put_options import Seconds, as_seconds


class Reject(Exception):  # noqa: N818 # an outcome, not an error
    """The message is a dead letter now: no further try would help.

    Attributes
    ----------
    reason : str
        Kept with the dead letter.
    """

    reason: str = ""  # also of a class of the program's whose __init__ does not call this one

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):  # noqa: N818 # an outcome, not an error
    """The message failed, and is to come again; after ``max_deliveries`` it is a dead letter all the same.

    Attributes
    ----------
    delay : float or None, seconds
        How long it waits before; None: after the back-off.
    """

    delay: float | None = None

    def __init__(self, delay: Seconds | None = None) -> None:
        super().__init__(delay)
        self.delay = None if delay is None else as_seconds(delay, "delay")
