"""examples/web: gunicorn's processes take orders, a worker handles them, and nobody's death loses one."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from gunicorn.config import KNOWN_SETTINGS

from holdfast import PersistentQueue, QueueService
from support.processes.threads import wait_until
from support.service.consumers import lives

FLAGS = {flag for setting in KNOWN_SETTINGS for flag in setting.cli or ()}
NO_CONTROL_SOCKET = ["--no-control-socket"] if "--no-control-socket" in FLAGS else []
"""Newer versions of gunicorn make one in the home directory."""

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "web"
ORDERS = 200
CUSTOMERS = 6
SECONDS = 60


class Shop:
    """The example in a directory of its own, on a port of its own."""

    def __init__(self, root: Path) -> None:
        self.data, self.ledger, self._log = root / "data", root / "ledger", root / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._environ = {
            **os.environ,
            "SHOP_DATA": str(self.data),
            "SHOP_LEDGER": str(self.ledger),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    @contextmanager
    def runs(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a Python module in the directory of the example; what is left of it at the end is killed."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=EXAMPLE,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a group, so that nothing of it can be left over
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(SECONDS)

    @contextmanager
    def serves(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the web application, with two processes of two threads."""
        options = ("--workers", "2", "--threads", "2", "--bind", f"127.0.0.1:{self.port}", "app:application")
        with self.runs("gunicorn", *NO_CONTROL_SOCKET, *options) as server:
            wait_until(self._listens, SECONDS)
            yield server
            stop(server)

    @contextmanager
    def works(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the worker."""
        with self.runs("holdfast.cli", "work", "tasks:service", *options) as worker:
            yield worker

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def post(self, body: object, path: str = "/orders") -> tuple[int, dict[str, object]]:
        """Send a request, and return the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def handled(self) -> list[int]:
        """Return the numbers of the orders that were handled."""
        return [int(line.split()[0]) for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def waiting(self) -> int:
        """Return how many orders nobody has acknowledged yet."""
        with PersistentQueue(self.data / "orders", mode="read_only") as queue:
            return queue.stats().depth

    @property
    def log(self) -> str:
        """What all processes have written."""
        return self._log.read_text()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """One that has no orders yet."""
    return Shop(tmp_path)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and see that it does so well."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


def children(pid: int) -> list[int]:
    """Return the processes that one has started, as far as the system says."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["threads", "processes"])
def test_every_accepted_order_is_handled_though_the_worker_is_killed(shop: Shop, options: tuple[str, ...]) -> None:
    """In the middle of it, by SIGKILL, and started again later."""
    with shop.serves() as server, ThreadPoolExecutor(CUSTOMERS) as customers:
        with shop.works(*options) as worker:
            answers = [customers.submit(order_until_accepted, shop, number) for number in range(ORDERS)]
            wait_until(lambda: len(set(shop.handled())) > ORDERS // 4, SECONDS)
            helpers = children(worker.pid)
            worker.kill()
            worker.wait(SECONDS)
            wait_until(lambda: not any(map(lives, helpers)), SECONDS)
        with shop.works(*options) as worker:
            offsets = [each.result(SECONDS) for each in answers]
            wait_until(lambda: set(shop.handled()) == set(range(ORDERS)), SECONDS)
            wait_until(lambda: shop.waiting() == 0, SECONDS)  # what the first one had handled comes to this one again
            stop(worker)
        web_processes = children(server.pid)
    assert sorted(offsets) == list(range(ORDERS))
    assert not any(map(lives, web_processes))
    with QueueService(shop.data) as service:
        stats = service.queue("orders").stats()
        assert (stats.depth, stats.dead, stats.lost, stats.next_offset) == (0, 0, 0, ORDERS)
    assert "Traceback" not in shop.log, shop.log


def order_until_accepted(shop: Shop, number: int) -> object:
    """Order one thing; again where there was no room for it just then, as a browser would. Return its offset."""
    deadline = time.monotonic() + SECONDS
    while True:
        status, answer = shop.post({"number": number, "item": "book"})
        if status == 202:
            return answer["offset"]
        assert status == 503, answer
        assert time.monotonic() < deadline


def test_the_application_says_what_is_wrong_with_a_request(shop: Shop) -> None:
    """Nothing is put, not even a queue is made; what makes no sense to the handler becomes a dead letter."""
    with shop.serves():
        assert shop.post({"number": 1}, "/elsewhere")[0] == 404
        status, answer = shop.post({"number": "one", "item": "book"})
        assert (status, answer["error"]) == (400, "Expected `int`, got `str` - at `$.number`")
        assert shop.post({"number": 1, "item": "x" * 20_000})[0] == 413
        assert not (shop.data / "orders").exists()
        assert shop.post({"number": 1, "item": ""}) == (202, {"offset": 0})
        assert shop.post({"number": 1, "item": ""}) == (202, {"offset": 0})
    with shop.works() as worker:
        wait_until(lambda: "dead letter" in shop.log, SECONDS)
        stop(worker)
    with QueueService(shop.data) as service:
        (letter,) = service.queue("orders").dead.list()
        assert (letter.reason, letter.detail) == ("rejected", "nothing was ordered")
