"""Starts a range server for a plan whose tasks may run on machines that do not see the queue.

One process that plans has one server for all of its plans; it starts another one if that has ended. Spark's workers
are copies of a process (fork), and a copy has no server.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess  # starts this package, with the interpreter that runs it
import sys
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from holdfast.errors import ConfigError, StorageError
from holdfast.serializers.extras import require_extra
from holdfast.spark.remote.driver import Driver
from holdfast.spark.remote.grant import Grant
from holdfast.spark.remote.place import Place

logger = logging.getLogger("holdfast")

IDLE_SECONDS = 60.0
"""How long a server stays that is not needed."""

PORTS_TRIED = 16
"""As Spark's own servers (``spark.port.maxRetries``): each process that plans needs one."""

_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104  # executors come from other machines; TLS and the token keep others out
_LOOPBACK = "127."
_END_SECONDS = 10
_ATTEMPTS = 2
"""A server may end between two plans."""


@dataclass(frozen=True, slots=True)
class ServeAddress:
    """The option ``serveAddress``: whether to serve, and where.

    Attributes
    ----------
    is_off : bool
        Never serve.
    host : str
        How tasks reach this machine; empty: as they reach the driver.
    port : int
        The first port to try; 0: any.
    """

    is_off: bool = False
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> ServeAddress:
        """Return the address in ``HOST``, ``HOST:PORT``, ``:PORT`` or ``off``; raises ConfigError."""
        if text == "off":
            return cls(is_off=True)
        has_port = text.count(":") == 1 or (text.startswith("[") and not text.endswith("]"))
        host, colon, port = text.rpartition(":") if has_port else (text, "", "")
        is_number = port.isdecimal() and 0 < int(port) < 2**16
        host = host.strip("[]")
        if (colon and not is_number) or not (host or colon) or any(each in host for each in "/ \t"):
            raise ConfigError(f"serveAddress is HOST, HOST:PORT, :PORT or off; not {text!r}")
        return cls(host=host, port=int(port) if colon else 0)

    @property
    def listens_at(self) -> str:
        """Where the server listens: ``HOST`` may be an address of a gateway, but no other machine has a loopback."""
        return self.host if ":" in self.host or self.host.startswith(_LOOPBACK) else _ALL_ADDRESSES


class _Server:
    """A range server that this process has started."""

    def __init__(self, driver: Driver, address: ServeAddress) -> None:
        self.address = address
        self.process = os.getpid()
        self._number = 0
        path = os.pathsep.join(filter(None, sys.path))
        listen = [address.listens_at, str(address.port), str(PORTS_TRIED)]
        self._popen = subprocess.Popen(  # noqa: S603  # this package
            [sys.executable, "-m", "holdfast.spark.serving", *listen, str(driver.process), str(IDLE_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # an interrupt at the terminal is for the driver
        )
        try:
            told = self._answer()
        except BaseException:
            self.end()
            raise
        self._port, self._certificate = int(told["port"]), str(told["certificate"]).encode()
        self._hosts = (address.host,) if address.host else driver.hosts

    @property
    def lives(self) -> bool:
        """Whether it may still answer."""
        return self._popen.poll() is None

    def place(self, grant: Grant, *, is_kept: bool) -> Place:
        """Tell it a grant; return where its tasks find it. Raises StorageError if it has ended."""
        token = str(self._ask({"grant": grant.to_text(), "is_kept": is_kept})["token"])
        return Place(self._hosts, self._port, self._certificate, token)

    def forget(self, place: Place) -> None:
        """Have it refuse a token from now on; nothing if it is another server's. Raises as :meth:`place`."""
        if place.certificate == self._certificate:
            self._ask({"forget": place.token})

    def _ask(self, fields: dict[str, Any]) -> dict[str, Any]:
        assert self._popen.stdin is not None
        self._number += 1  # an interrupted question may leave an answer behind
        try:
            self._popen.stdin.write(json.dumps(fields | {"number": self._number}).encode() + b"\n")
            self._popen.stdin.flush()
        except OSError as error:
            raise StorageError("the range server has ended") from error
        while (told := self._answer())["number"] != self._number:
            pass
        return told

    def _answer(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise StorageError("the range server did not start, or has ended: its lines above say why")
        told: dict[str, Any] = json.loads(line)
        return told

    def end(self) -> None:
        """End it now."""
        self._popen.kill()
        self._popen.wait(_END_SECONDS)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()


_servers: dict[ServeAddress, _Server] = {}
_lock = Lock()
"""Guards the servers, and what is said to them."""


def announce(
    grant: Grant, driver: Driver | None, address: ServeAddress | None, *, is_kept: bool = False
) -> Place | None:
    """Return where tasks find what they do not see; None if all of them run on this machine.

    Parameters
    ----------
    grant : Grant
        What the tasks may ask for.
    driver : Driver or None
        For whom this process plans; None if no Spark is known.
    address : ServeAddress or None
        The option; None: it was not given, so a Spark on other machines is served, and no other.
    is_kept : bool
        Whether the server stays for this plan until :func:`forget` or the end of this process; for a write, until its
        ``release``.

    Raises
    ------
    StorageError, ConfigError
        The server does not start, at a given address.
    """
    if address is None:
        if driver is None or driver.is_local:
            return None
        try:
            return _announced(grant, driver, ServeAddress(), is_kept=is_kept)
        except (StorageError, ConfigError) as error:  # maybe all tasks see the queue
            logger.warning("%s; so machines that do not see %s cannot run tasks", error, grant.root)
            return None
    if address.is_off:
        return None
    return _announced(grant, driver or Driver(os.getpid(), is_local=True), address, is_kept=is_kept)


def _announced(grant: Grant, driver: Driver, address: ServeAddress, *, is_kept: bool) -> Place:
    require_extra("cryptography", "spark", "a range server")
    with _lock:
        for attempt in range(_ATTEMPTS):
            server = _running(driver, address)
            try:
                place = server.place(grant, is_kept=is_kept)
            except StorageError:
                server.end()
                del _servers[address]
                if attempt + 1 == _ATTEMPTS:
                    raise
            else:
                break
    logger.info("tasks that do not see %s ask the range server at %s", grant.root, place)
    return place


def _running(driver: Driver, address: ServeAddress) -> _Server:
    server = _servers.get(address)
    if server is not None and server.process == os.getpid():
        if server.lives:
            return server
        server.end()
    server = _servers[address] = _Server(driver, address)
    return server


def forget(place: Place) -> None:
    """End what the tasks of a plan may ask for; for a plan that was kept."""
    with _lock, suppress(StorageError):  # that has ended with its server
        for server in _servers.values():
            if server.process == os.getpid() and server.lives:
                server.forget(place)
