"""The files in ``requests/``: requests of other processes to the owner of a side. docs/format.md, "Requests".

::

    requests/
      <mailbox>.answers                 made and locked by the client; the owner answers there
      <mailbox>-<number>.staging        a request while it is written
      <mailbox>-<number>.batch          messages to commit: a batch file
      <mailbox>-<number>.claimed        the same, once the owner has taken it: it cannot be taken back any more
      <mailbox>-<number>.prepare        a batch file, synced, to be moved into prepared/
      <mailbox>-<number>.verb           a verb on a prepared transaction
      <mailbox>-<number>.ask.<group>    a verb on a consumer group, for the owner of its read side
      <mailbox>-<number>.taken.<group>  the same, once that owner is at it

A rename or a removal ends a name, and the second of two attempts fails. Asking, withdrawing and taking a request need
no other agreement.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.errors import CorruptionError, UsageError
from holdfast.persistence.exchange.mailbox import ANSWERS, MAKING, Answer, Answers, remove_quietly
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import MISSING, Storage, read_whole, write_whole
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.format.constants import ANSWER_DONE, NUMBER_MAX, VERB_BYTES_MAX
from holdfast.persistence.format.json_object import parse_object
from holdfast.persistence.format.message_options import dedup_id_of
from holdfast.persistence.segment.batch_file_reader import BatchSummary, messages, read_summary

logger = logging.getLogger("holdfast")

DIRECTORY = "requests"

STAGING = "staging"
BATCH = "batch"
CLAIMED = "claimed"
PREPARE = "prepare"
VERB = "verb"
ASK = "ask"
TAKEN = "taken"

COMMIT_PREPARED = "commit_prepared"
ABORT_PREPARED = "abort_prepared"
ASK_OUTCOME = "verdict"
"""What the log says of a transaction; the answer counts one message where it was committed, and none if aborted."""

_OF_A_GROUP = (ASK, TAKEN)
"""Kinds whose name says which group is meant: every other owner passes them by without opening them."""

_CHECKSUM_LINE_BYTES = 64
_KINDS = rf"({STAGING}|{BATCH}|{CLAIMED}|{PREPARE}|{VERB})"
_GROUP_KINDS = rf"({ASK}|{TAKEN})\.([A-Za-z0-9_-][A-Za-z0-9._-]{{0,99}})"
_NAME = re.compile(rf"([0-9a-f]{{16}})-([0-9]{{10,}})\.(?:{_KINDS}|{_GROUP_KINDS})")
_MAILBOX = re.compile(rf"([0-9a-f]{{16}})(?:{re.escape(ANSWERS)}|{re.escape(MAKING)}|-.*)")


@dataclass(frozen=True, slots=True)
class RequestName:
    """The name of a request: its mailbox, its number, its state, and its group."""

    mailbox: str
    number: int
    kind: str
    group: str = ""

    def __str__(self) -> str:
        name = f"{self.mailbox}-{self.number:010d}.{self.kind}"
        return f"{name}.{self.group}" if self.kind in _OF_A_GROUP else name

    @classmethod
    def parse(cls, name: str) -> RequestName | None:
        """Return the fields of a name; None if it is not that of a request."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        found = cls(match[1], int(match[2]), match[3] or match[4], match[5] or "")
        return found if found.number <= NUMBER_MAX and str(found) == name else None

    def as_kind(self, kind: str) -> RequestName:
        """Return the name of the same request as another kind of file."""
        return replace(self, kind=kind)

    def path(self, directory: QueueDirectory) -> Path:
        """Return its path."""
        return directory.requests / str(self)

    @property
    def waiting_file(self) -> str:
        """The place of the batch in its commit record: the name under which an owner commits it."""
        return f"{DIRECTORY}/{self.as_kind(CLAIMED)}"


def list_requests(storage: Storage, requests: Path) -> list[str]:
    """Return the names in ``requests/``, sorted: so those of one mailbox by number. None if it was never made."""
    try:
        return storage.list(requests)
    except MISSING:
        return []


def move(storage: Storage, source: Path, target: Path) -> bool:
    """Give a request another name; False if it is not there any more."""
    try:
        storage.rename(source, target)
    except MISSING:
        return False
    return True


def check_asker(storage: Storage, path: Path) -> None:
    """Refuse a request that another user has made: an owner does nothing for a user who may not open its queue.

    Raises
    ------
    UsageError
        It is another user's.
    OSError
        It cannot be read.
    """
    with storage.open(path, writable=False) as file:
        user = file.owner()
    if user != os.geteuid():
        logger.warning("%s was made by user %d and is refused: this is user %d", path, user, os.geteuid())
        raise UsageError(f"user {user} may ask nothing of a queue of user {os.geteuid()}; run as that user")


# -- Batches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestedBatch:
    """A batch to be committed; ``payloads`` is None if it is larger than was asked for."""

    summary: BatchSummary
    payloads: list[bytes] | None
    headers: dict[int, bytes]

    @property
    def dedup_id(self) -> str:
        """The deduplication id; empty if there is none, and for several messages."""
        return dedup_id_of(self.headers.get(0, b"")) if self.summary.message_count == 1 else ""


def read_batch(storage: Storage, path: Path, queue_id: bytes, name: RequestName, bytes_max: int) -> RequestedBatch:
    """Read a request, each message checked; one of more than ``bytes_max`` only where it is a message with an id.

    Raises
    ------
    CorruptionError
        It is incomplete, or does not fit its name.
    UsageError
        Another user has made it.
    OSError
        It cannot be read.
    """
    check_asker(storage, path)
    summary = read_summary(storage, path, queue_id)
    commit_record = summary.commit_record
    if commit_record.waiting_file != name.waiting_file or commit_record.acknowledged or commit_record.participants:
        raise CorruptionError(f"{path} holds another request than its name says", path=str(path))
    is_large = summary.frames_bytes > bytes_max
    if is_large and summary.message_count > 1:
        return RequestedBatch(summary, None, {})
    content = list(messages(storage, path, queue_id))
    batch = RequestedBatch(
        summary,
        [payload for payload, _ in content],
        {number: stored for number, (_, stored) in enumerate(content) if stored},
    )
    return replace(batch, payloads=None) if is_large and not batch.dedup_id else batch


# -- Verbs -----------------------------------------------------------------------------------------------------------


def write_verb(storage: Storage, path: Path, fields: dict[str, Any]) -> None:
    """Write a verb as JSON with a checksum; nothing is synced. Raises ``OSError``; UsageError if it is too large."""
    text = json.dumps(fields, sort_keys=True)
    if len(text) > VERB_BYTES_MAX - _CHECKSUM_LINE_BYTES:
        raise UsageError(f"a request of {len(text)} bytes is more than an owner reads; ask for less at a time")
    with storage.open(path, create=True) as file:
        write_whole(file, (f"{crc32c(0, text.encode()):08x}\n{text}\n".encode(),), 0)


def read_verb(storage: Storage, path: Path) -> dict[str, Any]:
    """Return the verb of :func:`write_verb`; raises CorruptionError, ``OSError``; UsageError for another user's."""
    check_asker(storage, path)
    checksum, _, text = read_whole(storage, path, VERB_BYTES_MAX).partition(b"\n")
    try:
        fields = parse_object(text)
        if int(checksum, 16) == crc32c(0, text.rstrip(b"\n")):
            return fields
    except ValueError:
        pass
    raise CorruptionError(f"{path} is damaged", path=str(path))


# -- After a crash ---------------------------------------------------------------------------------------------------


def finish_committed(storage: Storage, directory: QueueDirectory, commit_record: CommitRecord) -> bool:
    """Answer a request that is in the log, and remove its file; False if ``commit_record`` is not that of a request.

    The file is removed under both of its names: after a loss of power the older one may be back.
    """
    path, _, file_name = commit_record.waiting_file.rpartition("/")
    name = RequestName.parse(file_name) if path == DIRECTORY else None
    if name is None:
        return False
    answers = Answers(storage, directory.requests)
    try:
        answers.write(name.mailbox, Answer(name.number, ANSWER_DONE, commit_record.offsets))
    finally:
        answers.close()
    for kind in (CLAIMED, BATCH):
        with suppress(*MISSING):
            storage.remove(name.as_kind(kind).path(directory))
    sync_requests(storage, directory)
    return True


def sync_requests(storage: Storage, directory: QueueDirectory) -> None:
    """Make the names of requests durable, if there ever were any. Raises ``OSError``."""
    if DIRECTORY in storage.list(directory.root):
        storage.sync_directory(directory.requests)


def clear_abandoned(storage: Storage, directory: QueueDirectory) -> set[str]:
    """Remove requests and leftovers of dead processes; return the mailboxes that are alive.

    The caller has the write side, and has redone its log: requests of a dead process that are left here were not
    committed, and were not answered. Other names are ignored. Raises ``OSError``.
    """
    by_mailbox: dict[str, list[str]] = {}
    for file_name in list_requests(storage, directory.requests):
        match = _MAILBOX.fullmatch(file_name)
        if match is not None:
            by_mailbox.setdefault(match[1], []).append(file_name)
    alive = set()
    for mailbox, names in by_mailbox.items():
        if is_alive(storage, directory.requests, mailbox):
            alive.add(mailbox)
            continue
        for file_name in sorted(names, key=lambda each: each.endswith(ANSWERS)):  # last: it names the owner
            remove_quietly(storage, directory.requests / file_name)
    return alive


def is_alive(storage: Storage, requests: Path, mailbox: str) -> bool:
    """Whether the lock of a mailbox is held, under either of its names."""
    endings = (MAKING, ANSWERS)  # in the order in which it has them
    return any(not locks.is_free(storage, requests / (mailbox + ending)) for ending in endings)
