"""Interruptions of those who wait: for a message, and for room."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from proof.interruptions.locks import locked
from support.builders.handles import handle_of
from support.builders.jobs import Jobs
from support.processes.interruptions import without_hanging
from support.processes.threads import Threads, wait_until


def _interrupted_while(call: Callable[[], object], waits: Callable[[], object]) -> bool:
    """Make a call in the main thread, and interrupt it by a signal once it waits; return whether that came out."""
    main = threading.main_thread().ident
    assert main is not None
    assert threading.get_ident() == main, "signals go to the main thread"
    threads, is_over = Threads(), threading.Event()
    struck: list[int] = []

    def strike() -> None:
        wait_until(lambda: bool(waits()))
        while not is_over.is_set():  # one that comes just before Python begins to wait is seen with the next one
            signal.pthread_kill(main, signal.SIGINT)
            is_over.wait(0.05)

    def raise_once(number: int, frame: object) -> None:
        if not struck:
            struck.append(number)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, raise_once)
    try:
        threads.start(strike)
        call()
    except KeyboardInterrupt:
        return True
    finally:
        is_over.set()
        threads.join()
        signal.signal(signal.SIGINT, before)
    return False


def wait_for_a_message() -> None:
    """Interrupt a get that waits; the queue hands the next message to the next one."""
    with Jobs().open() as queue:
        bells = handle_of(queue).require_write_side().data_available
        assert _interrupted_while(queue.get, lambda: bells.waiting)
        assert not bells.waiting, "somebody waits still"
        assert not locked(queue)
        queue.put(b"next")
        assert without_hanging(lambda: queue.get(timeout=10)) == b"next"


def wait_for_space() -> None:
    """Interrupt a put that waits for room; it has put nothing."""
    with Jobs().open(maxsize=1) as queue:
        queue.put(b"first")
        assert _interrupted_while(
            lambda: queue.put(b"second"), lambda: handle_of(queue).capacity.space_available.waiting
        )
        assert not locked(queue)
        assert without_hanging(lambda: [queue.get(timeout=0), queue.put(b"third"), queue.get(timeout=0)]) == [
            b"first",
            1,
            b"third",
        ]


WAITS = (wait_for_a_message, wait_for_space)
