"""Position entries stored through a memory map, beside ``pwritev``: docs/adr/0072 has the figures and the decision.

``python -m benchmarks.studies.mapped_positions`` prints the ratios, with ``HOLDFAST_PURE=1`` those of Python alone, and
what each rule costs. The prototype is a storage below the port: Linux, one process.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measuring import machine
from benchmarks.measuring.report import markdown
from benchmarks.measuring.rows import significant, spread
from benchmarks.studies import map_rules
from holdfast import FlushPolicy, PersistentQueue
from holdfast.persistence.filesystem.storage import OsFile, OsStorage
from holdfast.persistence.format.constants import ENTRY, FRAMES_START

ROOT = Path(__file__).resolve().parents[2]
PUBLISH_SECONDS, SYNC_SECONDS = 0.05, 1.0
BATCH = 100


class MappedFile(OsFile):
    """A position file: single entries are stored, all else is written; ``publish`` says that errors are looked for."""

    __slots__ = ("_end", "_map", "_published", "_start", "_synced", "publishes")

    def __init__(self, fd: int, *, publishes: bool) -> None:
        super().__init__(fd)
        self.publishes = publishes
        self._map: mmap.mmap | None = None
        self._start = self._end = 0
        self._published = self._synced = time.monotonic()

    def write_at(self, buffers: Sequence[bytes], position: int) -> int:
        if len(buffers) != 1 or len(buffers[0]) != ENTRY.size or position < FRAMES_START:
            return super().write_at(buffers, position)
        if self._map is None:
            self._begin(position)
        self._map[position : position + ENTRY.size] = buffers[0]  # type: ignore[index]  # it has just been made
        self._end = position + ENTRY.size
        if self.publishes and (now := time.monotonic()) - self._published >= PUBLISH_SECONDS:
            self.publish(now)
        return ENTRY.size

    def _begin(self, position: int) -> None:
        """Reserve and map the whole file, whatever its size says: a copied or punched one is sparse."""
        size = self.size()
        os.posix_fallocate(self._fd, 0, size)
        self._map = mmap.mmap(self._fd, size)
        self._start = position

    def publish(self, now: float) -> None:
        """Write the stored entries once more, so that a file system that is read-only by now raises; sync in time."""
        assert self._map is not None
        os.pwritev(self._fd, (self._map[self._start : self._end],), self._start)
        self._start, self._published = self._end, now
        if now - self._synced >= SYNC_SECONDS:
            self.sync()
            self._synced = now

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
        super().close()


class MappedStorage(OsStorage):
    """The file system of the operating system, with maps of position files."""

    def __init__(self, *, publishes: bool) -> None:
        self._publishes = publishes

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        file = super().open(path, create=create, writable=writable)
        if not writable or path.suffix != ".position":
            return file
        mapped = MappedFile(os.dup(file._fd), publishes=self._publishes)
        file.close()
        return mapped


STORAGES: dict[str, Callable[[], OsStorage]] = {
    "pwritev": OsStorage,
    "map, no rule": lambda: MappedStorage(publishes=False),
    "map, published and synced": lambda: MappedStorage(publishes=True),
}


def get(queue: PersistentQueue, count: int) -> None:
    """Take one by one."""
    for _ in range(count):
        queue.get(timeout=0)


def receive_and_ack(queue: PersistentQueue, count: int) -> None:
    """Take and acknowledge one by one."""
    for _ in range(count):
        queue.receive(timeout=0).ack()


POLICIES = {"never()": FlushPolicy.never, "every_commit()": FlushPolicy.every_commit}
DURABLE_PART = 50
"""Of so many messages one is measured with ``every_commit()``, which waits for the disk."""


def measure(
    storage: OsStorage, policy: str, verb: Callable[[PersistentQueue, int], None], count: int, base: Path
) -> tuple[float, float]:
    """Return seconds on the clock and seconds of the processor."""
    with tempfile.TemporaryDirectory(dir=base) as folder:
        flush = POLICIES[policy]()
        with PersistentQueue(Path(folder) / "queue", mode="exclusive", flush=flush, storage=storage) as queue:
            for _ in range(0, count, BATCH):
                queue.put_many([bytes(2_000)] * BATCH)
            clock, used = time.perf_counter(), time.process_time()
            verb(queue, count)
            return time.perf_counter() - clock, time.process_time() - used


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies.mapped_positions")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="folder on the disk to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000, help="of each round")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    table = [["verb and policy", "entries by", "µs of processor", "ratio of processor", "ratio of clock"]]
    for policy in POLICIES:
        count = options.messages if policy == "never()" else max(BATCH, options.messages // DURABLE_PART)
        for verb in (get, receive_and_ack):
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in STORAGES}
            for _ in range(options.rounds):
                for name, storage in STORAGES.items():
                    seconds[name].append(measure(storage(), policy, verb, count, options.dir))
            for name, rounds in seconds.items():
                used = significant(min(cpu for _, cpu in rounds) / count * 1e6)
                pairs = list(zip(seconds["pwritev"], rounds, strict=True))
                clocks, cpus = ([one[part] / other[part] for one, other in pairs] for part in (0, 1))
                table.append([f"{verb.__name__}, {policy}", name, used, spread(cpus, 2), spread(clocks, 2)])
    print(*(f"- {fact}" for fact in machine.facts(options.dir)), "", *markdown(table), "", sep="\n")
    with tempfile.TemporaryDirectory(dir=options.dir) as folder, (Path(folder) / "file").open("w+b") as file:
        rows = [(what, significant(cost)) for what, cost in map_rules.costs(file.fileno(), Path(folder))]
        print(*markdown([("what", "µs"), *rows]), "", sep="\n")
        print("of {} half-stored slots, {} count as an entry".format(*map_rules.torn_entries()))
        print("a store into a file that was shortened ends the process by", map_rules.killed_by(Path(file.name)))


if __name__ == "__main__":
    main()
