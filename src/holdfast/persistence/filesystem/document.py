"""Small documents: JSON with a checksum, for people and tools. After a crash the old or the new one is there, whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.errors import CorruptionError, StorageError
from holdfast.persistence.filesystem.poison import Poison, commit_unknown, undoing
from holdfast.persistence.filesystem.storage import MISSING, File, Storage, read_whole, write_whole
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import FORMAT_VERSION, SMALL_DOCUMENT_BYTES_MAX
from holdfast.persistence.format.json_object import as_number, parse_object
from holdfast.persistence.format.version import other_version

_in_order = json.JSONEncoder(sort_keys=True).encode


def write_document(
    storage: Storage, path: Path, fields: dict[str, Any], bytes_max: int = SMALL_DOCUMENT_BYTES_MAX
) -> None:
    """Write a small JSON document; after any crash the old or the new one is there, whole and durable.

    Raises
    ------
    StorageError
        It would be larger than ``bytes_max``, so it could not be read again; nothing was written.
    OSError
        The disk refuses.
    """
    text = json.dumps({**fields, "crc32c": _document_checksum(fields)}, indent=2) + "\n"
    if len(text) > bytes_max:
        raise StorageError(
            f"{path} would take {len(text)} bytes and may have {bytes_max}; nothing was written", path=str(path)
        )
    with made_anew(storage, path, is_first=False) as file:
        write_whole(file, (text.encode(),), 0)


def keep_damaged(storage: Storage, path: Path, bytes_max: int = SMALL_DOCUMENT_BYTES_MAX) -> None:
    """Copy a damaged document that is about to be replaced, as far as its kind can be: it may say what was lost.

    The copy has the ending ``.damaged``. Nothing is left of one that is missing. Raises ``OSError``.
    """
    try:
        file = storage.open(path, writable=False)
    except MISSING:
        return
    with file:
        content = file.read_at(bytes_max, 0)
    with made_anew(storage, path.with_name(f"{path.name}.damaged"), is_first=False) as copy:
        write_whole(copy, (content,), 0)


def replace_document(
    storage: Storage,
    path: Path,
    old: dict[str, Any],
    new: dict[str, Any],
    bytes_max: int = SMALL_DOCUMENT_BYTES_MAX,
) -> None:
    """Write a document in the place of ``old``; a failure leaves that one, as readers see it and on the disk.

    If its name was not synced, a second sync could succeed over the lost name: so ``old`` is given a new one.

    Raises
    ------
    CommitUnknownError
        The disk refuses that too: after a loss of power either may be there.
    StorageError, OSError
        As :func:`write_document`.
    """
    try:
        write_document(storage, path, new, bytes_max)
    except OSError as error:
        try:
            if read_document(storage, path, bytes_max) != old:
                write_document(storage, path, old, bytes_max)
        except (OSError, StorageError):
            raise commit_unknown("changing a document", path, error) from error
        raise


def sync_document(storage: Storage, path: Path, bytes_max: int = SMALL_DOCUMENT_BYTES_MAX) -> None:
    """Make a document durable that is there: the process that made it may have been killed before it synced its name.

    If the sync fails, the document is written anew: a second sync could succeed over the lost name. The caller holds
    the lock of those that change it. Raises ``OSError``.
    """
    try:
        storage.sync_directory(path.parent)
    except OSError:
        with suppress(OSError, StorageError, CorruptionError):
            write_document(storage, path, read_document(storage, path, bytes_max), bytes_max)
        raise


def read_document(storage: Storage, path: Path, bytes_max: int = SMALL_DOCUMENT_BYTES_MAX) -> dict[str, Any]:
    """Return what :func:`write_document` wrote.

    Raises
    ------
    CorruptionError
        It is damaged, or larger than ``bytes_max``.
    UnsupportedVersionError
        A Holdfast of another format version wrote it.
    """
    text = read_whole(storage, path, bytes_max)
    try:
        fields, is_whole = (_known if len(text) <= SMALL_DOCUMENT_BYTES_MAX else _parsed)(text)
        version = as_number(fields["format"])
    except (ValueError, KeyError):
        raise CorruptionError(f"{path} is not a document of Holdfast any more; restore it", path=str(path)) from None
    if not is_whole:
        raise CorruptionError(f"{path} does not match its checksum; restore it", path=str(path))
    if version != FORMAT_VERSION:
        raise other_version(str(path), version)
    return fields.copy()


@lru_cache(maxsize=64)
def _known(text: bytes) -> tuple[dict[str, Any], bool]:
    """As :func:`_parsed`, cached for the few documents that are read often. No caller may change the shared fields.

    Large documents are not cached.
    """
    return _parsed(text)


def _parsed(text: bytes) -> tuple[dict[str, Any], bool]:
    """Return the fields, and whether they match their checksum."""
    fields = parse_object(text)
    checksum = fields.pop("crc32c")
    return fields, checksum == _document_checksum(fields)


def _document_checksum(fields: dict[str, Any]) -> str:
    return f"{crc32c(0, _in_order(fields).encode()):08x}"


@contextmanager
def undone(storage: Storage, path: Path, poison: Poison | None = None) -> Iterator[None]:
    """Remove a new document whose making fails: a second sync could succeed over a lost name."""
    try:
        yield
    except BaseException:
        with undoing(poison), suppress(FileNotFoundError):
            storage.remove(path)
        raise


@contextmanager
def made_anew(storage: Storage, path: Path, *, is_first: bool = True) -> Iterator[File]:
    """Give the block an empty file beside ``path``; sync it then, name it, and sync the directory.

    A failure leaves no file beside ``path``. With ``is_first`` (no file was durable there before), it leaves none at
    ``path`` either.
    """
    new = path.with_name(path.name + ".new")
    with storage.open(new, create=True) as file, undone(storage, new):
        file.truncate(0)
        yield file
        file.sync()
        storage.rename(new, path)
    with undone(storage, path) if is_first else nullcontext():
        storage.sync_directory(path.parent)
