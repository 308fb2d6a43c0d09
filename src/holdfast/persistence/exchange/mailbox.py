"""Mailboxes: ``requests/<mailbox>.answers``, in which the owner of a queue answers the requests of one handle.

Made and locked by the handle that asks, for as long as it lives: a mailbox with a free lock has no client any more. An
answer is one write into the slot of its request's number, with a checksum, so a reader sees all of it or waits a little
longer. docs/format.md, "Requests".

What is *not* promised: nothing here is ever synced. A process that waits for an answer does not survive a power cut.
"""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import StorageError
from holdfast.persistence.filesystem import locks
from holdfast.persistence.filesystem.locks import SideLock
from holdfast.persistence.filesystem.storage import File, Storage, storage_errors
from holdfast.persistence.format.checksum import crc32c
from holdfast.persistence.format.constants import (
    ANSWER_DONE,
    ANSWER_ERROR,
    ANSWER_NO_ROOM,
    ANSWER_SLOT,
    ANSWER_SLOTS,
    ANSWERS_START,
    HEADER_CRC,
    NUMBER_MAX,
)

logger = logging.getLogger("holdfast")

TEXT_BYTES_MAX = ANSWER_SLOT.size - 32
_ATTEMPTS = 100
_VERDICTS = (ANSWER_DONE, ANSWER_ERROR, ANSWER_NO_ROOM)

ANSWERS = ".answers"
MAKING = ".making"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request.

    Attributes
    ----------
    number : int
        Of the request.
    verdict : int
        ``ANSWER_DONE``, ``ANSWER_ERROR``, or ``ANSWER_NO_ROOM`` while it waits.
    offsets : range
        Of its messages, once they are committed.
    text : str
        The error, or the result of a verb on a group: JSON, at most ``TEXT_BYTES_MAX`` bytes of UTF-8.
    """

    number: int
    verdict: int
    offsets: range = range(0)
    text: str = ""

    def encode(self) -> bytes:
        """Return the bytes of its slot."""
        text = self.text.encode()
        assert len(text) <= TEXT_BYTES_MAX, "whoever answers sees to it"
        rest = (self.verdict, 0, len(text), self.number, self.offsets.start, len(self.offsets), text)
        slot = ANSWER_SLOT.pack(0, *rest)
        return HEADER_CRC.pack(crc32c(0, slot[HEADER_CRC.size :])) + slot[HEADER_CRC.size :]

    @classmethod
    def decode(cls, slot: bytes) -> Answer | None:
        """Return the answer in a slot; None if it is empty, or is being written."""
        if len(slot) != ANSWER_SLOT.size:
            return None
        crc, verdict, _, size, number, first, count, text = ANSWER_SLOT.unpack(slot)
        if not number or verdict not in _VERDICTS or crc != crc32c(0, slot[HEADER_CRC.size :]):
            return None
        if first + count > NUMBER_MAX:
            return None
        return cls(number, verdict, range(first, first + count), text[:size].decode(errors="replace"))


def _position(number: int) -> int:
    return ANSWERS_START + number % ANSWER_SLOTS * ANSWER_SLOT.size


class Mailbox:
    """The side of the client: makes the mailbox, holds its lock and reads the answers.

    Parameters
    ----------
    storage, directory
        ``requests/``, which is there.

    Attributes
    ----------
    name : str
        Of no other mailbox: 16 hexadecimal digits.

    Raises
    ------
    DiskFullError, StorageError
        The disk refuses; nothing is left of it.
    """

    def __init__(self, storage: Storage, directory: Path) -> None:
        self._storage = storage
        self._directory = directory
        with storage_errors("making a mailbox", directory):
            self.name, self._lock, self._file = self._make()

    def _make(self) -> tuple[str, SideLock, File]:
        """Make it under another name and lock it there: so an unlocked mailbox is never visible."""
        for _ in range(_ATTEMPTS):  # an owner that removes leftovers may take one of these for such
            name = secrets.token_hex(8)
            making, path = self._directory / (name + MAKING), self._directory / (name + ANSWERS)
            lock = locks.try_acquire(self._storage, making)
            if lock is None:
                continue
            file: File | None = None
            try:
                file = self._storage.open(making)
                file.allocate(_position(-1) + ANSWER_SLOT.size)
                self._storage.rename(making, path)
                return name, lock, file
            except BaseException as error:
                if file is not None:
                    file.close()
                lock.release()
                if not isinstance(error, FileNotFoundError):
                    remove_quietly(self._storage, making)
                    raise
        path = self._directory
        raise StorageError(f"no mailbox can be made in {path}: each is gone again", path=str(path))

    def read(self, number: int) -> Answer | None:
        """Return the answer to a request; None while there is none."""
        answer = Answer.decode(self._file.read_at(ANSWER_SLOT.size, _position(number)))
        return answer if answer is not None and answer.number == number else None

    def close(self) -> None:
        """Close and remove it."""
        remove_quietly(self._storage, self._directory / (self.name + ANSWERS))
        self.forget()
        self._lock.release()

    def forget(self) -> None:
        """In a forked child: close the copy of the handle. That of the lock closes itself."""
        self._file.close()


def remove_quietly(storage: Storage, path: Path) -> bool:
    """Remove a file that only costs space; return whether it is gone."""
    try:
        storage.remove(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


class Answers:
    """The side of the owner: writes answers into mailboxes, whose handles it keeps.

    Parameters
    ----------
    storage, directory
        ``requests/``.
    """

    def __init__(self, storage: Storage, directory: Path) -> None:
        self._storage = storage
        self._directory = directory
        self._files: dict[str, File] = {}

    def write(self, mailbox: str, answer: Answer) -> bool:
        """Answer a request; False if no client waits for it. A later answer in the same slot stays.

        Raises ``OSError``.
        """
        file = self._open(mailbox)
        if file is None:
            return False
        at = _position(answer.number)
        there = Answer.decode(file.read_at(ANSWER_SLOT.size, at))
        if there is not None and there.number > answer.number:
            return False
        file.write_at((answer.encode(),), at)
        return True

    def is_answered(self, mailbox: str, number: int) -> bool:
        """Whether a request was answered, or one that came later in its slot. Raises ``OSError``."""
        file = self._open(mailbox)
        there = None if file is None else Answer.decode(file.read_at(ANSWER_SLOT.size, _position(number)))
        return there is not None and there.number >= number

    def is_done(self, mailbox: str, number: int) -> bool:
        """Whether a request was answered with offsets, or its slot has a later one. Raises ``OSError``."""
        file = self._open(mailbox)
        there = None if file is None else Answer.decode(file.read_at(ANSWER_SLOT.size, _position(number)))
        return there is not None and (there.number, there.verdict == ANSWER_DONE) >= (number, True)

    def _open(self, mailbox: str) -> File | None:
        """Return a mailbox; None if it is gone, or another user's."""
        if mailbox not in self._files:
            path = self._directory / (mailbox + ANSWERS)
            try:
                file = self._storage.open(path)
            except FileNotFoundError:
                return None
            try:
                user = file.owner()
            except BaseException:
                file.close()
                raise
            if user != os.geteuid():
                logger.warning("%s was made by user %d, and nothing is answered there", path, user)
                file.close()
                return None
            self._files[mailbox] = file
        return self._files[mailbox]

    def keep(self, mailboxes: set[str]) -> None:
        """Close all mailboxes but these."""
        for mailbox in self._files.keys() - mailboxes:
            self._files.pop(mailbox).close()

    def close(self) -> None:
        """Close all of them."""
        self.keep(set())
