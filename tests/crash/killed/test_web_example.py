"""examples/web: gunicorn's processes take orders and handle them, and no death of a process loses or doubles one."""

from __future__ import annotations

import http.client
import json
import os
import re
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

from holdfast import PersistentQueue, QueueNotFoundError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.inspect.members import Member, list_members
from support.processes.threads import wait_until
from support.service.consumers import lives

FLAGS = {flag for setting in KNOWN_SETTINGS for flag in setting.cli or ()}
NO_CONTROL_SOCKET = ["--no-control-socket"] if "--no-control-socket" in FLAGS else []
"""Newer versions of gunicorn make one in the home directory."""

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "web"
ORDERS = 200
CUSTOMERS = 6
SECONDS = 60
CUT_OFF = re.compile(
    r'Traceback \(most recent call last\):\n  File "<string>", line 1.{0,900}?EOFError: Ran out of input\n', re.DOTALL
)
"""A helper says so that is starting while its worker is killed: multiprocessing hands it what to do through a pipe."""


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
    def serves(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the web application, with four processes of two threads; each has consumers too."""
        words = ("--workers", "4", "--threads", "2", "--bind", f"127.0.0.1:{self.port}", *options, "app:application")
        with self.runs("gunicorn", *NO_CONTROL_SOCKET, *words) as server:
            wait_until(self._listens, SECONDS)
            wait_until(lambda: len(self.members()) >= 4, SECONDS)
            yield server

    @contextmanager
    def works(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker beside the web processes."""
        with self.runs("holdfast.cli", "work", "shop:service", *options) as worker:
            yield worker

    def members(self) -> list[Member]:
        """Return the handles that share the queue, if there is one yet."""
        try:
            return list_members(OsStorage(), self.data / "orders")
        except QueueNotFoundError:
            return []

    def owner(self) -> int:
        """Return the process that owns the queue."""
        wait_until(lambda: any(each.is_owner for each in self.members()), SECONDS)
        (pid,) = {each.pid for each in self.members() if each.is_owner}
        assert pid is not None
        return pid

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

    def entries(self) -> list[tuple[int, int]]:
        """Return the number of each order that was handled, and the process that has done it."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [(int(line.split()[0]), int(line.split()[2])) for line in lines]

    def handled(self) -> list[int]:
        """Return the numbers of the orders that were handled."""
        return [number for number, _ in self.entries()]

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


def test_every_accepted_order_is_handled_though_owners_are_killed(shop: Shop) -> None:
    """Twice in the middle of it, by SIGKILL: another process of the server owns the queue then, and handles on."""
    with shop.serves() as server, ThreadPoolExecutor(CUSTOMERS) as customers:
        answers = [customers.submit(order_until_accepted, shop, number) for number in range(ORDERS)]
        killed = set[int]()
        for share in (4, 2):
            wait_until(lambda share=share: len(set(shop.handled())) > ORDERS // share, SECONDS)  # type: ignore[misc]
            owner = shop.owner()
            assert owner in children(server.pid)
            os.kill(owner, signal.SIGKILL)
            killed.add(owner)
        offsets = [each.result(SECONDS) for each in answers]
        wait_until(lambda: set(shop.handled()) == set(range(ORDERS)), SECONDS)
        wait_until(lambda: shop.waiting() == 0, SECONDS)  # what a killed one has handled comes again
        assert shop.owner() not in killed
        handlers = {pid for _, pid in shop.entries()}
        web_processes = children(server.pid)
        stop(server)
    assert len(killed) == 2
    assert len(handlers) >= 4, "each of them has handled some"
    assert not any(map(lives, web_processes))
    check(shop, offsets)


def test_every_accepted_order_is_handled_though_the_application_was_loaded_before_the_fork(shop: Shop) -> None:
    """So the queue is open in the process that forks the others, which is its owner; it is killed and started again."""
    with ThreadPoolExecutor(CUSTOMERS) as customers:
        with shop.serves("--preload") as server:
            assert shop.owner() == server.pid
            answers = [customers.submit(order_until_accepted, shop, number) for number in range(ORDERS)]
            wait_until(lambda: len(set(shop.handled())) > ORDERS // 4, SECONDS)
            web_processes = children(server.pid)
            server.kill()
            server.wait(SECONDS)
            wait_until(lambda: not any(map(lives, web_processes)), SECONDS)  # gunicorn's do not outlive it
        with shop.serves("--preload") as server:
            offsets = [each.result(SECONDS) for each in answers]
            wait_until(lambda: set(shop.handled()) == set(range(ORDERS)), SECONDS)
            wait_until(lambda: shop.waiting() == 0, SECONDS)
            stop(server)
    check(shop, offsets)


def test_workers_beside_the_web_processes_may_come_and_go(shop: Shop) -> None:
    """With worker processes of their own; one is killed with what it has in hand."""
    with shop.serves() as server, ThreadPoolExecutor(CUSTOMERS) as customers:
        with shop.works("--processes", "2") as worker:
            wait_until(lambda: worker.pid in {each.pid for each in shop.members()}, SECONDS)
            answers = [customers.submit(order_until_accepted, shop, number) for number in range(ORDERS)]
            wait_until(lambda: len(set(shop.handled())) > ORDERS // 4, SECONDS)
            helpers = children(worker.pid)
            worker.kill()
            worker.wait(SECONDS)
            wait_until(lambda: not any(map(lives, helpers)), SECONDS)
        offsets = [each.result(SECONDS) for each in answers]
        wait_until(lambda: set(shop.handled()) == set(range(ORDERS)), SECONDS)
        wait_until(lambda: shop.waiting() == 0, SECONDS)
        stop(server)
    check(shop, offsets)


def check(shop: Shop, offsets: list[object]) -> None:
    """Each order was put once, although customers ordered again; nothing is left, dead or lost."""
    assert sorted(offsets) == list(range(ORDERS))  # type: ignore[type-var]
    with PersistentQueue(shop.data / "orders", mode="read_only") as queue:
        stats = queue.stats()
        assert (stats.depth, stats.dead, stats.lost, stats.next_offset) == (0, 0, 0, ORDERS)
    assert "Traceback" not in CUT_OFF.sub("", shop.log), shop.log


def order_until_accepted(shop: Shop, number: int) -> object:
    """Order one thing, and again if that fails, as a browser would; return its offset."""
    deadline = time.monotonic() + SECONDS
    while True:
        assert time.monotonic() < deadline
        try:
            status, answer = shop.post({"number": number, "item": "book"})
        except (OSError, http.client.HTTPException):  # the process that had the request was killed
            time.sleep(0.05)
            continue
        if status == 202:
            return answer["offset"]
        assert status == 503, answer


def test_the_application_says_what_is_wrong_with_a_request(shop: Shop) -> None:
    """Nothing is put; what makes no sense to the handler becomes a dead letter."""
    with shop.serves() as server:
        assert shop.post({"number": 1}, "/elsewhere")[0] == 404
        status, answer = shop.post({"number": "one", "item": "book"})
        assert (status, answer["error"]) == (400, "Expected `int`, got `str` - at `$.number`")
        assert shop.post({"number": 1, "item": "x" * 20_000})[0] == 413
        assert shop.waiting() == 0
        assert shop.post({"number": 1, "item": ""}) == (202, {"offset": 0})
        assert shop.post({"number": 1, "item": ""}) == (202, {"offset": 0})
        wait_until(lambda: shop.waiting() == 0, SECONDS)
        stop(server)
    with PersistentQueue(shop.data / "orders", mode="read_only") as queue:
        (letter,) = queue.dead.list()
        assert (letter.reason, letter.detail) == ("rejected", "nothing was ordered")
