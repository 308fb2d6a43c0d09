"""What recovery and ``verify`` say of a data file is the same with runs of messages, and one frame at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.persistence.format import frame_runs
from holdfast.persistence.format.constants import (
    FLAG_FIRST,
    FLAG_LAST,
    FLAGS_SINGLE,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    KIND_COMMIT_RECORD,
    KIND_MARK,
    KIND_MESSAGE,
    KIND_SEAL,
)
from holdfast.persistence.format.report import Damage
from holdfast.persistence.format.seal import Seal
from holdfast.persistence.log.watermark import Watermark
from holdfast.persistence.recovery.tail_scan import TailScan, scan_tail
from holdfast.persistence.segment import frame_scanner
from holdfast.persistence.segment.file_walk import FileWalk
from holdfast.persistence.segment.frame_scanner import FrameScanner
from support.builders.clocks import START_NS
from support.builders.log_parts import LogParts, frame

FILES = 150
WINDOWS = (64, 300, 2**20)
"""Bytes that are read at once: runs end with what was read."""


@dataclass(frozen=True)
class Told:
    """What each of those that read a file says of it."""

    tail: TailScan
    marked_tail: TailScan
    walk: tuple[int, int, int, list[Damage]]
    others: list[int]


def drawn_file(rng: random.Random, parts: LogParts) -> list[bytes]:
    """Draw commits of one message and of several, marks and commit records, and a seal, with wrong ones among them."""
    frames: list[bytes] = []
    entries: list[tuple[int, int]] = []
    index, position = 0, FRAMES_START
    while len(frames) < 24:
        count = rng.choice((1, 1, 1, 2, 5))
        shapes = [FLAGS_SINGLE] if count == 1 else [FLAG_FIRST, *[0] * (count - 2), FLAG_LAST]
        kind = rng.choice((KIND_MESSAGE,) * 8 + (KIND_MARK, KIND_COMMIT_RECORD))
        mark = rng.choice((FRAMES_START, FRAMES_START, position))
        for flags in shapes:
            odd = rng.random()
            raw = frame(
                parts.header(),
                bytes(rng.randrange(30)),
                max(0, index + (rng.choice((-1, 1, 3)) if odd < 0.02 else 0)),
                kind=kind,
                flags=rng.choice((0, FLAG_FIRST, FLAG_LAST, FLAGS_SINGLE)) if 0.02 < odd < 0.04 else flags,
                durable_mark=position + 1 if 0.04 < odd < 0.05 else mark,
                timestamp_ns=START_NS + rng.randrange(100),
            )
            frames.append(raw[:-1] + b"?" if 0.05 < odd < 0.07 else raw)
            entries += [(index, position)] * (kind == KIND_MESSAGE)
            position += len(raw)
            index += kind == KIND_MESSAGE
    times = START_NS + rng.choice((0, 50)), START_NS + rng.choice((50, 100))
    seal = Seal(index, *times, tuple(rng.sample(entries, 2) if rng.random() < 0.1 else entries))
    return [*frames, frame(parts.header(), seal.encode(), index, kind=KIND_SEAL)]


def told(rng: random.Random, parts: LogParts, frames: list[bytes], *, is_merged: bool) -> Told:
    """Read a file of these frames, with zeros behind them, in each way."""
    path, header = parts.data_file(frames, behind=bytes(rng.choice((0, 20, 200))))
    size = FRAMES_START + sum(map(len, frames))
    count = rng.randrange(len(frames))
    synced = FRAMES_START + sum(map(len, frames[:count]))
    mark = Watermark(parts.queue_id, b"f" * 16, 1, 0, synced, count, synced, count, synced, 0, synced_only=True)
    with parts.storage.open(path) as file:
        walk = FileWalk(file, header, path, size, None if is_merged else len(frames))
        walk.run()
        scanner = FrameScanner(file, header.salt, FRAMES_START, size, is_merged=is_merged)
        return Told(
            scan_tail(file, header, path, None),
            scan_tail(file, header, path, mark),
            (walk.frame_count, walk.message_count, walk.end_offset, walk.damage),
            [each.position for each in scanner.past_messages()],
        )


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("is_merged", [False, True])
def test_runs_change_nothing_that_is_told(window: int, is_merged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with wrong indexes, flags, marks and checksums, whose batches begin and end anywhere, cut off anywhere."""
    passed_count = 0

    def counting(data: bytes, at: int, salt: int, position: int, index: int, *others: Any) -> tuple[int, ...]:
        nonlocal passed_count
        found = frame_runs.pass_messages(data, at, salt, position, index, *others)
        passed_count += found[1] - index
        return found

    monkeypatch.setattr(frame_scanner, "WINDOW_BYTES", window)
    monkeypatch.setattr(frame_scanner, "pass_messages", counting)
    for seed in range(FILES):
        results = []
        for alike in (frame_scanner._ALIKE, frozenset()):
            rng, parts = random.Random(seed), LogParts()
            *frames, last = drawn_file(rng, parts)
            with monkeypatch.context() as patch:
                patch.setattr(frame_scanner, "_ALIKE", alike)
                before = passed_count
                results.append(told(rng, parts, [*frames, last[: rng.choice((20, None, None))]], is_merged=is_merged))
        assert results[0] == results[1], f"seed {seed}"
        assert passed_count == before, "one frame at a time"
    assert passed_count > 5 * FILES or window < FRAME_HEADER_BYTES + 100
