"""Batch files: the puts of one transaction, in a data file in waiting."""

from __future__ import annotations

import itertools
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from holdfast import CorruptionError, DiskFullError, RecordTooLargeError, StorageError, UnsupportedVersionError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.commit_record import Acknowledged, CommitRecord
from holdfast.persistence.format.constants import (
    COMPATIBLE_BORN_SEALED,
    FRAME_HEADER_BYTES,
    FRAMES_START,
    HEADER_COPY_POSITIONS,
    INDEX_STRIDE_BYTES,
    KIND_COMMIT_RECORD,
    KIND_SEAL,
)
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.format.report import DAMAGED
from holdfast.persistence.segment import batch_file, batch_file_buffer
from holdfast.persistence.segment.batch_file import BatchFileWriter, adopt_header, append_carried
from holdfast.persistence.segment.batch_file_buffer import CHUNK_BYTES
from holdfast.persistence.segment.batch_file_reader import (
    BatchSummary,
    commit_records_from_behind,
    messages,
    read_summary,
    verify_batch,
)
from holdfast.persistence.segment.file_walk import FileWalk
from holdfast.persistence.segment.frame_trailer import read_seal
from support.builders.log_parts import frame
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.storage_runs import durable_file

QUEUE_ID = b"q" * 16
PATH = Path("/t.batch")
AT = 10**18
NONCE = b"n" * 16

Messages = list[tuple[bytes, bytes]]
SMALL: Messages = [(b"first", b""), (b"", b"\x01\x00\x03\x00\x01kv"), (b"third" * 3, b"")]


def decision(count: int, first_offset: int | None = None, nonce: bytes = NONCE, padding: int = 0) -> CommitRecord:
    """Return a decision about so many messages."""
    runs = tuple((number, 1, 1, 5000) for number in range(padding))
    acknowledged = (Acknowledged("default", b"g" * 16, runs),) if runs else ()
    return CommitRecord("t", nonce, count, AT, first_offset, acknowledged)


CARRIED = [decision(2, first_offset=40, nonce=b"a" * 16), decision(0, first_offset=42, nonce=b"b" * 16, padding=30)]


def write(storage: SimulatedStorage, contents: Messages, path: Path = PATH) -> BatchFileWriter:
    """Write a whole batch, sync it and return the writer, open."""
    writer = BatchFileWriter(storage, path, QUEUE_ID)
    for number, (payload, headers) in enumerate(contents):
        writer.add(payload, headers, AT + number)
    writer.finish(decision(len(contents)))
    writer.sync()
    storage.sync_directory(path.parent)
    return writer


def written(contents: Messages) -> bytes:
    """Return the bytes of a batch file."""
    storage = SimulatedStorage()
    write(storage, contents).close()
    content = storage.tree()[PATH]
    assert content is not None
    return content


def read(storage: SimulatedStorage) -> Messages:
    """Return all messages of the batch."""
    return list(messages(storage, PATH, QUEUE_ID))


def summary(storage: SimulatedStorage) -> BatchSummary:
    """Return what the batch says of itself."""
    return read_summary(storage, PATH, QUEUE_ID)


def holding(content: bytes) -> SimulatedStorage:
    """Return a storage whose batch file is this."""
    return durable_file(content, PATH)[0]


# -- Writing and reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contents", [[], [(b"", b"")], SMALL, [(bytes(CHUNK_BYTES + 7), b"")] * 3], ids=len)
def test_a_batch_comes_back(contents: Messages) -> None:
    """Payloads, headers, decision and counts; with a message or without, small or larger than a chunk."""
    storage = SimulatedStorage()
    writer = write(storage, contents)
    found = summary(storage)
    assert read(storage) == contents
    assert found.commit_record == decision(len(contents))
    assert found.message_count == writer.message_count == len(contents)
    assert found.frames_bytes == sum(FRAME_HEADER_BYTES + len(p) + len(h) for p, h in contents)
    assert found.size_bytes == writer.end
    assert found.header == writer.header
    assert found.timestamp_max_ns == (AT + len(contents) - 1 if contents else 0)
    assert found.is_sealed
    assert verify_batch(storage, PATH, QUEUE_ID) == []


def test_what_finishing_returns_is_what_reading_finds() -> None:
    """Nobody has to read a file just because it was written."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    writer.add_many([bytes(30_000)] * 10, {3: b"\x01\x00\x02\x00\x01k"}, AT)
    assert writer.finish(decision(10)) == summary(storage)


def test_a_batch_file_is_a_data_file_but_for_its_place() -> None:
    """Sequence, first offset and base timestamp are 0, and every frame stands where a data file's would."""
    storage = SimulatedStorage()
    writer = write(storage, SMALL)
    header = writer.header
    assert (header.sequence, header.first_offset, header.base_timestamp_ns, header.features) == (0, 0, 0, 0)
    walk = FileWalk(writer.file, header, PATH, writer.end, len(SMALL))
    walk.run()
    assert walk.damage == []
    seal = read_seal(writer.file, header)
    assert seal is not None
    assert (seal.message_count, seal.timestamp_min_ns, seal.timestamp_max_ns) == (3, AT, AT + 2)


def test_the_seal_has_an_entry_about_every_stride() -> None:
    """Reading in the middle of an adopted file starts near."""
    storage = SimulatedStorage()
    writer = write(storage, [(bytes(10_000), b"")] * 40)
    seal = read_seal(writer.file, writer.header)
    assert seal is not None
    positions = [position for _, position in seal.entries]
    assert positions[0] == FRAMES_START
    assert len(positions) == 1 + (writer.end - FRAMES_START) // (INDEX_STRIDE_BYTES + 10_032)
    assert all(position == FRAMES_START + index * 10_032 for index, position in seal.entries)


def test_a_batch_of_another_queue_is_refused() -> None:
    """A directory may have been copied together from two."""
    storage = holding(written(SMALL))
    for attempt in (read_summary, lambda *args: list(messages(*args))):
        with pytest.raises(CorruptionError, match="another queue") as caught:
            attempt(storage, PATH, b"x" * 16)
        assert caught.value.path == str(PATH)
    assert "another queue" in verify_batch(storage, PATH, b"x" * 16)[0].reason


def test_a_newer_batch_is_told_from_a_damaged_one() -> None:
    """Whoever would abort it has to be kept from doing so."""
    content = bytearray(written(SMALL))
    for at in HEADER_COPY_POSITIONS:
        content[at + 8] += 1
    for attempt in (read_summary, verify_batch, lambda *args: list(messages(*args))):
        with pytest.raises(UnsupportedVersionError):
            attempt(holding(bytes(content)), PATH, QUEUE_ID)


def test_a_file_that_is_not_there_is_an_os_error() -> None:
    """Missing is not damaged."""
    with pytest.raises(FileNotFoundError):
        summary(SimulatedStorage())


def test_finding_the_decision_costs_the_same_however_many_messages_there_are() -> None:
    """Header, seal and decision are read, in windows that do not grow."""
    counts = []
    for count in (100, 10_000):
        storage = SimulatedStorage()
        writer = BatchFileWriter(storage, PATH, QUEUE_ID)
        writer.add_many([b"x" * 10] * count, {}, AT)
        writer.finish(decision(count))
        before = storage.verb_count
        assert summary(storage).message_count == count
        counts.append(storage.verb_count - before)
    assert counts[0] == counts[1]


# -- Streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100, CHUNK_BYTES - 41, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5])
@pytest.mark.parametrize("piece", [7777, 2 * CHUNK_BYTES + 9])
def test_a_streamed_message_is_the_same_as_an_added_one(size: int, piece: int) -> None:
    """Byte for byte, with messages before and behind it, in the file and read back."""
    payload = random.Random(size).randbytes(size)
    contents = [(b"before", b""), (payload, b"\x01\x00\x02\x00\x01k"), (b"behind", b"")]
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    writer.add(*contents[0], AT)
    chunks = [payload[at : at + piece] for at in range(0, size, piece)]
    assert writer.add_stream(chunks, contents[1][1], AT, max_bytes=size) == size
    writer.add(*contents[2], AT)
    writer.finish(decision(3))
    assert read(storage) == contents
    assert verify_batch(storage, PATH, QUEUE_ID) == []


def test_pieces_may_be_anything_bytes_like() -> None:
    """Arrays, views with gaps and empty ones too."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    big = bytearray(random.Random(1).randbytes(CHUNK_BYTES + 3))
    pieces = [b"a", bytearray(b"b"), memoryview(b"cxdx")[::2], b"", memoryview(b""), big, memoryview(big).cast("B")]
    writer.add_stream(pieces, b"", AT, max_bytes=2**30)
    writer.finish(decision(1))
    assert read(storage) == [(b"abcd" + bytes(big) * 2, b"")]


class Broken(BaseException):
    """What a producer raises."""


def breaking(chunks: Iterable[bytes], error: BaseException) -> Iterator[bytes]:
    """Yield some, then raise."""
    yield from chunks
    raise error


@pytest.mark.parametrize("error", [Broken(), KeyboardInterrupt(), OSError(28, "the producer's own"), ValueError()])
@pytest.mark.parametrize("before", [10, 3 * CHUNK_BYTES])
def test_a_producer_that_raises_leaves_nothing(error: BaseException, before: int) -> None:
    """Its error comes out as it is, and the file ends up as if the stream had never begun."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    writer.add(b"first", b"", AT)
    with pytest.raises(type(error)) as caught:
        writer.add_stream(breaking([b"y" * before], error), b"", AT + 99, max_bytes=2**30)
    assert caught.value is error
    assert writer.message_count == 1
    size = writer.file.size()
    assert size <= writer.end, "the room it took goes back to the file system"
    writer.add(b"second", b"", AT)
    writer.finish(decision(2))
    assert read(storage) == [(b"first", b""), (b"second", b"")]
    assert summary(storage).timestamp_max_ns == AT
    assert storage.tree()[PATH].count(b"yyyy") == 0


@pytest.mark.parametrize("chunk", ["text", 5, None, [b"a"]])
def test_a_piece_that_is_not_bytes_like_is_refused(chunk: object) -> None:
    """Text is not encoded by guess."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    with pytest.raises(TypeError, match="bytes-like"):
        writer.add_stream([b"good", chunk], b"", AT, max_bytes=100)
    writer.finish(decision(0))
    assert read(storage) == []


def test_a_stream_that_passes_its_bound_is_stopped() -> None:
    """As soon as it does, not when it ends."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    endless = iter(lambda: bytes(1000), None)
    with pytest.raises(RecordTooLargeError) as caught:
        writer.add_stream(endless, b"", AT, max_bytes=5_000_000)
    assert caught.value.max_bytes == 5_000_000
    assert writer.message_count == 0
    assert writer.add_stream([bytes(1000)], b"", AT, max_bytes=1000) == 1000


def test_the_file_keeps_its_bound() -> None:
    """Whatever adds the message that would pass it, and the ones before it stay."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID, bytes_max=20_000)
    writer.add(bytes(10_000), b"", AT)
    for attempt in (
        lambda: writer.add(bytes(6000), b"", AT),
        lambda: writer.add_many([bytes(100)] * 60, {}, AT),
        lambda: writer.add_stream([bytes(100)] * 60, b"", AT, max_bytes=2**30),
    ):
        with pytest.raises(RecordTooLargeError, match="cannot commit"):
            attempt()
        assert writer.message_count == 1
    writer.finish(decision(1))
    assert read(storage) == [(bytes(10_000), b"")]


def test_memory_stays_bounded_however_long_a_stream_is(tmp_path: Path) -> None:
    """100 MB go through; a few chunks are held."""
    writer = BatchFileWriter(OsStorage(), tmp_path / "t.batch", QUEUE_ID)
    tracemalloc.start()
    try:
        size = writer.add_stream((bytes(50_000) for _ in range(2000)), b"", AT, max_bytes=2**30)
        writer.finish(decision(1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        writer.close()
    assert size == 10**8
    assert peak < 4 * CHUNK_BYTES
    assert read_summary(OsStorage(), tmp_path / "t.batch", QUEUE_ID).frames_bytes == size + FRAME_HEADER_BYTES


# -- Failing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [28, KeyboardInterrupt()])
@pytest.mark.parametrize("fail_at", range(1, 6))
@pytest.mark.parametrize("short", [False, True])
def test_a_write_that_fails_adds_nothing(error: int | BaseException, fail_at: int, short: bool) -> None:
    """Whatever was being added, all of it can be tried again, and the file ends up whole."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    contents: Messages = []
    storage.faults = FaultPlan(fail_at, error=error, short_write=short, forever=short, verbs=frozenset({"write_at"}))
    for number in range(12):
        payload = bytes([number]) * (300_000 + 250_000 * (number % 4))
        for _ in range(2):
            before = (writer.message_count, writer.end)
            try:
                if number % 3:
                    writer.add_many([payload, b"small"], {1: b"\x01\x00\x02\x00\x01k"}, AT)
                    contents += [(payload, b""), (b"small", b"\x01\x00\x02\x00\x01k")]
                else:
                    writer.add_stream([payload[:1000], payload[1000:]], b"", AT, max_bytes=2**30)
                    contents.append((payload, b""))
                break
            except (DiskFullError, StorageError, KeyboardInterrupt):
                assert (writer.message_count, writer.end) == before
                storage.faults.forever = False
    assert storage.faults.fired_count
    writer.finish(decision(len(contents)))
    assert read(storage) == contents
    assert verify_batch(storage, PATH, QUEUE_ID) == []


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Interrupt a call at a line it runs of the writer or its buffer; return whether it has so many."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal count
        if not frame.f_code.co_filename.endswith(("batch_file.py", "batch_file_buffer.py")):
            return None
        count += event == "line"
        if event == "line" and count == line:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("streamed", [False, True])
def test_an_interruption_at_any_line_adds_all_or_nothing(streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is added behind it stands where it should."""
    for module in (batch_file, batch_file_buffer):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    added = [(b"a" * 800 + b"b" * 1200, b"\x01\x00\x02\x00\x01k")]
    added += [] if streamed else [(b"c" * 300, b""), (b"d" * 700, b"")]
    outcomes = set()
    for line in itertools.count(1):
        storage = SimulatedStorage()
        writer = BatchFileWriter(storage, PATH, QUEUE_ID)
        writer.add(b"before", b"", AT)

        def call(writer: BatchFileWriter = writer) -> None:
            if streamed:
                writer.add_stream([b"a" * 800, b"b" * 1200], added[0][1], AT, max_bytes=2**20)
            else:
                writer.add_many([payload for payload, _ in added], {0: added[0][1]}, AT)

        was_interrupted = interrupted_at(line, call)
        outcomes.add(writer.message_count)
        contents = [(b"before", b""), *(added if writer.message_count > 1 else []), (b"behind", b"")]
        writer.add(b"behind", b"", AT)
        writer.finish(decision(len(contents)))
        assert read(storage) == contents
        assert verify_batch(storage, PATH, QUEUE_ID) == []
        if not was_interrupted:
            break
    assert line > 20
    assert outcomes == {1, 1 + len(added)}


@pytest.mark.parametrize("verb", ["write_at", "truncate"])
def test_finishing_can_be_tried_again(verb: str) -> None:
    """On a disk that was full, once there is room."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    writer.add(b"first", b"", AT)
    storage.faults = FaultPlan(1, error=28, verbs=frozenset({verb}))
    with pytest.raises(DiskFullError, match="writing a batch"):
        writer.finish(decision(1))
    writer.finish(decision(1))
    assert read(storage) == [(b"first", b"")]


@pytest.mark.parametrize(
    ("verb", "attempt"),
    [("open", lambda s: BatchFileWriter(s, PATH, QUEUE_ID)), ("sync", lambda s: write(s, SMALL))],
)
def test_errors_of_the_disk_come_out_as_storage_errors(verb: str, attempt: object) -> None:
    """One line that says what was tried."""
    storage = SimulatedStorage()
    storage.faults = FaultPlan(1, verbs=frozenset({verb}))
    with pytest.raises(StorageError, match="batch"):
        attempt(storage)  # type: ignore[operator]


def test_a_discarded_batch_is_gone() -> None:
    """Whatever had become of it; and once it is gone, discarding it does nothing."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    writer.add(b"first", b"", AT)
    writer.discard()
    assert PATH not in storage.tree()
    writer.discard()


# -- Damage ----------------------------------------------------------------------------------------------------------


def test_every_cut_of_a_batch_is_refused_or_reads_right() -> None:
    """It reads as long as its decision is there; what is missing of the seal is told by ``verify_batch``."""
    whole = written(SMALL)
    end = summary(holding(whole)).commit_record_end
    for size in range(len(whole)):
        storage = holding(whole[:size])
        if size < end:
            for attempt in (read, summary):
                with pytest.raises(CorruptionError) as caught:
                    attempt(storage)
                assert caught.value.path == str(PATH)
            assert verify_batch(storage, PATH, QUEUE_ID), size
        else:
            assert read(storage) == SMALL
            found = summary(storage)
            assert (found.commit_record, found.seal) == (decision(3), summary(holding(whole)).seal)
            assert not found.is_sealed
            (damage,) = verify_batch(storage, PATH, QUEUE_ID)
            assert (damage.position, len(damage.offsets)) == (end, 0)


@pytest.mark.parametrize("flip", [1, 0x80, 0xFF])
def test_every_byte_that_flips_is_found_or_changes_nothing(flip: int) -> None:
    """No other payload ever comes out, and nothing that is told of the batch is wrong."""
    whole = written(SMALL)
    good = summary(holding(whole))
    zeros = range(HEADER_COPY_POSITIONS[0] + 512, HEADER_COPY_POSITIONS[1])
    for at in [0, 8, 20, 56, 511, 600, *range(HEADER_COPY_POSITIONS[1], len(whole))]:
        broken = bytearray(whole)
        broken[at] ^= flip
        storage = holding(bytes(broken))
        damage = verify_batch(storage, PATH, QUEUE_ID)
        assert damage or at in zeros, at
        try:
            found = read(storage)
        except CorruptionError:
            assert FRAMES_START <= at < good.commit_record_end
            assert any(each.verdict == DAMAGED and each.position <= at for each in damage)
        else:
            assert found == SMALL
            assert not FRAMES_START <= at < good.commit_record_end
        try:
            told = summary(storage)
        except CorruptionError:
            assert good.commit_record_position <= at < good.commit_record_end
        else:
            assert (told.commit_record, told.seal) == (good.commit_record, good.seal)


def test_a_damaged_message_is_named() -> None:
    """By its number in the batch, and the ones around it are not."""
    content = bytearray(written(SMALL))
    content[FRAMES_START + FRAME_HEADER_BYTES + 5 + FRAME_HEADER_BYTES + 2] ^= 1
    storage = holding(bytes(content))
    (damage,) = verify_batch(storage, PATH, QUEUE_ID)
    assert (damage.offsets, damage.position) == (range(1, 2), FRAMES_START + FRAME_HEADER_BYTES + 5)
    reading = messages(storage, PATH, QUEUE_ID)
    assert next(reading) == SMALL[0]
    with pytest.raises(CorruptionError, match="whole batch") as caught:
        next(reading)
    assert caught.value.position == damage.position


def test_stale_bytes_behind_the_decision_do_not_count() -> None:
    """A crash may leave anything there: half a seal, zeros, the end of a longer file."""
    whole = written(SMALL)
    end = summary(holding(whole)).commit_record_end
    for behind in (bytes(5000), whole[FRAMES_START:], whole[end:-1], whole[end:] + bytes(10), b"\xff" * 77):
        storage = holding(whole[:end] + behind)
        assert read(storage) == SMALL
        assert summary(storage).commit_record == decision(3)


# -- Becoming a data file --------------------------------------------------------------------------------------------


def placed_header(header: DataFileHeader) -> DataFileHeader:
    """Return the header of a place in a log."""
    return replace(
        header,
        sequence=7,
        first_offset=500,
        base_timestamp_ns=AT,
        previous_sequence=6,
        previous_end=9999,
        features=COMPATIBLE_BORN_SEALED,
    )


@pytest.mark.parametrize("carried", [[], CARRIED])
@pytest.mark.parametrize("contents", [[], SMALL], ids=len)
def test_an_adopted_batch_is_a_sealed_data_file(contents: Messages, carried: list[CommitRecord]) -> None:
    """Its header says where it stands, its frames are what they were, and its decisions are found from behind."""
    storage = SimulatedStorage()
    writer = write(storage, contents)
    header = placed_header(writer.header)
    append_carried(writer.file, writer.header, carried)
    adopt_header(writer.file, header)
    for copy in HEADER_COPY_POSITIONS:
        assert writer.file.read_at(512, copy) == header.encode()
    walk = FileWalk(writer.file, header, PATH, writer.file.size(), len(contents))
    walk.run()
    assert (walk.damage, walk.message_count) == ([], len(contents))
    seal = read_seal(writer.file, header)
    assert seal is not None
    assert seal.message_count == len(contents)
    assert commit_records_from_behind(writer.file, header) == [decision(len(contents), 500), *carried]
    assert read(storage) == contents
    assert summary(storage).is_sealed == (not carried)


def test_carrying_again_replaces_what_was_carried() -> None:
    """A crash may come between carrying and adopting, and other decisions be open then."""
    storage = SimulatedStorage()
    writer = write(storage, SMALL)
    before = storage.tree()[PATH]
    for carried in (CARRIED, CARRIED[1:], CARRIED):
        append_carried(writer.file, writer.header, carried)
        assert commit_records_from_behind(writer.file, writer.header)[1:] == carried
    append_carried(writer.file, writer.header, [])
    assert storage.tree()[PATH] == before


def test_nothing_is_carried_into_what_is_no_whole_batch() -> None:
    """Its decision cannot be found, so nobody knows where it ends."""
    _, file = durable_file(written(SMALL)[:-100], PATH)
    with pytest.raises(CorruptionError, match="no whole batch"):
        append_carried(file, DataFileHeader(QUEUE_ID, 0, 0, 0), CARRIED)


def test_decisions_that_can_still_be_read_are_found_behind_damage() -> None:
    """Rot in the seal, in a decision or in a message costs what it hit."""
    storage = SimulatedStorage()
    writer = write(storage, SMALL)
    append_carried(writer.file, writer.header, CARRIED)
    header = placed_header(writer.header)
    adopt_header(writer.file, header)
    whole = storage.tree()[PATH]
    assert whole is not None
    everything = [decision(3, 500), *CARRIED]
    for at in range(FRAMES_START, len(whole), 3):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        found = commit_records_from_behind(durable_file(bytes(broken), PATH)[1], header)
        assert len(found) >= 2
        assert found == [each for each in everything if each in found]


# -- Crashes ---------------------------------------------------------------------------------------------------------


def crash_states(storage: SimulatedStorage, since: int, seed: int) -> Iterator[SimulatedStorage]:
    """Yield what crashes leave behind each operation since a point of the log: a kill, the worst, and by chance."""
    rng = random.Random(seed)
    for count, moment in enumerate(storage.replay()):
        if count < since:
            continue
        yield moment.crash_keeping_all()
        yield moment.crash_dropping_unsynced()
        for _ in range(20):
            yield moment.random_crash(rng)


def test_a_crash_while_a_batch_is_written_never_shows_wrong_messages() -> None:
    """Before the sync it is whole or refused; behind it, it is whole."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    storage.sync_directory(PATH.parent)
    since = len(storage.log)
    contents = [*SMALL, (random.Random(1).randbytes(3000), b"")]
    writer.add_many([payload for payload, _ in contents[:2]], {1: contents[1][1]}, AT)
    writer.add(*contents[2], AT)
    writer.add_stream([contents[3][0]], b"", AT, max_bytes=2**20)
    writer.finish(decision(4))
    writer.sync()
    whole = refused = 0
    for crashed in crash_states(storage, since, seed=1):
        try:
            assert read(crashed) == contents
            assert summary(crashed).commit_record == decision(4)
            whole += 1
        except CorruptionError:
            refused += 1
    assert whole
    assert refused
    for crashed in crash_states(storage, len(storage.log), seed=2):
        assert read(crashed) == contents
        assert summary(crashed).is_sealed


@pytest.mark.parametrize("contents", [[], SMALL], ids=len)
def test_a_crash_while_a_batch_is_adopted_leaves_it_readable(contents: Messages) -> None:
    """With carried decisions or half of them, with the old header or the new; and it can be adopted then."""
    storage = SimulatedStorage()
    writer = write(storage, contents)
    since = len(storage.log)
    header = placed_header(writer.header)
    append_carried(writer.file, writer.header, CARRIED)
    adopt_header(writer.file, header)
    writer.file.sync()
    sealed = set()
    for crashed in crash_states(storage, since, seed=3):
        found = summary(crashed)
        assert found.commit_record == decision(len(contents))
        assert found.header in (writer.header, header)
        assert read(crashed) == contents
        sealed.add(found.is_sealed)
        file = crashed.open(PATH)
        append_carried(file, found.header, CARRIED[:1])
        adopt_header(file, header)
        assert commit_records_from_behind(file, header) == [decision(len(contents), 500), CARRIED[0]]
        assert verify_batch(crashed, PATH, QUEUE_ID) == []
    assert sealed == {True, False}


# -- Frames that verify and say nothing --------------------------------------------------------------------------------


def no_seal(header: DataFileHeader, index: int) -> bytes:
    """Return a frame that is found from the end as a seal is, and is none."""
    return frame(header, (FRAME_HEADER_BYTES + 4).to_bytes(4, "little"), index, kind=KIND_SEAL)


def test_a_batch_behind_which_no_seal_stands_is_read_from_its_start() -> None:
    """The frame there has the kind of one, and a good checksum."""
    storage = SimulatedStorage()
    writer = write(storage, SMALL)
    header, end = writer.header, summary(storage).commit_record_end
    content = storage.tree()[PATH]
    assert content is not None
    broken = holding(content[:end] + no_seal(header, len(SMALL)))
    assert (summary(broken).commit_record, summary(broken).is_sealed) == (decision(3), False)
    assert read(broken) == SMALL
    assert [damage.reason for damage in verify_batch(broken, PATH, QUEUE_ID)] == ["no seal that fits ends the file"]
    in_a_message = bytearray(content[:end] + no_seal(header, len(SMALL)))
    in_a_message[FRAMES_START + FRAME_HEADER_BYTES] ^= 1
    damage = verify_batch(holding(bytes(in_a_message)), PATH, QUEUE_ID)
    assert damage[0].position == FRAMES_START


def test_what_is_carried_and_no_decision_is_not_acted_upon() -> None:
    """The others are found; its checksum is right."""
    storage = SimulatedStorage()
    writer = write(storage, SMALL)
    append_carried(writer.file, writer.header, CARRIED)
    header = placed_header(writer.header)
    adopt_header(writer.file, header)
    content = storage.tree()[PATH]
    assert content is not None
    trailer = (FRAME_HEADER_BYTES + 12).to_bytes(4, "little")
    strange = frame(header, b"not one." + trailer, len(SMALL), kind=KIND_COMMIT_RECORD)
    file = durable_file(content + strange, PATH)[1]
    found = commit_records_from_behind(file, header)
    assert found == [decision(3, 500), *CARRIED]


def test_an_addition_that_is_interrupted_before_it_counts_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one takes its place, in the sparse index of the seal too."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    writer.add(bytes(INDEX_STRIDE_BYTES), b"", AT)

    def interrupted(*_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batch_file, "_State", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.add(bytes(INDEX_STRIDE_BYTES), b"", AT)
    for _ in range(2):
        writer.add(bytes(INDEX_STRIDE_BYTES), b"", AT)
    writer.finish(decision(3))
    seal = read_seal(writer.file, writer.header)
    assert seal is not None
    assert [index for index, _ in seal.entries] == [0, 1, 2]
    assert read(storage) == [(bytes(INDEX_STRIDE_BYTES), b"")] * 3


def test_a_batch_that_no_data_file_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is written; what was added before stays."""
    storage = SimulatedStorage()
    writer = BatchFileWriter(storage, PATH, QUEUE_ID)
    writer.add(bytes(1000), b"", AT)
    monkeypatch.setattr(batch_file, "DATA_FILE_BYTES_LIMIT", FRAMES_START + 2000)
    with pytest.raises(RecordTooLargeError, match="put less in one transaction") as caught:
        writer.finish(decision(1, padding=100))
    assert caught.value.max_bytes == FRAMES_START + 2000
    assert caught.value.size_bytes > caught.value.max_bytes
    writer.finish(decision(1))
    assert read(storage) == [(bytes(1000), b"")]
