"""The systematic one: single bits of every byte of a closed three-file queue."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.persistence.format.constants import (
    ENTRY,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    HEADER_BLOCK_BYTES,
    WRITE_MARK_BYTES,
)
from support.builders.small_queues import SmallQueue, judge

SEED = 20240229
HEADER_USED_BYTES = 112  # of a block's 512; the rest is zeros, of which some are tried, and the checksum
FULL = bool(os.environ.get("HOLDFAST_TEST_CRASH_FULL"))
BLOCK_BYTES = [*range(HEADER_USED_BYTES), *range(HEADER_USED_BYTES, 508, 44), *range(508, 512)]

Place = tuple[Path, int, int]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of damaged queues warn thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def one_bit_of_each(path: Path, positions: list[int], rng: random.Random) -> list[Place]:
    """Return a random bit of every byte."""
    return [(path, at, rng.randrange(8)) for at in positions]


def header_places(path: Path, rng: random.Random) -> list[Place]:
    """Return a random bit of every used byte of both copies of a header."""
    copies = (0, FRAMES_START - HEADER_BLOCK_BYTES)
    return one_bit_of_each(path, [copy + at for copy in copies for at in BLOCK_BYTES], rng)


def survives(template: SmallQueue, places: list[Place]) -> list[str]:
    """Judge the queue with each one of the bits flipped; return the places of which ``verify`` noticed nothing."""
    unnoticed = []
    for path, at, bit in places:
        queue = template.copy()
        queue.flip(path, at, bit)
        try:
            report, drained = judge(queue)
        except Exception as error:
            raise AssertionError(f"bit {bit} of byte {at} of {path}: {error}") from error
        redelivered = set(drained.payloads) - set(queue.waiting)
        if report.ok:
            assert not redelivered, f"bit {bit} of byte {at} of {path}: {redelivered} came again, and nothing said why"
            unnoticed.append(f"{path.name}:{at}.{bit}")
    return unnoticed


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_flipped_bit_in_any_byte_of_a_data_file_is_found_and_costs_only_its_frame(
    template: SmallQueue, number: int
) -> None:
    """Every byte with one random bit: no wrong payload, nothing lost without a word, verify agrees with the reader."""
    rng = random.Random(SEED + number)
    path = template.data_files()[number]
    frames = list(range(FRAMES_START, len(template.read(path))))
    assert not survives(template, header_places(path, rng) + one_bit_of_each(path, frames, rng))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_bit_of_a_frame_header_is_covered(template: SmallQueue, number: int) -> None:
    """The headers of the first, a middle and the last two frames of each data file: each bit in one of three bytes.

    ``make bit-flips`` flips every bit of every frame, ``HOLDFAST_TEST_CRASH_FULL=1`` every one of these.
    """
    path = template.data_files()[number]
    frames = template.frames(path)
    chosen = [frames[0], frames[len(frames) // 2], *frames[-2:]] if number else [frames[0], frames[-1]]
    places = [
        (path, frame.position + at, bit)
        for frame in chosen
        for at in range(FRAME_HEADER_BYTES)
        for bit in range(8)
        if FULL or (at + bit) % 3 == 0
    ]
    assert not survives(template, places)


def test_a_flipped_bit_in_any_byte_of_the_progress_redelivers_at_worst_and_is_found(template: SmallQueue) -> None:
    """Every byte of the position file with one random bit; only the witness that a clean close leaves is redundant."""
    rng = random.Random(SEED)
    path = template.position_files()[-1]
    end = len(template.read(path).rstrip(b"\0"))
    places = header_places(path, rng) + one_bit_of_each(path, list(range(FRAMES_START, end)), rng)
    entry_count = -(-(end - FRAMES_START) // ENTRY.size)
    witness = FRAMES_START + (entry_count - 1) * ENTRY.size
    assert all(int(place.split(":")[1].split(".")[0]) >= witness for place in survives(template, places))


@pytest.mark.parametrize("name", ["queue.json", "write.mark", "groups/default/group.json"])
def test_a_flipped_bit_in_any_byte_of_a_small_file_loses_nothing_and_is_found(template: SmallQueue, name: str) -> None:
    """Every byte with one random bit: all messages come, none twice."""
    path = template.root / name
    rng = random.Random(SEED)
    end = WRITE_MARK_BYTES if name == "write.mark" else len(template.read(path))  # behind it, the token of an owner
    places = one_bit_of_each(path, list(range(end)), rng)
    assert not survives(template, places)
