"""What is measured of a queue, each in a process of its own: rates for a fixed time, so that slow ones take no longer.

``python -m benchmarks.peers.columns PEER COLUMN FOLDER SECONDS`` prints one figure.
"""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.measuring.load import BATCH
from benchmarks.peers.peer import Handle, Peer, UnavailableError
from benchmarks.peers.queues import PEERS

SIZE = 2_000
FILLED = 20_000
"""Messages that wait for those who take: at most, or what a second puts."""

THREADS = 8
POLL_SECONDS = 0.001
"""Between two looks for a message, for a queue that cannot wait for another process."""

LATENCIES = 60
PAUSE_SECONDS = 0.01

_NUMBER = struct.Struct("<d")
_REST = bytes(random.Random(0).choices(b"abcdefghijklmnopqrstuvwxyz0123456789", k=SIZE - 16))


def numbered(number: int) -> bytes:
    """Return a message that names its number: text, since some queues take nothing else."""
    return b"%016d" % number + _REST


LAST = numbered(1)
"""Of a producer's."""


def number_of(payload: bytes) -> int:
    """Return the number of a message."""
    return int(payload[:16])


def _for_seconds(seconds: float, step: Callable[[], int]) -> float:
    """Repeat a step that says how many messages it moved; return how many a second."""
    count, start = 0, time.perf_counter()
    end = start + seconds
    while (now := time.perf_counter()) < end:
        moved = step()
        if not moved:
            break
        count += moved
    return count / (now - start)


def _puts(handle: Handle) -> Callable[[], int]:
    put, payload = handle.put, numbered(0)

    def step() -> int:
        for _ in range(10):
            put(payload)
        return 10

    return step


def _filled(handle: Handle) -> int:
    """Fill a queue with numbered messages; return how many."""
    end, count = time.perf_counter() + 1, 0
    while count < FILLED and time.perf_counter() < end:
        payloads = [numbered(count + each) for each in range(BATCH)]
        if handle.put_many is not None:
            handle.put_many(payloads)
        else:
            for payload in payloads:
                handle.put(payload)
        count += BATCH
    return count


def _in_order(taken: Sequence[bytes]) -> None:
    """Check that nothing is missing and nothing is doubled."""
    if [number_of(payload) for payload in taken] != list(range(len(taken))):
        raise UnavailableError("it hands out other messages than were put, or in another order")


# -- One thread ------------------------------------------------------------------------------------------------------


def put(peer: Peer, folder: Path, seconds: float) -> float:
    """Put one by one."""
    handle = peer.open(folder, False)
    return _for_seconds(seconds, _puts(handle))


def put_many(peer: Peer, folder: Path, seconds: float) -> float | None:
    """Put a hundred at a time."""
    verb = peer.open(folder, False).put_many
    if verb is None:
        return None
    payloads = [numbered(0)] * BATCH

    def step() -> int:
        verb(payloads)
        return BATCH

    return _for_seconds(seconds, step)


def get(peer: Peer, folder: Path, seconds: float) -> float:
    """Take one by one."""
    handle, taken = peer.open(folder, False), list[bytes]()
    _filled(handle)

    def step() -> int:
        payload = handle.get()
        if payload is None:
            return 0
        taken.append(payload)
        return 1

    rate = _for_seconds(seconds, step)
    _in_order(taken)
    return rate


def get_many(peer: Peer, folder: Path, seconds: float) -> float | None:
    """Take a hundred at a time."""
    handle, taken = peer.open(folder, False), list[bytes]()
    verb = handle.get_many
    if verb is None:
        return None
    left = _filled(handle)

    def step() -> int:
        nonlocal left
        if not left:
            return 0
        payloads = verb(BATCH)
        taken.extend(payloads)
        left -= len(payloads)
        return len(payloads)

    rate = _for_seconds(seconds, step)
    _in_order(taken)
    return rate


def durable(peer: Peer, folder: Path, seconds: float) -> float | None:
    """Put one by one, each on the disk before the next."""
    return _for_seconds(seconds, _puts(peer.open(folder, True))) if peer.is_durable else None


# -- Threads and processes -------------------------------------------------------------------------------------------


def durable_threads(peer: Peer, folder: Path, seconds: float) -> float | None:
    """The same from eight threads."""
    if not peer.is_durable or peer.threads == "no":
        return None
    shared = peer.open(folder, True)
    rates: list[float] = []

    def work() -> None:
        handle = shared if peer.threads == "share" else peer.open(folder, True)
        rates.append(_for_seconds(seconds, _puts(handle)))

    _in_threads([work] * THREADS)
    return sum(rates)


def two_threads(peer: Peer, folder: Path, seconds: float) -> float | None:
    """One thread puts, another one takes: what arrives, until the last one has."""
    if peer.threads == "no":
        return None
    shared, rates = peer.open(folder, False), list[float]()

    def put_all() -> None:
        _put_for(shared if peer.threads == "share" else peer.open(folder, False), seconds)

    def take_all() -> None:
        rates.append(_take_all(shared if peer.threads == "share" else peer.open(folder, False)))

    _in_threads([put_all, take_all])
    return rates[0]


def two_processes(peer: Peer, folder: Path, seconds: float) -> float | None:
    """The same with a process each."""
    if not peer.processes:
        return None
    handle = peer.open(folder, False)
    with _other(peer, "producing", folder, seconds):
        return _take_all(handle)


def latency(peer: Peer, folder: Path, seconds: float) -> float | None:
    """From before a put to the message in another process, in microseconds: the median."""
    if not peer.processes:
        return None
    handle, delays = peer.open(folder, False), list[float]()
    wait = handle.wait or _polled(handle)
    with _other(peer, "ticking", folder, seconds):
        for _ in range(LATENCIES):
            sent = int(wait()[:16])
            delays.append((time.monotonic_ns() - sent) / 1e3)
    return median(delays)


def producing(peer: Peer, folder: Path, seconds: float) -> float:
    """Put for so long, as the other process."""
    handle = peer.open(folder, False)
    _put_for(handle, seconds)
    handle.close()
    return seconds


def ticking(peer: Peer, folder: Path, seconds: float) -> float:
    """Put the time now and then, as the other process."""
    handle, draw = peer.open(folder, False), random.Random(1)
    for _ in range(LATENCIES):
        time.sleep(PAUSE_SECONDS * (0.5 + draw.random()))
        handle.put(numbered(time.monotonic_ns()))
    handle.close()
    return LATENCIES


def _polled(handle: Handle) -> Callable[[], bytes]:
    def wait() -> bytes:
        while (payload := handle.get()) is None:
            time.sleep(POLL_SECONDS)
        return payload

    return wait


def _put_for(handle: Handle, seconds: float) -> None:
    """Put for so long, and then the last one."""
    put, payload, end = handle.put, numbered(0), time.perf_counter() + seconds
    while time.perf_counter() < end:
        put(payload)
    put(LAST)


def _take_all(handle: Handle) -> float:
    """Take what is there, and wait if nothing is, up to the last one; return how many a second."""
    get, wait = handle.get, handle.wait or _polled(handle)
    count, payload, start = 0, wait(), time.perf_counter()
    while payload != LAST:
        count += 1
        payload = get() or wait()
    return count / (time.perf_counter() - start)


def _in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread; an error of one of them ends the process."""
    threading.excepthook = lambda args: sys.exit(1)
    threads = [threading.Thread(target=work) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def command(peer: Peer, column: str, folder: Path, seconds: float) -> list[str]:
    """Return what measures one figure in a process of its own."""
    if peer.program:
        return [peer.program, column, str(folder), str(seconds), str(SIZE), str(BATCH), str(FILLED)]
    return [sys.executable, "-m", "benchmarks.peers.columns", peer.name, column, str(folder), str(seconds)]


def _other(peer: Peer, column: str, folder: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(command(peer, column, folder, seconds), stdout=subprocess.PIPE, text=True)


COLUMNS = {
    "put": put,
    f"put by {BATCH}": put_many,
    "get": get,
    f"get by {BATCH}": get_many,
    "durable put, 1 thread": durable,
    f"durable put, {THREADS} threads": durable_threads,
    "two threads": two_threads,
    "two processes": two_processes,
    "latency": latency,
}
"""What the table shows, and what measures it."""

_OTHERS = {"producing": producing, "ticking": ticking}


def main(name: str, column: str, folder: str, seconds: str) -> None:
    """Measure one figure of one queue."""
    peer = next(each for each in PEERS if each.name == name)
    measure = COLUMNS.get(column) or _OTHERS[column]
    try:
        print(measure(peer, Path(folder), float(seconds)), flush=True)
    except UnavailableError as error:
        print(f"unavailable: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
