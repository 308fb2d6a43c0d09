"""``holdfast work``: a program's consumers, from the shell."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import QueueNotFoundError
from holdfast.service.queue_service import QueueService
from support.processes.cli import run, run_alone, started
from support.processes.threads import wait_until
from support.service.consumers import lives

SECONDS = 60

MODULE = """
import os, sys, time
from holdfast.service.queue_service import QueueService

service = QueueService("data", mode="shared", catalog=False)
orders = service.queue("orders", type=int, backoff=[])
handled = service.queue("handled", type=list[int])

@service.consumer("orders")
def handle(order: int) -> None:
    print("begun", order, os.getpid(), flush=True)
    while order < 0 and not os.path.exists("go-on"):
        time.sleep(0.005)
    service.queue("handled").put([order, os.getpid()])

def make():
    return service

nothing = QueueService("empty", catalog=False)
number = 7
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module with a service, in the working directory."""
    (tmp_path / "shop_tasks.py").write_text(MODULE)
    (tmp_path / "shop_broken.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in ("shop_tasks", "shop_broken"):
        module = sys.modules.pop(name, None)
        if module is not None:
            module.service.close()


def put(*orders: int) -> None:
    """Put orders, beside the processes that share the queue or alone."""
    with QueueService("data", mode="shared", catalog=False) as service:
        service.queue("orders", type=int).put_many(orders)


def take_handled() -> list[list[int]]:
    """Return number and process of each order that was handled; nobody works any more."""
    with QueueService("data", mode="exclusive", catalog=False) as service:
        queue = service.queue("handled", type=list[int])
        return [queue.receive().body for _ in range(queue.stats().depth)]


def begun(process: subprocess.Popen[bytes]) -> list[int]:
    """Return number and process of the next order that is begun."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()[1:]]


def test_it_runs_the_consumers_until_a_signal_and_lets_handlers_finish() -> None:
    """With exit code 0, and a line of log for begin and end."""
    put(1, -2)
    with started("work", "shop_tasks:service") as process:
        assert [begun(process)[0], begun(process)[0]] == [1, -2]
        process.send_signal(signal.SIGTERM)
        Path("go-on").touch()
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert "INFO holdfast: handling orders" in err.decode()
    assert "SIGTERM: stopping" in err.decode()
    assert err.decode().rstrip().endswith("stopped handling orders")
    assert take_handled() == [[1, process.pid], [-2, process.pid]]


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["threads", "processes"])
def test_a_second_signal_ends_it_at_once(options: tuple[str, ...]) -> None:
    """What ran is given back, uncounted, and nothing is left running."""
    put(-1)
    with started("work", "shop_tasks:make", *options) as process:
        _, pid = begun(process)
        assert (pid == process.pid) == (not options)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while b"stopping" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    wait_until(lambda: not lives(pid))
    with QueueService("data", mode="exclusive", catalog=False) as service:
        assert service.queue("orders", type=int).receive(timeout=SECONDS).delivery_count == 1
    assert take_handled() == []


def test_handlers_run_in_processes_that_import_the_module() -> None:
    """And put through the one that owns the queues."""
    put(*range(1, 21))
    with started("work", "shop_tasks:service", "--processes", "2", "--json") as process:
        wait_until(lambda: waiting("handled") == 20, SECONDS)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert lines[-1]["message"] == "stopped handling orders"
    handled = take_handled()
    assert sorted(number for number, _ in handled) == list(range(1, 21))
    assert process.pid not in {pid for _, pid in handled}


def test_worker_processes_end_when_their_owner_is_killed() -> None:
    """At once, whatever they do; the message comes again, counted, and is handled by the next."""
    put(-1)
    with started("work", "shop_tasks:service", "--processes", "1") as process:
        _, pid = begun(process)
        process.kill()
        process.wait(SECONDS)
        wait_until(lambda: not lives(pid), SECONDS)
    with QueueService("data", mode="exclusive", catalog=False) as service:
        assert service.queue("orders", type=int).receive(timeout=SECONDS).delivery_count == 2


def test_a_killed_worker_loses_nothing_and_its_messages_are_counted() -> None:
    """Those it had begun come again; those it had done do not."""
    put(1, 2, -3, 4)
    with started("work", "shop_tasks:service") as process:
        assert [begun(process)[0] for _ in range(3)] == [1, 2, -3]
        wait_until(lambda: waiting("orders") == 2, SECONDS)
        process.kill()
        process.wait(SECONDS)
    with QueueService("data", mode="exclusive", catalog=False) as service:
        order = service.queue("orders", type=int).receive(timeout=SECONDS)
        assert (order.body, order.delivery_count) == (-3, 2)
        order.release()
    Path("go-on").touch()
    with started("work", "shop_tasks:service") as process:
        wait_until(lambda: waiting("orders") == 0, SECONDS)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
    assert sorted(number for number, _ in take_handled()) == [-3, 1, 2, 4]


def test_a_script_without_a_main_guard_may_have_worker_processes(tmp_path: Path) -> None:
    """They import it, and its run() does nothing there."""
    script = MODULE.replace('@service.consumer("orders")', '@service.consumer("orders", processes=1)') + (
        "orders.raw.shutdown()\nservice.run()\n"
    )
    (tmp_path / "script.py").write_text(script)
    put(1, 2)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [number for number, _ in take_handled()] == [1, 2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["shop_tasks"], "MODULE:SERVICE is a module and a name in it"),
        (["no_shop:service"], "no module named 'no_shop'"),
        (["shop_tasks.more:service"], "no module named 'shop_tasks.more'"),
        (["shop_tasks:servic"], "shop_tasks has no 'servic': name its QueueService"),
        (["shop_tasks:number"], "shop_tasks:number is no QueueService, and makes none: it is 7"),
        (["shop_tasks:nothing", "--processes", "0"], "'--processes'"),
        (["shop_tasks:nothing", "--grace", "-1"], "'--grace'"),
        ([".shop:service"], "cannot name a module"),
    ],
)
def test_a_service_that_cannot_be_found_is_wrong_usage(words: list[str], says: str) -> None:
    """Said in one line, with what to name."""
    ran = run("work", *words, "--json")
    assert ran.code == (1 if "cannot name" in says else 64), ran
    assert says in json.loads(ran.err)["message"]


def test_a_service_without_consumers_is_an_error() -> None:
    """It would do nothing for ever."""
    ran = run_alone("work", "shop_tasks:nothing")
    assert (ran.code, ran.out) == (1, b"")
    assert ran.err == "error: nothing to run: register a handler with @service.consumer(queue)\n"


def test_what_is_wrong_inside_of_the_module_comes_as_it_is() -> None:
    """With its traceback: it is not about the name that was given here."""
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        run("work", "shop_broken:service")


def test_signals_mean_behind_run_what_they_meant_before(tmp_path: Path) -> None:
    """Where it is the main thread that runs."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with QueueService(tmp_path / "data", mode="exclusive", catalog=False) as service:

        @service.consumer("orders")
        def handle(order: int) -> None:
            os.kill(os.getpid(), order)

        orders = service.queue("orders", type=int)
        for number in (signal.SIGTERM, signal.SIGINT):
            orders.put(int(number))
            service.run()
            assert orders.stats().depth == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.timeout(30)
def test_a_signal_that_wakes_another_thread_than_the_main_one_is_heard(tmp_path: Path) -> None:
    """As one does that comes just before the main thread begins to wait: nothing interrupts that wait."""
    with QueueService(tmp_path / "data", mode="exclusive", catalog=False) as service:

        @service.consumer("orders")
        def handle(order: int) -> None:
            main = threading.main_thread().ident
            wait_until(lambda: sys._current_frames()[main].f_code.co_name == "_wait")  # type: ignore[index]
            time.sleep(0.05)  # until it is in the call that waits
            signal.pthread_kill(threading.get_ident(), order)

        orders = service.queue("orders", type=int)
        orders.put(int(signal.SIGTERM))
        service.run()
        assert orders.stats().depth == 0


def waiting(name: str) -> int:
    """Return how many messages of a queue are not done; less than none where there is no queue yet."""
    with QueueService("data", mode="exclusive", catalog=False) as service, suppress(QueueNotFoundError):
        return service.queue(name, mode="read_only").stats().depth
    return -1
