"""A link that steps the machine of an owner itself: a handle of the mode "shared" without sockets and a loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from unittest import mock

from holdfast.clock import Clock
from holdfast.errors import Empty, QueueLockedError, RetryableError
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import Storage
from holdfast.queue.client import shared_engine
from holdfast.queue.client.link import Answer, Link, never
from holdfast.queue.client.owner_finder import InHand
from holdfast.queue.engine.handle_settings import HandleSettings
from holdfast.queue.options.queue_options import Options
from holdfast.queue.protocol.messages import AnyRequest
from support.owners.served import Client, FakeSessions, Served

_LOOK_SECONDS = 0.005
"""How often a thread that waits for an answer ends a round itself: in the place of a loop that is woken."""


class Machine:
    """The owner of a queue as several links share it: one thread at a time steps it."""

    def __init__(self, storage: Storage, clock: Clock, path: Path, numbers: Iterator[int]) -> None:
        self.served = Served(storage, clock, FakeSessions(numbers=numbers), path)
        self.lock = threading.Lock()
        self.members = 0


class MachineLink:
    """A way to an owner: encodes frames and steps its machine, in the caller's thread.

    Parameters
    ----------
    machine : Machine
        The owner.
    session : int
        The number of the session; 0: it begins one.
    """

    def __init__(self, machine: Machine, session: int) -> None:
        self._machine = machine
        self._clients: list[Client] = []
        self.epoch = b"e" * 16
        with machine.lock:
            client = machine.served.connect(session)
        self.session = client.session
        self._clients.append(client)

    @property
    def known_end(self) -> int:
        return self._machine.served.queue.write_side.next_offset

    def ask(
        self,
        request: AnyRequest,
        payloads: Sequence[bytes],
        seconds: float | None,
        is_over: Callable[[], bool] = never,
        *,
        again: bool = False,
    ) -> Answer:
        served, lock = self._machine.served, self._machine.lock
        with lock:
            client = self._clients.pop() if self._clients else served.connect(self.session)
            request_id = client.send(request, payloads)
        while True:
            with lock:
                served.end_round()
                reply = client.reply(request_id)
                if reply is not None:
                    self._clients.append(client)
                    return Answer(reply, client.payloads, is_kept=True)
                if is_over():
                    client.disconnect()
                    raise Empty
            time.sleep(_LOOK_SECONDS)

    def wake(self) -> None:
        """Do nothing: each thread looks all the time."""

    def close(self) -> None:
        """Disconnect."""
        with self._machine.lock:
            while self._clients:
                self._clients.pop().disconnect()

    def forget(self) -> None:
        """Do nothing: no child uses it."""


class MachineFinder:
    """Finds the one owner of a queue in this process, as :class:`OwnerFinder` is used.

    Parameters
    ----------
    machines : dict of Path to Machine
        The owners.
    numbers : iterator of int
        Those of sessions: no two get the same, as what a dead one had in hand stands on the disk.
    storage, clock, path, options
        As of :class:`OwnerFinder`.
    """

    def __init__(
        self,
        machines: dict[Path, Machine],
        numbers: Iterator[int],
        storage: Storage,
        clock: Clock,
        path: Path,
        options: Options,
    ) -> None:
        self._machines = machines
        self._path = path
        self._session = 0
        self.consumer: InHand | None = None
        self.owns_briefly = False
        self.on_poisoned: Callable[[], object] = lambda: None
        self.owns_briefly = False
        *_, self.is_new = open_directory(
            storage, path, create=True, settings=HandleSettings(path, options).of_new_queue
        )
        self._machine = machines.get(path) or Machine(storage, clock, path, numbers)
        machines[path] = self._machine
        self._machine.members += 1
        self.living = self._machine.served.sessions.is_alive

    def find(self) -> Link | None:
        """Return a way to the owner."""
        link = MachineLink(self._machine, self._session)
        self._session = link.session
        return link

    def not_found(self) -> RetryableError:
        """Return the error for an owner that does not answer."""
        return QueueLockedError(f"{self._path} has no owner", path=str(self._path))

    def abdicate(self) -> None:
        """Do nothing: the owner is no member."""

    def begin_session(self) -> None:
        """Begin another session."""
        self._session = 0

    def leave(self) -> None:
        """End the session; the last one closes the owner."""
        served = self._machine.served
        with self._machine.lock:
            served.sessions.living.discard(self._session)
            self._machine.members -= 1
            if not self._machine.members:
                del self._machines[self._path]
                served.close()

    def forget_after_fork(self) -> None:
        """Do nothing: no child uses it."""


@contextmanager
def machine_links() -> Iterator[None]:
    """Have handles of the mode "shared" use owners without sockets, in this process, within the block."""
    machines: dict[Path, Machine] = {}
    numbers = count(1)

    def find(storage: Storage, clock: Clock, path: Path, options: Options) -> MachineFinder:
        return MachineFinder(machines, numbers, storage, clock, path, options)

    with mock.patch.object(shared_engine, "OwnerFinder", find):
        yield
