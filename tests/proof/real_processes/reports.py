"""How a child says what it does: lines in a pipe, each written with one system call before or after what it speaks of.

=====================  ===============================================================================================
``o offset``           it has opened the queue, whose next message will have this offset
``v name@offset ...``  what can be taken then: all of it
``c name ...``         which of that was handed out before, and so comes first
``h key ...``          which transactions are in doubt then; ``h?``: only the owner of the write side, which comes
                       later, continues with a decision that was cut off
``w verdict ...``      what recovery found to be damaged
``go``                 it begins to work
``s key count name …`` a call is about to put ``key:0`` to ``key:count-1`` and to finish the names, all together
``p key count name …`` the same, to be prepared only
``d key verb``         a prepared one is about to be decided: ``commit`` or ``abort``
``S key offset keeps`` that call returned; ``keeps``: whether it promised to survive a loss of power
``g hand count``       ``get`` is about to take up to so many; ``G hand key keeps name …`` after it, ``E hand`` if there
                       were none; ``hand`` is the thread
``q hand count``       ``receive`` is; ``r hand name@offset …`` after it, or ``E hand``
``b hand how name …``  these are about to be given back, ``counted`` as a delivery or ``as-it-was``; ``B hand`` after it
``f hand``, ``F hand`` before ``flush`` and after it
``n size``             so many bytes stand in a file that is appended to without a sync
``e error``            the disk has gone, and the queue said so
``x lines``            a sync has failed that began when so many lines had been said, see :func:`watching_syncs`
``cut``                from here on the power or the disk may be gone: put in by the parent, see :meth:`Reporter.mark`
``X text``             what must never happen
=====================  ===============================================================================================
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from support.processes.children import Child

PIPE_BYTES = 2**20
LINE_BYTES_MAX = 512 * 2**10
SECONDS_MAX = 30.0

Say = Callable[..., None]


class Task(Protocol):
    """What a child does: it reports through ``say`` until it is killed."""

    def __call__(self, say: Say) -> object: ...


class Reporter:
    """A forked child and the end of the pipe through which it reports. The parent has no queue open, and no threads."""

    def __init__(self, task: Task) -> None:
        self._reader, writer = os.pipe()
        _widen(writer)
        self._text = b""
        self._said_before: int | None = None
        self._child = Child(lambda: _run(task, writer))
        os.close(writer)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def wait_for(self, *kinds: str, seconds: float = SECONDS_MAX) -> bool:
        """Return once it has said a line of one of ``kinds`` (True), or ends or says no such thing in time (False)."""
        deadline = time.monotonic() + seconds
        pattern = re.compile(f"^({'|'.join(kinds)})[ \n]".encode(), re.MULTILINE)
        while not pattern.search(self._text):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._reader], [], [], left)[0]:
                return False
            data = os.read(self._reader, PIPE_BYTES)
            if not data:
                return False
            self._text += data
        return True

    def mark(self) -> None:
        """Note how much it has said by now: lines behind that come after ``cut``."""
        while select.select([self._reader], [], [], 0)[0]:
            data = os.read(self._reader, PIPE_BYTES)
            if not data:
                break
            self._text += data
        self._said_before = self._text.count(b"\n")

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self._child.kill()
        self._child.wait()

    def was_killed(self) -> bool:
        """Whether it was the signal that ended it."""
        return self._child.wait() == -signal.SIGKILL

    def lines(self) -> list[list[str]]:
        """Return all whole lines, once the child is dead, split into fields; a line that was cut short says nothing."""
        while data := os.read(self._reader, PIPE_BYTES):
            self._text += data
        os.close(self._reader)
        whole, _, _ = self._text.rpartition(b"\n")
        lines = [line.split(" ") for line in whole.decode().splitlines()]
        failed = min((int(line[1]) for line in lines if line[0] == "x"), default=None)
        lines = [line for line in lines if line[0] != "x"]
        if failed is not None:
            lines.insert(failed, ["cut"])
        if self._said_before is not None:
            lines.insert(self._said_before, ["cut"])
        return lines


def watching_syncs(say: Say) -> Say:
    """Return what to say with instead, once each sync of this process that fails says when it began.

    What was said since is as after a cut: as one sync fails, the kernel may tell another one that all is well.
    """
    count = 0

    def counted(*fields: object) -> None:
        nonlocal count
        say(*fields)
        count += 1

    def watched(sync: Callable[[int], None], fd: int) -> None:
        began = count
        try:
            sync(fd)
        except OSError:
            say("x", began)
            raise

    for name in ("fsync", "fdatasync"):
        setattr(os, name, partial(watched, getattr(os, name)))
    return counted


def _run(task: Task, writer: int) -> None:
    def say(*fields: object) -> None:
        line = (" ".join(map(str, fields)) + "\n").encode()
        assert len(line) <= LINE_BYTES_MAX, "a line that the pipe does not take at once"
        while line:
            line = line[os.write(writer, line) :]

    try:
        task(say)
    except BaseException as error:
        say("X", repr(error).replace("\n", " "))
        raise


def _widen(writer: int) -> None:
    """Give a pipe room for all that a child says, where the system can; elsewhere the child waits for its reader."""
    with suppress(OSError):
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
