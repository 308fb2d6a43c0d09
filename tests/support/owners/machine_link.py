"""A link that steps the machine of an owner itself: a handle of the mode "shared" without sockets and a loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar
from unittest import mock

from holdfast.clock import Clock
from holdfast.errors import Empty, PoisonedError, QueueLockedError, RetryableError
from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import Storage
from holdfast.queue.client import shared_engine
from holdfast.queue.client.link import Answer, Link, LinkLostError, OwnerLink, never
from holdfast.queue.client.owner_finder import InHand
from holdfast.queue.engine.handle_settings import HandleSettings
from holdfast.queue.options.queue_options import Options
from holdfast.queue.owner.owner import Owner
from holdfast.queue.protocol.messages import AnyRequest, Resume
from support.owners.served import EPOCH, Client, FakeSessions, Served

_LOOK_SECONDS = 0.005
"""How often a thread that waits for an answer ends a round itself: in the place of a loop that is woken."""

Found = TypeVar("Found")


class Machine:
    """The owner of a queue as several links share it: one thread at a time steps it."""

    def __init__(self, storage: Storage, clock: Clock, path: Path, numbers: Iterator[int]) -> None:
        self.path = path
        self.served = Served(storage, clock, FakeSessions(numbers=numbers), path)
        self.lock = threading.Lock()
        self.members = 0

    def work(self, do: Callable[[], Found]) -> Found:
        """Have the owner do something; it may die of that, and then LinkLostError says so."""
        return do()

    def succeed(self) -> None:
        """Close the owner in order, and have another one in its place: sessions live on."""
        with self.lock:
            before = self.served
            before.close()
            self.served = Served(before.storage, before.clock, before.sessions, self.path)


class MachineOwner(Owner):
    """An owner without lock, socket and thread, as a handle of its own process calls it."""

    def __init__(self, served: Served) -> None:
        self.queue, self.epoch = served.queue, EPOCH


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
        self._served = machine.served
        self._clients: list[Client] = []
        self.epoch = EPOCH
        with machine.lock:
            client = machine.work(lambda: machine.served.connect(session))
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
        grace: float | None = None,
    ) -> Answer:
        served, lock = self._served, self._machine.lock
        with lock:
            self._check_serves(was_sent=False)
            work = self._machine.work
            client = self._clients.pop() if self._clients else work(lambda: served.connect(self.session))
            request_id = work(lambda: client.send(request, payloads))
        while True:
            with lock:
                self._check_serves(was_sent=True)
                work(served.end_round)
                reply = client.reply(request_id)
                if reply is not None:
                    self._clients.append(client)
                    return Answer(reply, client.payloads, is_kept=True)
                if is_over():
                    client.disconnect()
                    raise Empty
            time.sleep(_LOOK_SECONDS)

    def _check_serves(self, *, was_sent: bool) -> None:
        if self._served is not self._machine.served:
            raise LinkLostError("another owner has succeeded", was_sent=was_sent)

    def wake(self) -> None:
        """Do nothing: each thread looks all the time."""

    def close(self) -> None:
        """Disconnect."""
        with self._machine.lock:
            while self._clients and self._served is self._machine.served:
                self._clients.pop().disconnect()

    def forget(self) -> None:
        """Do nothing: no child uses it."""


class Machines:
    """The owners of this process.

    Attributes
    ----------
    begin : callable
        Makes the owner of a queue.
    by_path : dict of Path to Machine
        Those that are open.
    are_own : bool
        Whether handles that look for an owner are in its process, and call it without a request.
    """

    def __init__(self, begin: Callable[[Storage, Clock, Path, Iterator[int]], Machine]) -> None:
        self.begin = begin
        self.by_path: dict[Path, Machine] = {}
        self.are_own = False

    def succeed(self, *, are_own: bool) -> None:
        """Have each owner succeeded; its handles are in the process of the next one, or not."""
        self.are_own = are_own
        for each in self.by_path.values():
            each.succeed()


class MachineFinder:
    """Finds the one owner of a queue in this process, as :class:`OwnerFinder` is used.

    Parameters
    ----------
    machines : Machines
        The owners.
    numbers : iterator of int
        Those of sessions: no two get the same, as what a dead one had in hand stands on the disk.
    storage, clock, path, options
        As of :class:`OwnerFinder`.
    """

    def __init__(
        self,
        machines: Machines,
        numbers: Iterator[int],
        storage: Storage,
        clock: Clock,
        path: Path,
        options: Options,
    ) -> None:
        self._machines = machines
        self._path = path
        self._session = 0
        self._has_left = self._has_failed = False
        self.consumer: InHand | None = None
        self.owns_briefly = False
        self.owner: object = None
        self.on_poisoned: Callable[[], object] = lambda: None
        *_, self.is_new = open_directory(
            storage, path, create=True, settings=HandleSettings(path, options).of_new_queue
        )
        self._machine = machines.by_path.get(path) or machines.begin(storage, clock, path, numbers)
        machines.by_path[path] = self._machine
        self._machine.members += 1
        self.living = self._machine.served.sessions.is_alive

    def find(self) -> Link | None:
        """Return a way to the owner; None if it has died meanwhile. Raises PoisonedError if no other one begins."""
        if self._has_failed:
            raise PoisonedError(f"a write has failed, and no other process owns {self._path}: reopen the queue")
        try:
            link = MachineLink(self._machine, self._session)
            self._session = link.session
            if self.consumer is not None:
                link.ask(Resume(self.consumer.group, self.consumer.numbers_in_hand()), (), 0.0)
        except LinkLostError:
            return None
        if not self._machines.are_own:
            return link
        link.close()
        return OwnerLink(MachineOwner(self._machine.served), link.session)

    def not_found(self) -> RetryableError:
        """Return the error for an owner that does not answer."""
        return QueueLockedError(f"{self._path} has no owner", path=str(self._path))

    def abdicate(self, *, has_failed: bool) -> None:
        """Have the owner of this process end; if a write of it ``has_failed``, no other one begins."""
        self._has_failed = self._has_failed or has_failed
        if has_failed:
            self._machine.served.close()
        else:
            self._machine.succeed()

    def begin_session(self) -> None:
        """Begin another session."""
        self._session = 0

    def leave(self) -> None:
        """End the session, once; the last one closes the owner."""
        if self._has_left:
            return
        self._has_left = True
        served = self._machine.served
        with self._machine.lock:
            served.sessions.living.discard(self._session)
            self._machine.members -= 1
            if not self._machine.members:
                del self._machines.by_path[self._path]
                served.close()

    def forget_after_fork(self) -> None:
        """Do nothing: no child uses it."""


@contextmanager
def machine_links(
    begin: Callable[[Storage, Clock, Path, Iterator[int]], Machine] = Machine, first: int = 1
) -> Iterator[Machines]:
    """Have handles of the mode "shared" use owners without sockets, in this process, within the block.

    ``begin`` makes the owner of a queue; ``first`` is the number of the first session.
    """
    machines = Machines(begin)
    numbers = count(first)

    def find(storage: Storage, clock: Clock, path: Path, options: Options) -> MachineFinder:
        return MachineFinder(machines, numbers, storage, clock, path, options)

    with mock.patch.object(shared_engine, "OwnerFinder", find):
        yield machines
