"""The queues whose bits are flipped: one of three data files, one of a merged file; two groups, a transaction in doubt.

Built through the real API, on simulated storage and with a clock that stands still, and closed in order: all of it was
durable. Data files before the three were drained by all groups, so the space of some is used for the second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast import PersistentQueue, Put, Transaction
from holdfast.persistence.format.constants import FRAMES_START, KIND_MESSAGE
from holdfast.persistence.format.file_header import DataFileHeader, block_copies
from holdfast.persistence.segment.frame_scanner import FrameScanner
from holdfast.queue.options.queue_options import Mode
from support.builders.clocks import FakeClock
from support.builders.small_queues import tiny_files_allowed
from support.owners.second_groups import open_beside
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/queue")
FILE_BYTES = 5600
"""Below the bound for applications: some 900 bytes of it are frames, so all bits of three files can be tried."""

MERGED_FILE_BYTES = 24_000
"""Else the headers alone are more than a quarter of what is merged."""

DEFAULT, AUDIT = "default", "audit"
"""The latter is paused."""
PAUSE_REASON = "not yet"
UNDECIDED, COMMITTED, ABORTED = "undecided", "committed", "aborted"
PREPARED_PUTS = (b"prepared \x02 one", b"", b"prepared three")
APPLICATION, VERSION = "stream", 7

DEAD, GIVEN_BACK, KEPT = (44, 290), (11, 24, 25), (2, 260, 270)
"""What one group leaves in the files that are merged: dead letters, what comes again, and what only the other needs."""


def payload(offset: int) -> bytes:
    """Return what message ``offset`` holds: no two are alike, some hold a STX, every twelfth is empty."""
    return b"" if offset % 12 == 0 else b"message %d \x02\x00" % offset * (1 + offset % 3)


def headers(offset: int) -> dict[str, str]:
    """Return the headers of message ``offset``: every third has some."""
    return {"number": str(offset), "größe": "1"} if offset % 3 == 0 else {}


def put_of(offset: int) -> Put:
    """Return message ``offset`` as ``put_many`` takes it."""
    return Put(payload(offset), headers=headers(offset))


@dataclass(frozen=True)
class Victim:
    """A closed queue.

    Attributes
    ----------
    title : str
        What it has.
    storage : SimulatedStorage
        Where it is; copy it, do not change it.
    now_ns : int
        What its clock said at the end.
    data_files : tuple of Path
        In the order of the log.
    file_bytes : int
        How large its next one becomes.
    flipped : tuple of str
        Parts of the paths of the files that are flipped: the first queue has the others, too. Empty: all.
    """

    title: str
    storage: SimulatedStorage
    now_ns: int
    data_files: tuple[Path, ...]
    file_bytes: int
    flipped: tuple[str, ...] = ()

    def files(self) -> dict[Path, bytes]:
        """Return all files with what they hold."""
        return {path: content for path, content in self.storage.tree().items() if content is not None}

    def flips(self, path: Path) -> bool:
        """Whether the bits of a file are flipped."""
        return not self.flipped or any(part in str(path) for part in self.flipped)

    def copy(self) -> SimulatedStorage:
        """Return the same disk, to be changed."""
        return self.storage.crash_keeping_all()

    def open(self, storage: SimulatedStorage, *, group: str = DEFAULT, mode: Mode = "exclusive") -> PersistentQueue:
        """Open the queue on such a disk, with a clock that continues where it was closed."""
        clock = FakeClock(time_ns=self.now_ns)
        return open_victim(storage, clock, group=group, mode=mode, file_bytes=self.file_bytes)


def open_victim(
    storage: SimulatedStorage,
    clock: FakeClock,
    *,
    group: str = DEFAULT,
    mode: Mode = "exclusive",
    file_bytes: int = FILE_BYTES,
) -> PersistentQueue:
    """Open the queue."""
    with tiny_files_allowed():
        return PersistentQueue(
            ROOT, mode=mode, group=group, backoff=[], data_file_bytes=file_bytes, storage=storage, clock=clock
        )


def frames_of(content: bytes, storage: SimulatedStorage, path: Path) -> list[tuple[range, int | None]]:
    """Return the bytes of each frame of a whole data file, with the offset of the message in it; None: a control."""
    header = DataFileHeader.decode(block_copies(content), str(path))
    scanner = FrameScanner(storage.open(path, writable=False), header.salt, FRAMES_START, len(content))
    found: list[tuple[range, int | None]] = []
    while scanner.position < len(content):
        frame = scanner.next()
        offset = header.first_offset + frame.index if frame.kind == KIND_MESSAGE else None
        found.append((range(frame.position, frame.end), offset))
    return found


def build() -> Victim:
    """Make the queue of three data files."""
    storage, clock = SimulatedStorage(), FakeClock()
    with open_victim(storage, clock) as queue:
        queue.groups.create(AUDIT)
    with (
        open_victim(storage, clock) as queue,
        open_beside(queue, AUDIT, backoff=[]) as audit,
    ):
        _fill(queue, queue.stats().file_count + 2)
        used = queue.stats().next_offset - 1  # what is in files that are not the last one
        for handle in (audit, queue):
            handle.get_many(used, timeout=0)
        clock.advance(1)
        _batches(queue)
        _transactions(queue, clock)
    with (  # the next generations of their progress
        open_victim(storage, clock) as queue,
        open_beside(queue, AUDIT, backoff=[]) as audit,
    ):
        _fill(queue, 3)
        _deliveries(queue)
        _deliveries(audit)
        audit.pause(None, PAUSE_REASON)
        clock.advance(1)
    return closed("three data files", storage, clock, 3, FILE_BYTES)


def build_merged() -> Victim:
    """Make the queue of a merged file and the one behind it, where the groups have left different messages."""
    storage, clock = SimulatedStorage(), FakeClock()
    with open_victim(storage, clock, file_bytes=MERGED_FILE_BYTES) as queue:
        queue.groups.create(AUDIT)
        _fill(queue, 3)
        count = queue.stats().next_offset - 1  # what is in files that are not the last one
        _finish_but(queue, count, DEAD, GIVEN_BACK)
        with open_beside(queue, AUDIT, backoff=[]) as audit:
            _finish_but(audit, count, (), (*GIVEN_BACK, *KEPT))
            audit.pause(None, PAUSE_REASON)
        done = queue.compact()
        assert done.merged_count == 1, f"nothing was merged: {done}"
        _transactions(queue, clock)
    flipped = ("/data/", "dead-", "queue.json", "group.json", "write.mark")
    return closed("a merged data file", storage, clock, 2, MERGED_FILE_BYTES, flipped)


def closed(
    title: str,
    storage: SimulatedStorage,
    clock: FakeClock,
    file_count: int,
    file_bytes: int,
    flipped: tuple[str, ...] = (),
) -> Victim:
    """Return a queue that was closed with so many data files."""
    names = storage.list(ROOT / "data")
    assert len(names) == file_count, f"{file_count} data files were to be left, not {names}"
    return Victim(title, storage, clock.time_ns(), tuple(ROOT / "data" / name for name in names), file_bytes, flipped)


def _finish_but(queue: PersistentQueue, count: int, dead: tuple[int, ...], given_back: tuple[int, ...]) -> None:
    """Take the first messages, and finish all except a few: some of these fail for good, the others come again."""
    deliveries = queue.receive_many(count, timeout=0)
    deliveries.ack([each for each in deliveries if each.offset not in (*dead, *given_back)])
    for each in deliveries:
        if each.offset in dead:
            each.reject("no use")
    deliveries.nack([each for each in deliveries if each.offset in given_back], delay=0)


def _fill(queue: PersistentQueue, file_count: int) -> None:
    while queue.stats().file_count < file_count:
        offset = queue.stats().next_offset
        queue.put(payload(offset), headers=headers(offset))


def _batches(queue: PersistentQueue) -> None:
    start = queue.stats().next_offset
    queue.put_many([put_of(offset) for offset in range(start, start + 4)])
    with queue.transaction() as transaction:
        deliveries = [transaction.receive(timeout=0) for _ in range(2)]
        transaction.ack(deliveries[1])  # what was taken before it comes back
        offset = queue.stats().next_offset
        transaction.put_many([put_of(offset), put_of(offset + 1)])


def _transactions(queue: PersistentQueue, clock: FakeClock) -> None:
    """Leave one that was aborted before it was prepared, and of each kind of prepared ones."""
    gone = queue.begin()
    gone.put(b"never to be seen")
    gone.abort()
    for name in (ABORTED, COMMITTED):
        transaction = queue.begin()
        transaction.ack(transaction.receive(timeout=0))
        _stream(transaction, queue.stats().next_offset)
        transaction.prepare(name)
        transaction.abort() if name == ABORTED else transaction.commit()
    transaction = queue.begin()
    transaction.put(put_of(queue.stats().next_offset))
    part = transaction.prepare("part", part_of=(APPLICATION, VERSION))
    queue.joint_commits.commit(APPLICATION, VERSION, [part])
    clock.advance(1)
    transaction = queue.begin()
    transaction.ack([transaction.receive(timeout=0), transaction.receive(timeout=0)])
    for each in PREPARED_PUTS:
        transaction.put_stream([each])
    transaction.prepare(UNDECIDED)


def _stream(transaction: Transaction, offset: int) -> None:
    """Put message ``offset`` by a batch file; small puts would wait in the prepared log."""
    transaction.put_stream([payload(offset)], headers=headers(offset))


def _deliveries(queue: PersistentQueue) -> None:
    """Leave messages that are finished out of their order, given back, handed out only, and one dead letter."""
    first = queue.receive_many(4, timeout=0)
    taken = [*first, *queue.receive_many(5 - len(first), timeout=0)]  # those that come again come alone
    taken[1].ack()
    taken[2].nack(delay=0)
    taken[3].reject("no use")
