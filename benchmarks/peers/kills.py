"""What a queue loses if the process that uses it is killed: counted, not taken from its documentation.

``python -m benchmarks.peers.kills PEER putting|taking|draining FOLDER`` is the process: it prints the number of each
message once its verb has returned.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measuring.load import BATCH
from benchmarks.peers.columns import SIZE, number_of, numbered
from benchmarks.peers.peer import Peer, UnavailableError
from benchmarks.peers.queues import PEERS

FILLED = 3_000
SECONDS_MIN, SECONDS_MAX = 0.05, 0.3


def work(peer: Peer, what: str, folder: Path) -> None:
    """Put, take until killed, or take what is left; print each number."""
    handle = peer.open(folder, False)
    if what == "draining":
        while (payload := handle.get()) is not None:
            _say(number_of(payload))
        handle.close()
        return
    if what == "taking":
        for number in range(FILLED):
            handle.put(numbered(number))
    number = 0
    while True:
        if what == "putting":
            handle.put(numbered(number))
            _say(number)
            number += 1
        else:
            payload = handle.get()
            if payload is None:
                time.sleep(1)  # the kill comes
            else:
                _say(number_of(payload))


def _say(number: int) -> None:
    os.write(1, b"%d\n" % number)


def verdict(peer: Peer, base: Path, kills: int) -> str:
    """Kill so many processes that put and so many that take; return what the table says of it."""
    draw, lost, again, total = random.Random(7), 0, 0, 0
    for what in ("putting", "taking") * kills:
        with tempfile.TemporaryDirectory(dir=base) as folder:
            told = _killed(peer, what, Path(folder), SECONDS_MIN + (SECONDS_MAX - SECONDS_MIN) * draw.random())
            left = _run(peer, "draining", Path(folder))
        total += len(told)
        if what == "putting":
            lost += len(set(told) - set(left))
        else:
            again += len(set(told) & set(left))
            missing = FILLED - len(set(told) | set(left))
            lost += max(0, missing - 1)  # one was taken, and the kill came before its number was printed
    comes_again = f", {again:,} of the taken came again" if again > kills else ""
    return f"**no**: lost {lost:,} of {total:,}{comes_again}" if lost else f"yes{comes_again}"


def _killed(peer: Peer, what: str, folder: Path, seconds: float) -> list[int]:
    with _start(peer, what, folder) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(seconds if what == "putting" else seconds / 10)
        process.kill()
        lines = (first + process.stdout.read()).splitlines()
    if not lines:
        raise UnavailableError(f"it ended while {what}")
    return [int(line) for line in lines]


def _run(peer: Peer, what: str, folder: Path) -> list[int]:
    with _start(peer, what, folder) as process:
        output, _ = process.communicate(timeout=60)
    return [int(line) for line in output.splitlines()]


def _start(peer: Peer, what: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [peer.program, what, str(folder), "0", str(SIZE), str(BATCH), str(FILLED)]
        if peer.program
        else [sys.executable, "-m", "benchmarks.peers.kills", peer.name, what, str(folder)],
        env=os.environ | peer.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    work(next(each for each in PEERS if each.name == sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
