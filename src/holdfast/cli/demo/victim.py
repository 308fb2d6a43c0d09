"""A process that is killed at random moments and started again at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.demo.journal import JournalReader

POLL_SECONDS = 0.001
STALL_SECONDS = 60.0
"""A process that does nothing for so long hangs."""


class ChildFailedError(Exception):
    """A process ended by itself before its work was done."""


@dataclass(frozen=True)
class Kill:
    """One planned kill: once so many events are done, and a little later."""

    done_count: int
    delay_seconds: float


def plan_kills(dice: random.Random, kill_count: int, event_count: int, delay_seconds_max: float) -> list[Kill]:
    """Spread kills over the work, each up to ``delay_seconds_max`` behind the progress that makes it due.

    One of four comes right after another one, without progress between them: it hits a process that recovers.
    """
    after_kill_count = kill_count // 4
    moments = dice.choices(range(event_count // 20, max(1, event_count * 19 // 20)), k=kill_count - after_kill_count)
    moments += dice.choices(moments, k=after_kill_count)
    return [Kill(moment, dice.uniform(0, delay_seconds_max)) for moment in sorted(moments)]


class Victim:
    """One role of the demo, played by one process after another.

    Parameters
    ----------
    role : str
        The name that messages give it.
    program : sequence
        What Python is started with: the module, and its arguments.
    journal : Path
        Where it notes what it did.
    kills : list of Kill
        In the order of their moments.
    take : callable
        Is given each line of the journal.

    Attributes
    ----------
    kill_count, done_count : int
        How often it was killed, and how many events it has done.
    is_owner : bool
        Whether the process owns a shared queue.
    owner_kill_count : int
        How often it did when it was killed.
    ended : bool
        Whether all its work is done, and noted.
    """

    def __init__(
        self,
        role: str,
        program: Sequence[object],
        journal: Path,
        kills: list[Kill],
        take: Callable[[list[str]], None],
    ) -> None:
        self.role = role
        self.kill_count = 0
        self.done_count = 0
        self.owner_kill_count = 0
        self.ended = False
        self._kills = kills
        self._take = take
        self._command = [sys.executable, *map(str, program)]
        self._journal = JournalReader(journal)
        self._start()

    def step(self) -> bool:
        """Read what the process has done, and kill it where that is due; return whether it was killed."""
        status = self._process.poll()
        self._read_journal()
        if status:
            raise ChildFailedError(f"the {self.role} ended with exit status {status}")
        self.ended = status == 0
        return not self.ended and self._kill_is_due() and self._kill_and_restart(self._kills.pop(0))

    def close(self) -> None:
        """End the process, whatever it does."""
        end(self._process)
        self._journal.close()

    def _start(self) -> None:
        self._is_opening = self.is_owner = False
        # A session of its own: Ctrl-C reaches the demo, and the demo ends its processes.
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)

    def _kill_is_due(self) -> bool:
        return bool(self._kills) and self._is_opening and self.done_count >= self._kills[0].done_count

    def _kill_and_restart(self, kill: Kill) -> bool:
        time.sleep(kill.delay_seconds)
        self._process.kill()
        if self._process.wait() != -signal.SIGKILL:
            return False  # it was faster, and has ended
        self._read_journal()
        self.kill_count += 1
        self.owner_kill_count += self.is_owner
        self._start()
        return True

    def _read_journal(self) -> None:
        for words in self._journal.read_new():
            self._is_opening |= words[0] == "opening"
            if words[0] in ("put", "acked", "moved"):
                self.done_count = max(self.done_count, int(words[1]) + 1)
            self.is_owner |= words[0] == "owner"
            if words[0] != "opened" or self.kill_count:  # the first opening has nothing to recover from
                self._take(words)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and return once it is gone.

    An interrupt inside ``Popen.poll`` can leave its lock held, and ``Popen.wait`` then waits for that lock for ever.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError, ChildProcessError):  # poll was interrupted behind its waitpid
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
        process.returncode = -signal.SIGKILL


def print_now(line: str) -> None:
    """Print one line, in order with what other processes print."""
    print(line, flush=True)


def watch(
    victims: Sequence[Victim],
    describe: Callable[[], str],
    *,
    say: Callable[[str], None] = print_now,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Kill when it is due and say so, with what ``describe`` says of the work, until all have ended.

    ``check`` is called all the time, and may end it by an exception.
    """
    started = last_progress = time.monotonic()
    before = None
    while not all(victim.ended for victim in victims):
        check()
        for victim in victims:
            before_count = victim.owner_kill_count
            if victim.step():
                what = ", the owner" if victim.owner_kill_count > before_count else ""
                at = f"{time.monotonic() - started:6.2f} s"
                say(f"{at}  kill -9 {victim.role}{what}   {describe()}")
        now = [(victim.done_count, victim.ended) for victim in victims]
        if now != before:
            before, last_progress = now, time.monotonic()
        elif time.monotonic() - last_progress > STALL_SECONDS:
            raise ChildFailedError(f"nothing was done for {STALL_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
