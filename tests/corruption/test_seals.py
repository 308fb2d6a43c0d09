"""A seal says where to begin reading, and how many messages there are: damaged, it says nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue
from holdfast.persistence.format.constants import FRAME_HEADER_BYTES, KIND_SEAL, SEAL, SEAL_ENTRY, SEAL_TRAILER
from support.builders.small_queues import SmallQueue
from support.storages.simulated_storage import SimulatedStorage

ROOT = Path("/q")
FILE_BYTES = 512 * 2**10
COUNT = 40
START = 25  # behind some entries of the index, and before others
ENTRY_COUNT_MIN = 3


def payload(offset: int) -> bytes:
    """Return what message ``offset`` holds: so much that a few fill a stride of the index."""
    return b"%d" % offset * 4000


def open_queue(storage: SimulatedStorage, group: str = "default") -> PersistentQueue:
    """Open the queue."""
    return PersistentQueue(ROOT, mode="exclusive", storage=storage, group=group, data_file_bytes=FILE_BYTES)


def rolled(queue: PersistentQueue) -> None:
    """Fill a data file, and go on in the next."""
    for offset in range(COUNT):
        queue.put(payload(offset))
    while queue.stats().file_count < 2:
        queue.put(payload(queue.stats().next_offset))


def adopted(queue: PersistentQueue) -> None:
    """Commit a batch whose file becomes the last data file as it is: its seal alone says where the log ends."""
    with queue.transaction() as tx:
        tx.put_many([payload(offset) for offset in range(COUNT)])


@pytest.mark.parametrize("fill", [rolled, adopted])
def test_a_flipped_bit_in_a_seal_leads_no_reader_astray(fill: Callable[[PersistentQueue], None]) -> None:
    """A random bit of every byte of it: a group that begins in the middle gets all from there on, and none is lost."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        fill(queue)
        end = queue.stats().next_offset
    template = SmallQueue(ROOT, storage, end)
    path = template.data_files()[0]
    seal = template.frames(path)[-1]
    entry_count = (len(seal.payload) - SEAL.size - SEAL_TRAILER.size) // SEAL_ENTRY.size
    assert seal.kind == KIND_SEAL
    assert entry_count >= ENTRY_COUNT_MIN
    choice = random.Random(20240229)
    for position in range(seal.position + FRAME_HEADER_BYTES, seal.end):
        bit, copy = choice.randrange(8), storage.crash_keeping_all()
        SmallQueue(ROOT, copy, end).flip(path, position, bit)
        where = f"bit {bit} of byte {position - seal.position} of the seal"
        with open_queue(copy) as queue:
            assert queue.stats().next_offset == end, where
            assert queue.groups.create("late", START) == START, where
        with open_queue(copy, group="late") as queue:
            taken: list[bytes] = []
            try:
                while True:
                    taken += queue.get_many(COUNT, timeout=0)
            except Empty:
                assert taken == [payload(offset) for offset in range(START, end)], where
            assert queue.recovery.lost_count == 0, where
