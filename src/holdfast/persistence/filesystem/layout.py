"""Where the files of one queue are, what they are called, and how a queue directory comes into being.

::

    orders/
      queue.json    write.lock    write.mark
      priorities                                      empty; there from the first message with a priority on
      dedup.ids                                       there from the first message with a deduplication id on
      data/0000000001-00000000000000000000.data       sequence - first offset
      data/0000000002-0000000005-1-00000000000000025600.data
                                                      merged: first and last sequence, generation, first offset
      data/next.merged                                one of these while it is being made
      groups/.lock                                    creating a group and retiring a file exclude each other
      groups/default/group.json  read.lock  0000000007.position
      spare/                                          emptied data files, and the next one while it is being made
      prepared/<transaction id>.batch                 puts of transactions that are not decided
      prepared/<nonce>.staging                        puts of one that is open, and has many; gone with its process
      prepared/0000000001.log                         puts of many transactions that are not decided, if they are small
      prepared/0000000001.log.damaged                 a damaged segment that was quarantined, for people
      prepared/decided, groups/<name>/decided         the latest transactions that were decided
      prepared/joint.json                             the latest joint commits
      .owner/lock  socket  sessions/                  who owns the queue and who lives; see persistence/ownership/
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, CorruptionError, QueueNotFoundError, UnsupportedVersionError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.access import check_parts, check_root
from holdfast.persistence.filesystem.directories import make_parents, sync_name
from holdfast.persistence.filesystem.document import (
    keep_damaged,
    read_document,
    replace_document,
    sync_document,
    undone,
    write_document,
)
from holdfast.persistence.filesystem.locks import Owned
from holdfast.persistence.filesystem.queue_id import id_of_most
from holdfast.persistence.filesystem.storage import MISSING, File, Storage, storage_error
from holdfast.persistence.format.constants import FORMAT_VERSION, FRAMES_START, NUMBER_MAX
from holdfast.persistence.format.file_header import DataFileHeader, block_copies, random_id
from holdfast.persistence.format.json_object import read_id

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_SEQUENCE = "([0-9]{10}|[1-9][0-9]{10,})"  # as it is written, with no other zeros
_DATA_FILE = re.compile(rf"{_SEQUENCE}-([0-9]{{20}})\.data")
_MERGED_FILE = re.compile(rf"{_SEQUENCE}-{_SEQUENCE}-([1-9][0-9]{{0,9}})-([0-9]{{20}})\.data")
_POSITION_FILE = re.compile(r"([0-9]{10,})\.position")
_SEGMENT = re.compile(rf"{_SEQUENCE}\.log")
_DAMAGED_SEGMENT = re.compile(rf"{_SEQUENCE}\.log\.damaged")
_CREATE_SECONDS = 60.0
_BATCH_FILE = re.compile(rf"({_NAME.pattern})\.batch(\.again)?")  # the latter between two renames: file_names.py
PREPARED_LOG = "prepared-log"
"""The feature of a queue that may have segments of the prepared log."""
MERGED = "merged"
"""The feature of a queue that may have merged data files."""
_FEATURES = frozenset({MERGED, PREPARED_LOG})

_TOP_LEVEL = frozenset(
    {
        "queue.json",
        "queue.json.new",
        "queue.json.damaged",
        "queue.json.damaged.new",
        "write.lock",
        "write.mark",
        "priorities",
        "priorities.new",
    }
    | {"dedup.ids", "dedup.ids.new", "data", "groups", "spare", "prepared", ".owner"}
)


class DataFileName(NamedTuple):  # one is made for each file each time that the directory is listed
    """The name of a data file.

    Attributes
    ----------
    sequence : int
        Its number; of a merged file, that of the last one that it replaces.
    first_offset : int
        Offset of its first message; of a merged file, of the first one that the files had that it replaces.
    replaced_before : int
        How many numbers before ``sequence`` a merged file replaces too.
    generation : int
        How often its messages were merged; 0 of a file that is not a merged one.
    """

    sequence: int
    first_offset: int
    replaced_before: int = 0
    generation: int = 0

    @property
    def first_sequence(self) -> int:
        """The first number that the file replaces; its own if it replaces none."""
        return self.sequence - self.replaced_before

    @property
    def is_merged(self) -> bool:
        """Whether it has taken the place of other files."""
        return self.generation > 0

    def is_before(self, following: DataFileName) -> bool:
        """Whether a file is the next one, with none between them."""
        return following.first_sequence == self.sequence + 1

    def __str__(self) -> str:
        first = f"{self.first_sequence:010d}-" if self.generation else ""
        generation = f"-{self.generation}" if self.generation else ""
        return f"{first}{self.sequence:010d}{generation}-{self.first_offset:020d}.data"


class QueueDirectory:
    """The paths of one queue.

    Attributes
    ----------
    root : Path
        The directory itself.
    identity : Path
        ``queue.json``.
    write_lock : Path
        Held by the process that writes.
    write_mark : Path
        The high watermark.
    priorities : Path
        There once a message may have a priority; empty.
    dedup_ids : Path
        Deduplication ids of the latest messages that have one.
    data : Path
        The data files.
    next_merged : Path
        A merged file while it is made.
    spare : Path
        Spare data files; opening a queue deletes the files in it.
    groups : Path
        One directory for each consumer group.
    groups_lock : Path
        Held while a group is made or deleted and while a data file is retired.
    reserve : Path
        The space reserved for a group that begins on a full disk.
    prepared : Path
        Transactions that are not decided, and the memory of those that were; missing if there never was one.
    outcome_log : Path
        The memory of decided transactions.
    joint : Path
        The memory of joint commits; missing if there never was one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.identity = self.root / "queue.json"
        self.write_lock = self.root / "write.lock"
        self.write_mark = self.root / "write.mark"
        self.priorities = self.root / "priorities"
        self.dedup_ids = self.root / "dedup.ids"
        self.data = self.root / "data"
        self.next_merged = self.data / "next.merged"
        self.spare = self.root / "spare"
        self.groups = self.root / "groups"
        self.groups_lock = self.groups / ".lock"
        self.reserve = self.groups / ".reserve"
        self.prepared = self.root / "prepared"
        self.outcome_log = self.prepared / "decided"
        self.joint = self.prepared / "joint.json"

    def more_reserves(self, count: int) -> list[Path]:
        """Return the paths of the reserved empty files: a file system can run out of files too."""
        return [self.groups / f".reserve.{number}" for number in range(1, count + 1)]

    def batch_file(self, transaction_id: str) -> Path:
        """Return the path of the file that holds the puts of an undecided transaction."""
        return self.prepared / f"{transaction_id}.batch"

    def segment(self, sequence: int) -> Path:
        """Return the path of a segment of the prepared log."""
        return within(self.prepared, f"{sequence:010d}.log")

    def damaged_segment(self, sequence: int) -> Path:
        """Return the path that a damaged segment of the prepared log has once it was quarantined."""
        return within(self.prepared, f"{sequence:010d}.log.damaged")

    def data_file(self, name: DataFileName) -> Path:
        """Return the path of a data file."""
        return within(self.data, str(name))

    def group(self, name: str) -> Path:
        """Return the directory of a group."""
        return within(self.groups, name)

    def group_lock(self, name: str) -> Path:
        """Return the path of the lock that the owner of a group holds."""
        return within(self.group(name), "read.lock")

    def group_document(self, name: str) -> Path:
        """Return the path of a group's ``group.json``."""
        return within(self.group(name), "group.json")


@lru_cache(maxsize=64)
def queue_directory(root: Path) -> QueueDirectory:
    """Return the paths of the queue at ``root``."""
    return QueueDirectory(root)


@lru_cache(maxsize=1024)
def within(directory: Path, name: str) -> Path:
    """Return the path of a name in a directory; cached, because making one takes as long as opening a file."""
    return directory / name


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it may name a queue or a group; raises ConfigError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a {what}: use 1 to 100 of the characters A-Z a-z 0-9 . _ - without a leading dot"
        )
    return name


def list_data_files(storage: Storage, directory: QueueDirectory) -> list[DataFileName]:
    """Return the data files in log order. Other names are ignored, and files that a merged one has replaced."""
    return _divided(storage, directory)[0]


def list_replaced_files(storage: Storage, directory: QueueDirectory) -> list[DataFileName]:
    """Return the data files that a merged one has replaced, and that are still there."""
    return _divided(storage, directory)[1]


def _divided(storage: Storage, directory: QueueDirectory) -> tuple[list[DataFileName], list[DataFileName]]:
    """Return the data files that count, and those that a merged one has replaced, each in log order."""
    found = sorted(name for name in map(data_file_name, storage.list(directory.data)) if name is not None)
    if not any(name.is_merged for name in found):
        return found, []
    counting: list[DataFileName] = []
    replaced: list[DataFileName] = []
    reach = -1
    for name in sorted(found, key=_widest_first):
        (replaced if name.sequence <= reach else counting).append(name)
        if name.is_merged:
            reach = max(reach, name.sequence)
    return counting, replaced


def data_file_name(text: str) -> DataFileName | None:
    """Return the name of a data file as we write it; None for any other name."""
    match = _DATA_FILE.fullmatch(text)
    if match is not None:
        name = DataFileName(int(match[1]), int(match[2]))
        return name if max(name) <= NUMBER_MAX else None
    match = _MERGED_FILE.fullmatch(text)
    if match is None:
        return None
    first, last, generation, offset = map(int, match.groups())
    return DataFileName(last, offset, last - first, generation) if first <= last <= NUMBER_MAX >= offset else None


def _widest_first(name: DataFileName) -> tuple[int, int, int]:
    return name.first_sequence, -name.sequence, -name.generation


def list_batch_files(storage: Storage, directory: QueueDirectory) -> list[str]:
    """Return the ids of the transactions whose batch files are in ``prepared/``, sorted; other names are ignored."""
    try:
        names = storage.list(directory.prepared)
    except FileNotFoundError:
        return []
    return sorted(match[1] for match in map(_BATCH_FILE.fullmatch, names) if match)


def list_segments(storage: Storage, directory: QueueDirectory) -> list[int]:
    """Return the sequences of the segments of the prepared log, oldest first; other names are ignored."""
    return _sequences(storage, directory, _SEGMENT)


def list_damaged_segments(storage: Storage, directory: QueueDirectory) -> list[int]:
    """Return the sequences of the segments that were quarantined because they are damaged, in order."""
    return _sequences(storage, directory, _DAMAGED_SEGMENT)


def _sequences(storage: Storage, directory: QueueDirectory, pattern: re.Pattern[str]) -> list[int]:
    try:
        names = storage.list(directory.prepared)
    except FileNotFoundError:
        return []
    found = sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)
    return [sequence for sequence in found if sequence <= NUMBER_MAX]


def is_segment_name(name: str) -> bool:
    """Whether a name in ``prepared/`` is that of a segment of the prepared log."""
    return _SEGMENT.fullmatch(name) is not None


def list_generations(storage: Storage, group_directory: Path) -> list[int]:
    """Return the generations of a group's position files, oldest first; none if the group has not begun."""
    names: list[str] = []
    with suppress(*MISSING):
        names = storage.list(group_directory)
    matches = map(_POSITION_FILE.fullmatch, names)
    found = [(int(match[1]), match[0]) for match in matches if match]
    return sorted(number for number, text in found if number <= NUMBER_MAX and text == _position_name(number))


def position_file(group_directory: Path, generation: int) -> Path:
    """Return the path of one generation of a group's progress."""
    return within(group_directory, _position_name(generation))


def _position_name(generation: int) -> str:
    return f"{generation:010d}.position"


def check_header(header: DataFileHeader, name: DataFileName, queue_id: bytes, path: Path) -> None:
    """Refuse a data file in the place of another one; raises CorruptionError."""
    if header.queue_id != queue_id:
        raise CorruptionError(f"{path} belongs to another queue; take it out of data/", path=str(path))
    own = DataFileName(header.sequence, header.first_offset)
    if own[:2] != name[:2] or header.is_merged != name.is_merged:
        raise CorruptionError(f"{path} is named {own} by its header; give it that name back", path=str(path))


def read_data_file_header(storage: Storage, path: Path) -> DataFileHeader:
    """Read the header of a data file; raises CorruptionError, UnsupportedVersionError or OSError."""
    with storage.open(path, writable=False) as file:
        return DataFileHeader.decode(block_copies(file.read_at(FRAMES_START, 0)), str(path))


# -- queue.json ------------------------------------------------------------------------------------------------------


def open_directory(
    storage: Storage,
    root: Path,
    *,
    create: bool,
    writable: bool = True,
    is_rebuilt: bool = False,
    settings: Callable[[], Mapping[str, Any]] = dict,
) -> tuple[QueueDirectory, bytes, bool]:
    """Return the directory of the queue at ``root``, its queue id, and whether it was made just now.

    If it is made, it gets the ``settings`` that the function returns; if that raises, nothing is made. If its
    ``queue.json`` is damaged, its id is that in other files; ``is_rebuilt``: also if it is missing, and to be rebuilt.

    Raises
    ------
    QueueNotFoundError
        There is none, and ``create`` is false.
    ConfigError
        ``root`` cannot be a queue's name, is a file, a link or another user's directory, or other users may write into
        it or into one of its parts.
    UnsupportedVersionError, CorruptionError, StorageError
        ``queue.json`` is of another version, or unreadable and cannot be rebuilt, or missing; or the disk refuses.
    """
    directory = queue_directory(root)
    try:
        names = _look_at_root(storage, root, writable=writable)
        is_lost = names is not None and "queue.json" not in names and _is_used(storage, directory, names)
        if is_lost and "queue.json" in (again := storage.list(root)):  # another process has made it meanwhile
            names, is_lost = again, False
        if is_lost and not is_rebuilt:
            raise CorruptionError(
                f"{root} has the files of a queue, but no queue.json: restore that file, or rebuild it without its "
                f"settings with `holdfast set {shlex.quote(str(root))} --rebuilt`, which sets those that follow it",
                path=str(directory.identity),
            )
        if names is None or not ("queue.json" in names or is_lost):
            if not create:
                raise QueueNotFoundError(
                    f"no queue at {root}; opening it with another mode than 'read_only' creates one", path=str(root)
                )
            if names is not None:
                _refuse_foreign_directory(directory, names)
            return directory, *_create(storage, directory, settings())
        queue_id = _read_identity(storage, directory)
        if create:
            storage.sync_directory(root)  # the process that made the queue may have been killed before doing so
        return directory, queue_id, False
    except OSError as error:
        raise storage_error(error, "opening the queue", root) from error


def _look_at_root(storage: Storage, root: Path, *, writable: bool) -> list[str] | None:
    """Return the names in ``root``, or None if it does not exist; refuses a path that cannot be a queue's directory."""
    if "\0" in str(root):
        raise ConfigError(f"{str(root)!r} cannot be a path: it holds a NUL")
    try:
        check_root(storage, root, writable=writable)
    except FileNotFoundError:
        return None
    names = storage.list(root)
    check_parts(storage, root, names, writable=writable)
    return names


def is_queue(storage: Storage, root: Path) -> bool:
    """Whether a directory is a queue, also one that has lost its ``queue.json``; False if it cannot be read."""
    with suppress(OSError):
        names = storage.list(root)
        return "queue.json" in names or _is_used(storage, queue_directory(root), names)
    return False


def _is_used(storage: Storage, directory: QueueDirectory, names: list[str]) -> bool:
    """Whether a directory has files that a queue gets only once it has its ``queue.json``."""
    if not _TOP_LEVEL.issuperset(names):
        return False
    if directory.write_mark.name in names or list_segments(storage, directory) or list_batch_files(storage, directory):
        return True
    with suppress(*MISSING):  # another process is making it, or removes it
        if list_data_files(storage, directory):
            return True
    with suppress(*MISSING):
        return any(not name.startswith(".") for name in storage.list(directory.groups))
    return False


def _refuse_foreign_directory(directory: QueueDirectory, names: list[str]) -> None:
    """Accept a directory of a queue whose making was not finished; refuse any other."""
    foreign = sorted(set(names) - _TOP_LEVEL)
    if foreign:
        raise ConfigError(
            f"{directory.root} is not a queue: it holds {foreign[0]!r} and no queue.json; choose an empty directory"
        )


def _create(storage: Storage, directory: QueueDirectory, settings: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Make the directories, then ``queue.json`` as the last step: a queue exists once it is there.

    If several processes find no queue, one makes it, and the others find it made.
    """
    check_name(directory.root.name, "queue")
    make_parents(storage, directory.root)
    for path in (directory.root, directory.data, directory.groups, directory.spare):
        storage.make_directory(path)
    try:
        storage.sync_directory(directory.root)  # queue.json must not outlive the directories that it implies
        sync_name(storage, directory.root)
    except OSError:  # a second sync could succeed over lost names: the next attempt makes new ones
        with suppress(OSError):
            for path in (directory.spare, directory.groups, directory.data, directory.root):
                storage.remove_directory(path)
        raise
    lock = locks.acquire(
        storage,
        directory.groups_lock,
        SystemClock(),
        timeout=_CREATE_SECONDS,
        owned=Owned(f"the making of {directory.root}"),
    )
    try:
        if "queue.json" in storage.list(directory.root):
            sync_document(storage, directory.identity)  # another process has just made it
            return _read_identity(storage, directory), False
        queue_id = random_id()
        with undone(storage, directory.identity):
            _write_identity(storage, directory, queue_id, settings)
        return queue_id, True
    finally:
        lock.release()


def read_settings(storage: Storage, directory: QueueDirectory) -> dict[str, Any] | None:
    """Return the settings that a queue was given; None if they were lost, because ``queue.json`` was rebuilt.

    Raises as :func:`open_directory`.
    """
    try:
        return settings_in(read_document(storage, directory.identity), directory.identity)
    except CorruptionError:
        return None
    except OSError as error:
        raise storage_error(error, "reading the settings", directory.root) from error


def write_settings(storage: Storage, directory: QueueDirectory, settings: Mapping[str, Any]) -> None:
    """Replace the settings of a queue, durably; the caller holds the write lock.

    Raises as :func:`read_document` and :func:`replace_document`.
    """
    fields = read_document(storage, directory.identity)
    replace_document(storage, directory.identity, fields, {**fields, "settings": dict(settings)})


def note_feature(storage: Storage, directory: QueueDirectory, feature: str) -> None:
    """Have the queue say, durably, that it uses a feature; the caller holds the write lock.

    A Holdfast that does not know it would misread the queue: take files for foreign ones, and messages for lost.

    Raises as :func:`read_document` and :func:`replace_document`.
    """
    fields = read_document(storage, directory.identity)
    found = fields.get("features") or []
    if feature not in found:
        replace_document(storage, directory.identity, fields, {**fields, "features": sorted([*found, feature])})


def settings_in(fields: Mapping[str, Any], path: Path) -> dict[str, Any] | None:
    """Return the settings in a document of a queue or a group; None if they were lost. Raises CorruptionError."""
    settings = fields.get("settings")
    if settings is None or isinstance(settings, dict):
        return settings
    raise CorruptionError(f"{path} has no settings, but {settings!r}; restore it", path=str(path))


def _write_identity(
    storage: Storage, directory: QueueDirectory, queue_id: bytes, settings: Mapping[str, Any] | None
) -> None:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    fields = {"format": FORMAT_VERSION, "queue_id": queue_id.hex(), "created": created}
    fields["features"] = _features_seen(storage, directory)
    write_document(
        storage, directory.identity, {**fields, "settings": settings if settings is None else dict(settings)}
    )


def _features_seen(storage: Storage, directory: QueueDirectory) -> list[str]:
    """Return the features that the files of a queue show."""
    seen = [MERGED] if any(name.is_merged for name in list_data_files(storage, directory)) else []
    return seen + ([PREPARED_LOG] if list_segments(storage, directory) else [])


def rebuild_identity(storage: Storage, directory: QueueDirectory) -> None:
    """Write a ``queue.json`` that is damaged or missing anew, without settings. The caller holds the write lock.

    What is left of it stays beside it: it may show people the settings that were lost.

    Raises
    ------
    CorruptionError
        No other file has the id of the queue.
    StorageError, OSError
        The disk refuses.
    """
    try:
        _identity_in(storage, directory)
    except (CorruptionError, *MISSING):
        queue_id = _read_identity(storage, directory)
        keep_damaged(storage, directory.identity)
        _write_identity(storage, directory, queue_id, None)


def _read_identity(storage: Storage, directory: QueueDirectory) -> bytes:
    """Return the id of a queue: from its other files if ``queue.json`` is damaged or missing."""
    try:
        return _identity_in(storage, directory)
    except (CorruptionError, *MISSING) as error:
        data = map(directory.data_file, list_data_files(storage, directory))
        batches = map(directory.batch_file, list_batch_files(storage, directory))
        segments = map(directory.segment, list_segments(storage, directory))
        queue_id = id_of_most(storage, [*data, *batches], list(segments), directory.write_mark)
        if queue_id is not None:
            return queue_id
        if isinstance(error, CorruptionError):
            raise
        raise CorruptionError(
            f"{directory.root} has no queue.json, and no other file with the id of the queue; restore that file",
            path=str(directory.identity),
        ) from None


def _identity_in(storage: Storage, directory: QueueDirectory) -> bytes:
    """Return the id that ``queue.json`` has. Raises CorruptionError, UnsupportedVersionError or ``OSError``."""
    fields = read_document(storage, directory.identity)
    features = fields.get("features")
    if features is not None and not (isinstance(features, list) and _FEATURES.issuperset(map(str, features))):
        raise UnsupportedVersionError(
            f"{directory.identity} has features that this Holdfast does not know ({features}): open the queue with "
            "a newer one",
            path=str(directory.identity),
            version=FORMAT_VERSION,
        )
    return read_id(fields, "queue_id", directory.identity)


def open_if_there(storage: Storage, path: Path) -> File | None:
    """Open a file for reading; None if its name does not exist. Raises ``OSError``."""
    try:
        return storage.open(path, writable=False)
    except MISSING:
        return None
