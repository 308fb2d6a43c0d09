"""A whole queue directory: the golden ones of ``tests/compat`` with some of their bytes changed.

An input is a list of patches: which file, what becomes of it, where, and the bytes. Afterwards every checksum of that
file may be put right again. Then the queue is verified, opened, used and closed, and opened once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from holdfast import Empty, HoldfastError, PersistentQueue, verify
from holdfast.persistence.format.constants import FRAMES_START, OUTCOME_SLOT, WRITE_MARK, WRITE_MARK_BYTES
from holdfast.persistence.format.file_header import DataFileHeader, PositionFileHeader, block_copies
from holdfast.queue.inspect.browse import State
from proof.fuzz.reseal import (
    reseal_blocks,
    reseal_entries,
    reseal_frames,
    reseal_slots,
    resealed_document,
    resealed_end,
)
from support.storages.simulated_storage import SimulatedStorage

COMPAT = Path(__file__).resolve().parents[2] / "compat"
ROOTS = {name: Path("/") / name for name in ("v2", "joint-v2")}
FILE_BYTES = 16 * 1024
PATCH_BYTES = 6
"""What stands before the bytes of a patch: file, how, two bytes of position, how many bytes, one to spare."""

IS_SEALED, CUTS, SWAPS, IS_LOW = 1, 2, 4, 8
"""Bits of how: checksums are put right; the file ends there; another file's bytes stand there; near the start."""

SHOWN_MAX = 10_000
AFTER = b"behind the damage"


class Template(NamedTuple):
    """The golden directories on one disk, and what of each kind they hold."""

    storage: SimulatedStorage
    files: tuple[Path, ...]
    contents: dict[Path, bytes]
    payloads: dict[Path, frozenset[bytes]]


@cache
def template() -> Template:
    """Return the golden queues, in memory."""
    storage = SimulatedStorage()
    contents: dict[Path, bytes] = {}
    for name, root in ROOTS.items():
        storage.make_directory(root)
        for path in sorted((COMPAT / name).rglob("*")):
            target = root / path.relative_to(COMPAT / name)
            if path.is_dir():
                storage.make_directory(target)
            else:
                contents[target] = path.read_bytes()
                _write(storage, target, contents[target])
    payloads = {root: frozenset(_payloads(storage.crash_keeping_all(), root)) for root in ROOTS.values()}
    return Template(storage.crash_keeping_all(), tuple(sorted(contents)), contents, payloads)


def _write(storage: SimulatedStorage, path: Path, content: bytes) -> None:
    file = storage.open(path, create=True)
    file.truncate(0)
    file.write_at((content,), 0)
    file.sync()
    file.close()


def _payloads(storage: SimulatedStorage, root: Path) -> Iterator[bytes]:
    """Yield every payload that the golden queue holds, prepared ones too."""
    with PersistentQueue(root, mode="exclusive", data_file_bytes=FILE_BYTES, storage=storage) as queue:
        for prepared in queue.prepared():
            with suppress(HoldfastError):
                queue.commit_prepared(prepared.id)
        queue.groups.create("everything")
        for letter in queue.dead.list():
            yield letter.payload
    for group in ("everything", "default"):
        with PersistentQueue(
            root, data_file_bytes=FILE_BYTES, storage=storage, group=group, mode="read_only"
        ) as looked:
            states: tuple[State, ...] = ("ready", "delayed", "leased", "dead")
            for state in states:
                with suppress(HoldfastError, ValueError):
                    yield from (each.payload for each in looked.browse(state, limit=SHOWN_MAX))
            yield from (each.payload for each in looked.peek(SHOWN_MAX))


def directory(data: bytes) -> None:
    """Patch a golden queue and use it: HoldfastError and nothing else; no payload that nobody has put."""
    whole = template()
    changed, is_sealed = _patched(whole, data)
    storage = whole.storage.crash_keeping_all()
    for path, content in changed.items():
        _write(storage, path, content)
    roots = {ROOTS[path.parts[1]] for path in changed} or {ROOTS["v2"]}
    for root in sorted(roots):
        expected = None if is_sealed else whole.payloads[root] | {AFTER}
        with suppress(HoldfastError):
            assert str(verify(root, storage=storage))
        with suppress(HoldfastError):
            _look(storage, root, expected)
        with suppress(HoldfastError):
            _use(storage, root, expected)
        with (
            suppress(HoldfastError),
            PersistentQueue(root, mode="exclusive", data_file_bytes=FILE_BYTES, storage=storage) as queue,
        ):
            queue.qsize()


def _look(storage: SimulatedStorage, root: Path, expected: frozenset[bytes] | None) -> None:
    with PersistentQueue(root, storage=storage, mode="read_only") as queue:
        _check([message.payload for message in queue.peek(SHOWN_MAX)], expected)
        queue.stats()
        assert str(queue.recovery)


def _use(storage: SimulatedStorage, root: Path, expected: frozenset[bytes] | None) -> None:
    with PersistentQueue(root, mode="exclusive", data_file_bytes=FILE_BYTES, storage=storage, backoff=[]) as queue:
        for prepared in queue.prepared():
            with suppress(HoldfastError):
                queue.commit_prepared(prepared.id)
        _check([letter.payload for letter in queue.dead.list()], expected)
        with suppress(Empty, HoldfastError):
            for _ in range(SHOWN_MAX):
                with queue.receive_many(100, timeout=0) as deliveries:
                    _check([delivery.payload for delivery in deliveries], expected)
            raise AssertionError("the queue never gets empty")
        with suppress(HoldfastError):
            queue.put(AFTER)
        queue.stats()
        assert str(queue.recovery)


def _check(payloads: list[bytes], expected: frozenset[bytes] | None) -> None:
    if expected is not None:
        wrong = [payload for payload in payloads if payload not in expected]
        assert not wrong, f"nobody has put {wrong[:3]}"


# -- Patches ---------------------------------------------------------------------------------------------------------


def _patched(whole: Template, data: bytes) -> tuple[dict[Path, bytes], bool]:
    """Return what is changed, and whether any checksum was put right."""
    changed: dict[Path, bytearray] = {}
    sealed: set[Path] = set()
    at = 0
    while at + PATCH_BYTES <= len(data):
        number, how, position, size, _ = data[at], data[at + 1], data[at + 2 : at + 4], data[at + 4], data[at + 5]
        content = data[at + PATCH_BYTES : at + PATCH_BYTES + size]
        at += PATCH_BYTES + size
        path = whole.files[number % len(whole.files)]
        target = changed.setdefault(path, bytearray(whole.contents[path]))
        start = int.from_bytes(position, "little")
        start += 0 if how & IS_LOW or len(target) <= FRAMES_START else FRAMES_START
        start = min(start, len(target))
        if how & SWAPS:
            other = whole.contents[whole.files[(number + 1 + size) % len(whole.files)]]
            content = other[start : start + 512]
        target[start : start + len(content)] = content
        if how & CUTS:
            del target[start + len(content) :]
        if how & IS_SEALED:
            sealed.add(path)
    for path in sealed:
        changed[path] = _resealed(path, changed[path])
    return {path: bytes(content) for path, content in changed.items()}, bool(sealed)


def _resealed(path: Path, content: bytearray) -> bytearray:
    if path.suffix == ".json":
        return bytearray(resealed_document(bytes(content)))
    if path.name == "write.mark":
        return bytearray(resealed_end(bytes(content[: WRITE_MARK.size])) + content[WRITE_MARK_BYTES:])
    if path.name == "decided":
        reseal_slots(content, OUTCOME_SLOT.size)
        return content
    reseal_blocks(content)
    with suppress(HoldfastError):
        if path.suffix == ".position":
            reseal_entries(content, PositionFileHeader.decode(block_copies(bytes(content)), "").salt)
        elif path.suffix in (".data", ".batch"):
            reseal_frames(content, DataFileHeader.decode(block_copies(bytes(content)), "").salt, FRAMES_START)
    return content
