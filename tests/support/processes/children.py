"""Real processes for tests: forked children that can be killed, and scripts that run on their own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]


class Child:
    """A forked process that runs one function and never returns into the test.

    Parameters
    ----------
    work : callable
        What it does. The process ends with 0 behind it, with 1 where it raises.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._status: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # queues have threads; the child does without
            self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                work()
                status = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGSTOP, and return once all its threads stand still: until then it may answer."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status is None

    def wait(self, seconds: float = 30) -> int:
        """Return how it ended: the exit status, or minus the number of the signal; killed when it takes too long."""
        deadline = time.monotonic() + seconds
        while self.is_alive():
            if time.monotonic() > deadline:
                self.kill()
                os.waitpid(self.pid, 0)
                self._status = -signal.SIGKILL
                raise TimeoutError(f"process {self.pid} did not end within {seconds} s")
            time.sleep(0.001)
        assert self._status is not None
        return self._status


@contextlib.contextmanager
def child(work: Callable[[], object]) -> Iterator[Child]:
    """Run ``work`` in a forked process, which is dead at the latest when the block ends."""
    process = Child(work)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run_script(source: str, *arguments: object, seconds: float = 60) -> str:
    """Run a Python script in a process of its own and return what it printed; raises AssertionError where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 0, f"the script ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Signal:
    """A pipe on which one process tells another that something has happened."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def send(self, text: str = "x") -> None:
        """Say it, as one line."""
        os.write(self._writer, text.encode() + b"\n")

    def wait(self, seconds: float = 30) -> str:
        """Return the next line, once there is one; raises TimeoutError where there is none."""
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._reader], [], [], seconds)
            if not ready:
                raise TimeoutError(f"the other process said nothing for {seconds} s, after {line!r}")
            line += os.read(self._reader, 1)
        return line.decode().rstrip("\n")

    def close(self) -> None:
        """Let go of both ends."""
        os.close(self._reader)
        os.close(self._writer)
