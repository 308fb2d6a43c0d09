"""Where the log ends after a crash: which frames of the last file count."""

from __future__ import annotations

from holdfast.persistence.format.constants import (
    FLAG_CLEAN_CLOSE,
    FLAG_FIRST,
    FLAG_LAST,
    FLAGS_SINGLE,
    FRAMES_START,
    KIND_MARK,
)
from holdfast.persistence.log.watermark import Watermark
from holdfast.persistence.recovery.tail_scan import TailScan, scan_tail
from support.builders.clocks import START_NS
from support.builders.log_parts import LogParts, frame


def scan(parts: LogParts, frames: list[bytes], mark: Watermark | None = None, behind: bytes = bytes(500)) -> TailScan:
    """Scan a last file of these frames, with reserved space behind them."""
    path, header = parts.data_file(frames, behind=behind)
    return scan_tail(parts.storage.open(path), header, path, mark)


def single(parts: LogParts, index: int, durable_mark: int = FRAMES_START) -> bytes:
    """Return a message that is a commit of its own."""
    return frame(parts.header(), b"message %d" % index, index, durable_mark=durable_mark)


def synced(parts: LogParts, end: int, count: int) -> Watermark:
    """Return a mark that says so."""
    return Watermark(parts.queue_id, b"f" * 16, 1, 0, end, count, end, count, end, 0, synced_only=True)


def bad(raw: bytes) -> bytes:
    """Return a frame whose last byte was lost."""
    return raw[:-1] + b"\0"


def test_a_new_file_is_empty(parts: LogParts) -> None:
    """All of it is reserved space."""
    found = scan(parts, [])
    assert (found.end, found.message_count, found.torn_bytes, found.damage) == (FRAMES_START, 0, 0, [])
    assert not found.clean


def test_whole_commits_above_the_witness_are_recovered(parts: LogParts) -> None:
    """They were written; nobody was told that they are durable."""
    frames = [single(parts, index) for index in range(3)]
    found = scan(parts, frames)
    assert (found.end, found.message_count) == (FRAMES_START + sum(map(len, frames)), 3)
    assert (found.recovered_count, found.torn_bytes) == (3, 0)


def test_a_clean_close_is_seen_from_the_end(parts: LogParts) -> None:
    """Nothing else is read."""
    frames = [
        bad(single(parts, 0)),
        frame(parts.header(), b"", 1, kind=KIND_MARK, flags=FLAGS_SINGLE | FLAG_CLEAN_CLOSE),
    ]
    found = scan(parts, frames, behind=b"")
    assert found.clean
    assert (found.message_count, found.end) == (1, FRAMES_START + sum(map(len, frames)))


def test_a_mark_of_a_clean_close_with_something_behind_it_is_no_clean_close(parts: LogParts) -> None:
    """The queue was opened again."""
    close = frame(parts.header(), b"", 1, kind=KIND_MARK, flags=FLAGS_SINGLE | FLAG_CLEAN_CLOSE)
    found = scan(parts, [single(parts, 0), close, single(parts, 1)])
    assert not found.clean
    assert found.message_count == 2


def test_a_torn_tail_is_dropped_and_counted(parts: LogParts) -> None:
    """Half a frame above every witness was never acknowledged."""
    frames = [single(parts, 0), single(parts, 1)[:-3]]
    found = scan(parts, frames)
    assert (found.end, found.message_count) == (FRAMES_START + len(frames[0]), 1)
    assert found.torn_bytes == len(single(parts, 1))
    assert not found.damage


def test_a_torn_frame_is_counted_though_its_header_is_not_whole(parts: LogParts) -> None:
    """A tail that was dropped is never said to be nothing."""
    for size in (1, 5, 20, 31):
        torn = single(parts, 1)[:size].rstrip(b"\0")
        assert scan(parts, [single(parts, 0), torn]).torn_bytes == len(torn)


def test_nothing_behind_the_first_bad_frame_of_a_tail_counts(parts: LogParts) -> None:
    """Unsynced writes come back with holes, and intact pages behind them."""
    frames = [single(parts, 0), bytes(len(single(parts, 1))), single(parts, 2), single(parts, 3)]
    found = scan(parts, frames)
    assert (found.end, found.message_count) == (FRAMES_START + len(frames[0]), 1)
    assert not found.damage


def test_a_batch_without_its_last_frame_does_not_count(parts: LogParts) -> None:
    """All of it, or nothing."""
    first = frame(parts.header(), b"one", 1, flags=FLAG_FIRST)
    last = frame(parts.header(), b"two", 2, flags=FLAG_LAST)
    assert scan(parts, [single(parts, 0), first]).message_count == 1
    assert scan(parts, [single(parts, 0), first, last]).message_count == 3
    assert scan(parts, [single(parts, 0), first, single(parts, 2)]).message_count == 1


def test_damage_below_the_published_end_is_reported_and_passed(parts: LogParts) -> None:
    """The messages behind it are there."""
    frames = [single(parts, 0), bad(single(parts, 1)), single(parts, 2)]
    end = FRAMES_START + sum(map(len, frames))
    path, header = parts.data_file(frames)
    found = scan_tail(parts.storage.open(path), header, path, synced(parts, end, 3))
    assert found.end == end, "scanning starts at the published end; what stands below is the readers' to meet"
    assert found.message_count == 3


def test_damage_below_a_durable_mark_is_reported_with_its_offset(parts: LogParts) -> None:
    """A later frame says that the bad bytes were on the disk."""
    frames = [single(parts, 0), bad(single(parts, 1))]
    damaged_at, behind = FRAMES_START + len(frames[0]), FRAMES_START + sum(map(len, frames))
    found = scan(parts, [*frames, single(parts, 2, durable_mark=behind)])
    assert found.message_count == 3
    assert [(damage.position, damage.offsets, damage.verdict) for damage in found.damage] == [
        (damaged_at, range(1, 2), "damaged")
    ]


def test_damage_below_the_synced_end_with_nothing_behind_it_counts_what_write_mark_says(parts: LogParts) -> None:
    """The file ends before the published end."""
    frames = [single(parts, 0)]
    end = FRAMES_START + 3 * len(frames[0])
    found = scan(parts, frames, synced(parts, end, 3), behind=b"")
    assert found.message_count == 3
    assert [damage.offsets for damage in found.damage] == [range(1, 3)]


def test_bad_bytes_below_a_witness_whose_count_nobody_knows_are_unsynced_or_damaged(parts: LogParts) -> None:
    """The report says that it cannot tell."""
    frames = [single(parts, 0), bad(single(parts, 1)), bad(single(parts, 2))]
    middle = FRAMES_START + len(frames[0]) + 5
    found = scan(parts, [*frames, single(parts, 5, durable_mark=middle)])
    assert [(damage.offsets, damage.verdict) for damage in found.damage] == [(range(1, 5), "unsynced or damaged")]


def test_stale_frames_of_an_earlier_life_are_neither_messages_nor_a_torn_tail(parts: LogParts) -> None:
    """A reused file is full of them."""
    header = parts.header()
    stale = b"".join(
        frame(type(header)(parts.queue_id, 1, 0, 0, salt=1), b"stale %d" % index, index, timestamp_ns=START_NS - 1)
        for index in range(1, 5)
    )
    found = scan(parts, [single(parts, 0), stale])
    assert (found.message_count, found.torn_bytes, found.damage) == (1, 0, [])


def test_a_message_out_of_its_order_ends_the_log_unless_it_was_synced(parts: LogParts) -> None:
    """Its checksum is right, and yet one is missing before it: below the witness that is damage."""
    frames = [single(parts, 0), single(parts, 2)]
    found = scan(parts, frames)
    assert (found.message_count, found.end, found.damage) == (1, FRAMES_START + len(frames[0]), [])
    end = FRAMES_START + sum(map(len, frames))
    found = scan(parts, [*frames, single(parts, 3, durable_mark=end)])
    assert [(each.position, each.offsets) for each in found.damage] == [(FRAMES_START + len(frames[0]), range(1, 2))], (
        "what can be read is not lost"
    )
    assert found.message_count == 4


def test_a_message_that_comes_again_below_the_witness_is_damage_and_costs_none(parts: LogParts) -> None:
    """Its checksum is right; the one behind it has the number that is expected."""
    frames = [single(parts, 0), single(parts, 1), single(parts, 0)]
    again_at, end = FRAMES_START + 2 * len(frames[0]), FRAMES_START + sum(map(len, frames))
    found = scan(parts, [*frames, single(parts, 2, durable_mark=end)])
    assert [(each.position, each.offsets) for each in found.damage] == [(again_at, range(0))]
    assert found.message_count == 3
