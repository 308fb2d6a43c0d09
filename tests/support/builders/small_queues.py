"""Small closed queues to damage, and what opening and draining one gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast import Damage, Empty, PersistentQueue, VerifyReport, verify
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsStorage, Storage, write_whole
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.format.file_header import DataFileHeader, block_copies
from holdfast.persistence.format.framing import Frame
from holdfast.persistence.segment.frame_scanner import FrameScanner
from holdfast.queue.engine.configuring import configure_closed
from holdfast.queue.options import arguments
from holdfast.queue.options.queue_options import Mode
from support.builders.settings import set_anew_if_lost
from support.storages.simulated_storage import SimulatedStorage

FILE_BYTES = 5200
"""Far below what the queue takes as a size, so that three files are a few KiB: see :func:`tiny_files_allowed`."""

TAIL_COUNT = 3
"""Messages in the last data file of :func:`build`."""


def payload(offset: int) -> bytes:
    """Return what message ``offset`` holds: no two are alike, some hold a STX, one is empty."""
    return b"" if offset == 3 else b"message %d \x02" % offset * (offset % 3 + 1)


@contextmanager
def tiny_files_allowed() -> Iterator[None]:
    """Let data files be smaller than the bound for applications."""
    bound = arguments.DATA_FILE_BYTES_MIN
    arguments.DATA_FILE_BYTES_MIN = FILE_BYTES
    try:
        yield
    finally:
        arguments.DATA_FILE_BYTES_MIN = bound


@dataclass(frozen=True)
class SmallQueue:
    """A queue in some storage, and how many messages were put and taken.

    Attributes
    ----------
    root, storage
        Where it is.
    put_count, taken_count : int
        Offsets ``taken_count`` to ``put_count - 1`` wait.
    """

    root: Path
    storage: Storage
    put_count: int
    taken_count: int = 0

    @property
    def waiting(self) -> range:
        """Offsets that were not taken yet."""
        return range(self.taken_count, self.put_count)

    def data_files(self) -> list[Path]:
        """Return the data files in log order."""
        return [self.root / "data" / name for name in self.storage.list(self.root / "data")]

    def position_files(self, group: str = "default") -> list[Path]:
        """Return the position files of a group, the newest last."""
        directory = self.root / "groups" / group
        return [directory / name for name in self.storage.list(directory) if name[0].isdigit()]

    def read(self, path: Path) -> bytes:
        """Return all of a file."""
        file = self.storage.open(path, writable=False)
        try:
            return file.read_at(file.size(), 0)
        finally:
            file.close()

    def write(self, path: Path, content: bytes) -> None:
        """Replace all of a file, in place."""
        file = self.storage.open(path, create=True)
        try:
            file.truncate(len(content))
            write_whole(file, (content,), 0)
        finally:
            file.close()

    def patch(self, path: Path, position: int, content: bytes) -> None:
        """Overwrite bytes of a file."""
        file = self.storage.open(path)
        try:
            write_whole(file, (content,), position)
        finally:
            file.close()

    def flip(self, path: Path, position: int, bit: int = 0) -> None:
        """Flip one bit of a file."""
        byte = self.read(path)[position]
        self.patch(path, position, bytes((byte ^ 1 << bit,)))

    def header(self, path: Path) -> DataFileHeader:
        """Return the header of a data file."""
        return DataFileHeader.decode(block_copies(self.read(path)), str(path))

    def frames(self, path: Path) -> list[Frame]:
        """Return the frames of an undamaged data file."""
        file = self.storage.open(path, writable=False)
        try:
            scanner = FrameScanner(file, self.header(path).salt, FRAMES_START, file.size())
            found = []
            while scanner.position < file.size():
                found.append(scanner.next())
            return found
        finally:
            file.close()

    def copy(self) -> SmallQueue:
        """Return the same queue in a storage of its own; it has to be in a simulated one."""
        assert isinstance(self.storage, SimulatedStorage)
        return replace(self, storage=self.storage.crash_keeping_all())

    def open(self, mode: Mode = "exclusive", group: str = "default") -> PersistentQueue:
        """Open it."""
        with tiny_files_allowed():
            return PersistentQueue(self.root, mode=mode, group=group, data_file_bytes=FILE_BYTES, storage=self.storage)

    def verify(self) -> VerifyReport:
        """Verify it."""
        return verify(self.root, storage=self.storage)


@dataclass(frozen=True)
class Drained:
    """What opening and draining a queue gave: payloads by offset, lost offsets, and every damage that was reported.

    ``rebuilt`` is the document that was rebuilt without its settings: it refused the queue until they were set anew.
    """

    payloads: dict[int, bytes]
    lost: frozenset[int]
    damage: tuple[Damage, ...]
    progress_damage: tuple[Damage, ...]
    depth: int
    rebuilt: Path | None = None


def build(root: Path, storage: Storage | None = None, *, file_count: int = 3, taken_count: int = 0) -> SmallQueue:
    """Make a queue with ``file_count`` data files, take some messages one by one, and close it.

    Its tiny size is not left in its settings, which no queue accepts outside of :func:`tiny_files_allowed`.
    """
    queue = SmallQueue(root, storage or OsStorage(), 0)
    with tiny_files_allowed(), queue.open() as handle:
        handle.put(payload(0), headers={"origin": "test"})
        while handle.stats().file_count < file_count:
            handle.put(payload(handle.stats().next_offset))
        for _ in range(TAIL_COUNT - 1):
            handle.put(payload(handle.stats().next_offset))
        put_count = handle.stats().next_offset
        for _ in range(taken_count):
            handle.get(timeout=0)
    with tiny_files_allowed():
        configure_closed(queue.storage, SystemClock(), root, {}, ["data_file_bytes"])
    return SmallQueue(root, queue.storage, put_count, taken_count)


def drain(queue: SmallQueue, group: str = "default") -> Drained:
    """Open, take everything there is, and close."""
    taken: dict[int, bytes] = {}
    with tiny_files_allowed():
        opened, rebuilt = set_anew_if_lost(queue.root, queue.storage, lambda: queue.open(group=group), group)
    with opened as handle:
        for _ in range(queue.put_count + 1):  # one call takes one message at least
            try:
                with handle.receive_many(100, timeout=0) as batch:
                    for delivery in batch:
                        assert delivery.offset not in taken, f"offset {delivery.offset} came twice"
                        taken[delivery.offset] = delivery.payload
            except Empty:
                break
        else:
            raise AssertionError("the queue never gets empty")
        recovery = handle.recovery
        depth = handle.stats().depth
    return Drained(taken, offsets(recovery.damage), recovery.damage, recovery.progress_damage, depth, rebuilt)


def judge(queue: SmallQueue, group: str = "default") -> tuple[VerifyReport, Drained]:
    """Verify a damaged queue, open and drain it, and hold both to the promises about damage.

    No payload is wrong, every waiting message comes or is reported lost, ``verify`` and the reader agree on which are
    lost, and nothing is left behind.
    """
    report = queue.verify()
    drained = drain(queue, group)
    waiting = frozenset(queue.waiting)
    wrong = {offset: found for offset, found in drained.payloads.items() if found != payload(offset)}
    assert not wrong, f"wrong payloads: {wrong}"
    delivered = frozenset(drained.payloads)
    assert waiting <= delivered | drained.lost, f"lost without a word: {sorted(waiting - delivered - drained.lost)}"
    assert not delivered & drained.lost, f"reported lost, and delivered: {sorted(delivered & drained.lost)}"
    assert lost_offsets(report) & waiting == drained.lost & waiting, f"{report}\n{drained.damage}"
    assert drained.depth == 0, "a drained queue is empty"
    return report, drained


def offsets(damage: Iterable[Damage]) -> frozenset[int]:
    """Return all offsets that are lost with some damage."""
    return frozenset(offset for each in damage for offset in each.offsets)


def lost_offsets(report: VerifyReport) -> frozenset[int]:
    """Return all offsets that ``verify`` found lost."""
    return frozenset(offset for run in report.lost for offset in run)
