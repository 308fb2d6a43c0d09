"""One run: both processes at work, a look every second, everything drained, and each message accounted for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import verify
from proof.soak.ledger import PAYLOAD_BYTES_MEAN, Ledger
from proof.soak.load import DATA_FILE_BYTES, PINNED_COUNT, SHARES, STREAM_BYTES, Load
from proof.soak.samples import Sample, Samples, look
from proof.soak.second_process import PUTS_PER_SECOND, REOPEN_SECONDS, SecondProcess
from support.processes.children import Child

BACKLOG_SECONDS = 2
BOUND_SECONDS = 6
DRAIN_SECONDS_MAX = 60.0
PIN_SECONDS_MAX = 5.0
_SPARES = 3
_FRAME_BYTES_MEAN = PAYLOAD_BYTES_MEAN + 40


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done.

    Attributes
    ----------
    seconds : float
        How long the load runs.
    rate : float, messages/s
        How many are put by the fast producers; it is no more than the machine does with ease, so that backlog is one of
        the figures which stay level.
    look_seconds : float
        How often the figures are taken.
    """

    seconds: float
    rate: float
    look_seconds: float = 1.0

    @property
    def backlog(self) -> int:
        """How many messages the slow group stays behind."""
        return int(self.rate * BACKLOG_SECONDS)

    @property
    def maxsize(self) -> int:
        """Bound of the queue: most messages that any group may have unfinished."""
        return int(self.rate * BOUND_SECONDS)

    @property
    def pin_seconds(self) -> float:
        """How long messages are held on to."""
        return min(PIN_SECONDS_MAX, self.seconds / 5)

    @property
    def lane_count_max(self) -> int:
        """Most messages that one producer puts."""
        return int((self.seconds + 10) * (self.rate * max(SHARES.values()) + 50 * PUTS_PER_SECOND))

    @property
    def data_bytes_max(self) -> int:
        """What the documents allow data files to take: those of the backlog, and one for each message that stays.

        What stays is pinned by either group, waits for a second delivery, for its time, or as a dead letter; at most
        the messages of a few seconds can do that, so it is never more than the files of those seconds.
        """
        bytes_per_second = self.rate * _FRAME_BYTES_MEAN + STREAM_BYTES
        waiting_seconds = 2 * self.pin_seconds + REOPEN_SECONDS / 2
        staying = min(4 * PINNED_COUNT * DATA_FILE_BYTES, bytes_per_second * waiting_seconds)
        backlog = self.maxsize * _FRAME_BYTES_MEAN + BOUND_SECONDS * STREAM_BYTES
        return int(backlog + staying + (2 + _SPARES) * DATA_FILE_BYTES)


@dataclass(slots=True)
class Result:
    """What a run gave.

    Attributes
    ----------
    samples : Samples
        The looks, in order.
    put_count : int
        Messages put and acknowledged.
    wrong : list of str
        What is lost, doubled, damaged or left over; what a job raised.
    """

    samples: Samples = field(default_factory=Samples)
    put_count: int = 0
    wrong: list[str] = field(default_factory=list)


def soak(plan: Plan, path: Path, tell: Callable[[Sample], object] = lambda sample: None) -> Result:
    """Run it in an empty directory; ``tell`` is called with each look."""
    ledger = Ledger(path / "ledger", plan.lane_count_max)
    second = SecondProcess(path, ledger, plan.backlog, plan.maxsize, plan.pin_seconds)
    result = Result()
    load = Load(path, ledger, plan.rate, plan.maxsize, plan.pin_seconds)
    load.work.groups.create("slow")
    load.close()  # a child that is forked has no open queue
    child = Child(second.run)
    try:
        load = Load(path, ledger, plan.rate, plan.maxsize, plan.pin_seconds)
        try:
            second.begin()
            load.start()
            _watch(plan, path, load, child, result, tell)
            if not load.failures:
                load.stop_putting()
                second.stop_putting()
                second.drain()
                load.drain(DRAIN_SECONDS_MAX)
                if child.wait(DRAIN_SECONDS_MAX):
                    result.wrong.append("the second process failed: see above")
            result.wrong += [repr(error) for error in load.failures]
        finally:
            load.close()
    except (TimeoutError, AssertionError) as error:
        result.wrong.append(repr(error))
    finally:
        child.kill()
        child.wait()
        second.close()
    if not result.wrong:
        result.put_count = ledger.put_count()
        result.wrong += ledger.judge()
        result.wrong += _left_over(path)
    ledger.close()
    return result


def _watch(plan: Plan, path: Path, load: Load, child: Child, result: Result, tell: Callable[[Sample], object]) -> None:
    """Look again and again until the time is over or somebody has failed."""
    started = time.monotonic()
    queues = [path / "work", path / "results"]
    for number in range(1, int(plan.seconds / plan.look_seconds) + 1):
        time.sleep(max(0.0, started + number * plan.look_seconds - time.monotonic()))
        if load.failures:
            return
        if not child.is_alive():
            result.wrong.append("the second process has ended before its time: see above")
            return
        sample = look(time.monotonic() - started, os.getpid(), child.pid, queues)
        result.samples.add(sample)
        tell(sample)


def _left_over(path: Path) -> list[str]:
    """Return what is damaged, or stands there still, though all is finished and closed."""
    wrong = []
    for queue in (path / "work", path / "results"):
        report = verify(queue)
        if not report.ok:
            wrong.append(f"{queue.name}: {report}")
        data = sorted(entry.name for entry in (queue / "data").iterdir())
        if len(data) > 1:
            wrong.append(f"{queue.name}: all is finished, and {len(data)} data files are left: {data[:3]} ...")
        waiting = [entry.name for entry in queue.glob("prepared/*.batch")]
        if waiting:
            wrong.append(f"{queue.name}: {len(waiting)} files of transactions are left: {waiting[:3]}")
    return wrong
