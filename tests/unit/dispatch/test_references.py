"""References: a place in the log as one integer, and heaps of them, by rank and then by offset."""

import random

import pytest

from holdfast.persistence.format.constants import FRAME_HEADER_BYTES
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.dispatch.references import RankedReferences, Reference, offset_of, reference_to, unpack


def record(offset: int, sequence: int = 1, position: int = 512, headers: bytes = b"", payload: bytes = b"") -> Record:
    """Return a record whose frame starts at a position."""
    end = position + FRAME_HEADER_BYTES + len(headers) + len(payload)
    return offset, 0, headers, payload, end, sequence


@pytest.mark.parametrize("offset", [0, 1, 2**40, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("sequence", [1, 2**32, 2**48 - 1])
@pytest.mark.parametrize("position", [0, 512, 2**32 - 1])
def test_a_reference_comes_back_as_it_was_packed(offset: int, sequence: int, position: int) -> None:
    """No field runs into another one, up to the largest of each; a rank in front does no harm."""
    packed = reference_to(record(offset, sequence, position, b"head", b"payload"))
    assert unpack(packed) == Reference(offset, sequence, position)
    assert offset_of(packed) == offset
    heap = RankedReferences()
    heap.push(2**70, packed)
    assert [unpack(each) for each in heap.first(1)] == [Reference(offset, sequence, position)]
    assert heap.pop() == (2**70, packed)


def test_they_come_by_rank_and_inside_of_one_by_offset() -> None:
    """Where their frames stand, and when they were pushed, makes no difference."""
    choice = random.Random(5)
    heap = RankedReferences()
    pushed = [(choice.randrange(4), offset) for offset in range(500)]
    choice.shuffle(pushed)
    for rank, offset in pushed:
        heap.push(rank, reference_to(record(offset, choice.randrange(1, 2**40), choice.randrange(2**32))))
    assert len(heap) == 500
    assert heap.first_rank == 0
    assert [offset_of(each) for each in heap.first(3)] == [offset for _, offset in sorted(pushed)[:3]]
    popped = [heap.pop() for _ in range(500)]
    assert [(rank, unpack(packed).offset) for rank, packed in popped] == sorted(pushed)
    assert not heap.heap


def test_looking_at_the_first_ones_takes_none() -> None:
    """Fewer than asked for where there are no more; none once they are forgotten."""
    heap = RankedReferences()
    assert heap.first(3) == []
    heap.push(1, reference_to(record(7)))
    assert [unpack(each) for each in heap.first(3)] == [Reference(7, 1, 512)]
    assert heap.first(3) == heap.first(1)
    assert len(heap) == 1
    heap.clear()
    assert (len(heap), heap.first(1)) == (0, [])
