"""A bit that flips in a data file costs a reservation the messages that it hit, which are named, and no others."""

from pathlib import Path

import pytest

from holdfast import Damage
from support.builders.small_queues import SmallQueue, build, offsets, payload
from support.storages.simulated_storage import SimulatedStorage

STRIDE = 13


@pytest.fixture(scope="module")
def queue() -> SmallQueue:
    """A queue of three data files, on a disk in memory."""
    return build(Path("/q"), SimulatedStorage())


@pytest.mark.parametrize("max_messages", [None, 9])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_flipped_bit_costs_what_it_hit(queue: SmallQueue, number: int, max_messages: int | None) -> None:
    """Though most messages are passed over by their frame headers alone, which may be what is damaged."""
    path = queue.data_files()[number]
    lost_count = 0
    for position in range(0, len(queue.read(path)), STRIDE):
        damaged = queue.copy()
        damaged.flip(path, position, bit=position % 8)
        try:
            lost_count += len(lost_by_draining(damaged, max_messages))
        except BaseException as error:
            error.add_note(f"{path}, bit {position % 8} of byte {position}")
            raise
    assert lost_count


def lost_by_draining(queue: SmallQueue, max_messages: int | None) -> frozenset[int]:
    """Drain a queue by reservations; return the offsets that were reported lost."""
    met: list[Damage] = []
    found: dict[int, bytes] = {}
    with queue.open() as handle:
        while (batch := handle.reservations.take(max_messages=max_messages)) is not None:
            for message in handle.reservations.read(batch, met.append):
                assert message.offset not in found, "no message comes twice"
                found[message.offset] = message.payload
            handle.reservations.commit(batch)
        lost = offsets([*met, *handle.recovery.damage])
        assert handle.stats().depth == 0
    assert all(each == payload(offset) for offset, each in found.items())
    assert not lost & set(found)
    assert lost | set(found) == set(queue.waiting)
    return lost
