"""Range servers for tests: one in this process over any storage, and tasks on a machine that sees another directory."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.clock import Clock, SystemClock
from holdfast.persistence.filesystem.storage import Storage
from support.spark.other_machines import OWN

if TYPE_CHECKING:
    from holdfast.spark.remote.grant import Grant
    from holdfast.spark.remote.place import Place
    from holdfast.spark.serving.grants import Grants

HOST = "127.0.0.1"


class Served:
    """A range server in this process.

    Attributes
    ----------
    grants : Grants
        Its grants.
    """

    def __init__(self, storage: Storage, clock: Clock) -> None:
        from holdfast.spark.serving.certificate import make_certificate
        from holdfast.spark.serving.grants import Grants
        from holdfast.spark.serving.server import RangeServer

        self.grants: Grants = Grants(clock)
        self.certificate, key = make_certificate(dt.datetime.now(dt.UTC))
        self.server = RangeServer(f"grpc+tls://{HOST}:0", self.certificate, key, self.grants, storage)

    def place(self, grant: Grant) -> Place:
        """Return where tasks with a grant find it."""
        from holdfast.spark.remote.place import Place

        return Place((HOST,), self.server.port, self.certificate, self.grants.add(grant, is_kept=False))


@contextmanager
def served(storage: Storage, clock: Clock | None = None) -> Iterator[Served]:
    """Serve what a storage holds."""
    one = Served(storage, clock or SystemClock())
    with one.server:
        yield one


@contextmanager
def servers_end() -> Iterator[None]:
    """End the range servers that this process starts meanwhile."""
    from holdfast.spark.remote import starting

    try:
        yield
    finally:
        for address in list(starting._servers):
            starting._servers.pop(address).end()


@contextmanager
def on_another_machine(place: Path, sight: Callable[[Path], None]) -> Iterator[None]:
    """Run tasks in a directory of their own: a plan for ``OWN / "q"`` means another queue there, or none."""
    machine = place / "machine"
    machine.mkdir(exist_ok=True)
    if (place / "template").exists() and not (machine / "template").exists():
        (machine / "template").symlink_to(place / "template")
    sight(machine / "q")
    here = Path.cwd()
    os.chdir(machine)
    try:
        yield
    finally:
        os.chdir(here)


PLANNED = OWN / "q"
"""The queue, as the driver and its range server see it."""
