"""What is measured of each queue, and how it is told to be durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class UnavailableError(Exception):
    """A queue that cannot be measured here, and why."""


@dataclass(frozen=True)
class Handle:
    """An open queue.

    Attributes
    ----------
    put : callable
        Appends one message.
    get : callable
        Takes one message for good, acknowledged if the queue knows that; None if there is none.
    close : callable
        Closes the queue.
    put_many, get_many : callable or None
        The same in one transaction; None if the queue has no such verb.
    wait : callable or None
        As ``get``, and waits for a put of another process; None if the queue has no such verb.
    """

    put: Callable[[bytes], object]
    get: Callable[[], bytes | None]
    close: Callable[[], object]
    put_many: Callable[[Sequence[bytes]], object] | None = None
    get_many: Callable[[int], Sequence[bytes]] | None = None
    wait: Callable[[], bytes] | None = None


@dataclass(frozen=True)
class Peer:
    """A queue that is measured.

    Attributes
    ----------
    name : str
        For the table.
    distribution : str
        What pip installs; empty for the standard library.
    open : callable
        Opens it in a folder; True: as durable as its documentation knows how.
    power_safe : str
        What has each commit on the disk, by its documentation or by the calls that it makes; "no" if nothing has.
    threads : "share", "apart" or "no"
        Whether threads use one handle, need a handle each, or may not meet.
    processes : bool
        Whether two processes may use it.
    environment : mapping
        Variables of the process that it is measured in.
    version : str
        Where it is not pip that knows it.
    program : str
        What prints the figures of a queue that Python cannot open; empty for all others.
    """

    name: str
    distribution: str
    open: Callable[[Path, bool], Handle]
    power_safe: str = "no"
    threads: str = "share"
    processes: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    program: str = ""

    @property
    def is_durable(self) -> bool:
        """Whether anything has it sync."""
        return self.power_safe != "no"


def no_handle(folder: Path, is_durable: bool) -> Handle:
    """Stand for the opening of a queue that has a program."""
    raise UnavailableError("Python cannot open it")
