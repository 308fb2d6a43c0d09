"""The commit record of a transaction: the frame that ends its batch. docs/format.md, "Commit records". Pure.

A transaction that does more than put has committed once its commit record is in the log, whole and synced. The record
names all its consequences, so that the next opening after a crash can redo them: which messages are acknowledged, which
participants wait for the outcome, and which batch file has become void. Redoing them twice changes nothing. The record
stays **pending** until its consequences are durable elsewhere, and is carried into each new data file until then.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

from holdfast.persistence.format.constants import (
    COMMIT_RECORD_TRAILER,
    FRAME_HEADER_BYTES,
    NONCE,
    NONCE_THREAD_BYTES,
    SESSION_NUMBER_MAX,
)
from holdfast.persistence.format.json_object import as_id, as_number, parse_object

Run = tuple[int, int, int, int]
"""First offset, count, sequence of the data file, position behind the last record: what one position entry says."""


def thread_of(nonce: bytes) -> bytes:
    """Return the part of a nonce that names the thread: its 8 random bytes."""
    return nonce[:NONCE_THREAD_BYTES]


def count_of(nonce: bytes) -> int:
    """Return the part of a nonce that says which of the thread's requests or transactions it is."""
    count: int = NONCE.unpack(nonce)[1]
    return count


@dataclass(frozen=True, slots=True)
class Participant:
    """One side of a queue that takes part in a transaction.

    Attributes
    ----------
    path : str
        Of the queue's directory, relative to the queue that holds the record; "." is that queue itself.
    queue_id : bytes, length 16
        The queue that must be found there.
    group : str
        The consumer group whose messages are acknowledged; empty: the write side.
    """

    path: str
    queue_id: bytes
    group: str = ""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Messages that a transaction finishes in one group of the same queue."""

    group: str
    group_id: bytes
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class PartOf:
    """The joint commit that a prepared transaction waits for.

    Attributes
    ----------
    application, version
        Which one it is.
    directory : str
        Path of the document that decides, relative to the queue: it decides for several queues. Empty: the queue's own.
    document_id : bytes
        Of that document: it tells another one at the same path.
    """

    application: str
    version: int
    directory: str = ""
    document_id: bytes = b""

    @property
    def is_shared(self) -> bool:
        """Whether it is a joint commit over several queues."""
        return bool(self.directory)


@dataclass(slots=True)  # nothing changes one; frozen it takes three times as long to make
class CommitRecord:
    """The commit record of a transaction.

    Attributes
    ----------
    id : str
        Id of the transaction: the caller's choice, or the nonce in hexadecimal digits.
    nonce : bytes, length 16
        Tells this transaction from all others, those of the same id included: :func:`thread_of`, :func:`count_of`.
    count : int
        Number of messages in the batch, which is right before the record.
    first_offset : int or None
        Offset of the first of them; None: they are the ``count`` messages before the frame.
    timestamp_ns : int
        When the transaction was prepared, or else when it was decided.
    acknowledged : tuple of Acknowledged
        The messages that it finishes in this queue.
    participants : tuple of Participant
        The sides that voted and wait for the outcome.
    coordinator : Participant or None
        In a prepared file: the queue whose log decides; None: the application decides, by id.
    waiting_file : str
        Path of the batch file below the queue's directory; empty: there was none.
    part_of : PartOf or None
        In a prepared file: the joint commit that decides; None: there is none.
    session : int
        Number of the session that waits for the answer, and may send its request again; 0: there is none.
    """

    id: str
    nonce: bytes
    count: int
    timestamp_ns: int
    first_offset: int | None = None
    acknowledged: tuple[Acknowledged, ...] = ()
    participants: tuple[Participant, ...] = ()
    coordinator: Participant | None = None
    waiting_file: str = ""
    part_of: PartOf | None = None
    session: int = 0

    @property
    def has_consequences(self) -> bool:
        """Whether anything but its messages follows from it: what recovery would have to do again."""
        return bool(self.acknowledged or self.participants or self.waiting_file)

    @property
    def _is_plain(self) -> bool:
        """Whether it says no more than which messages committed, for whom, and where they waited."""
        is_alone = self.coordinator is None and self.part_of is None
        return is_alone and not self.acknowledged and not self.participants

    @property
    def is_remembered(self) -> bool:
        """Whether it was prepared under its id, so that a caller may ask for its outcome again."""
        is_asked_for = self.coordinator is None and self.part_of is None
        return self.waiting_file.startswith("prepared/") and is_asked_for

    @property
    def offsets(self) -> range:
        """Offsets of the batch; known once it is in the log."""
        first = self.first_offset or 0
        return range(first, first + self.count)

    def placed(self, first_offset: int) -> CommitRecord:
        """Return the same with the offset of its first message."""
        return self._with(first_offset, self.waiting_file)

    def waiting_in(self, path: Path) -> CommitRecord:
        """Return the same for puts that wait in a file right below a directory of the queue."""
        return self._with(self.first_offset, "/".join(path.parts[-2:]))

    def _with(self, first_offset: int | None, waiting_file: str) -> CommitRecord:
        if not self._is_plain:
            return replace(self, first_offset=first_offset, waiting_file=waiting_file)
        return CommitRecord(  # in a fifth of the time
            self.id,
            self.nonce,
            self.count,
            self.timestamp_ns,
            first_offset,
            waiting_file=waiting_file,
            session=self.session,
        )

    def encode(self) -> bytes:
        """Return the frame's payload: UTF-8 JSON, then the size of the whole frame, so that it is found from behind."""
        text = self._encode_plain() if self._is_plain else self._encode_fields()
        return text + COMMIT_RECORD_TRAILER.pack(FRAME_HEADER_BYTES + len(text) + COMMIT_RECORD_TRAILER.size)

    def _encode_plain(self) -> bytes:
        """Return what :meth:`_encode_fields` returns, in a fifth of the time."""
        first = "" if self.first_offset is None else f', "first_offset": {self.first_offset}'
        waiting = f', "waiting_file": {encode_basestring_ascii(self.waiting_file)}' if self.waiting_file else ""
        session = f', "session": {self.session}' if self.session else ""
        return (
            f'{{"id": {encode_basestring_ascii(self.id)}, "nonce": "{self.nonce.hex()}", "count": {self.count}, '
            f'"at": {self.timestamp_ns}{first}{waiting}{session}}}'
        ).encode()

    def _encode_fields(self) -> bytes:
        fields: dict[str, Any] = {
            "id": self.id,
            "nonce": self.nonce.hex(),
            "count": self.count,
            "at": self.timestamp_ns,
            "first_offset": self.first_offset,
            "acknowledged": [[each.group, each.group_id.hex(), each.runs] for each in self.acknowledged],
            "participants": [_participant_fields(each) for each in self.participants],
            "coordinator": None if self.coordinator is None else _participant_fields(self.coordinator),
            "waiting_file": self.waiting_file,
            "part_of": None if self.part_of is None else _part_of_fields(self.part_of),
            "session": self.session or None,
        }
        return json.dumps({name: value for name, value in fields.items() if value or value == 0}).encode()

    @classmethod
    def decode(cls, payload: bytes) -> CommitRecord:
        """Return the commit record of a frame's payload; raises ValueError if it is not one."""
        try:
            fields = parse_object(payload[: -COMMIT_RECORD_TRAILER.size])
            coordinator, part_of = fields.get("coordinator"), fields.get("part_of")
            first_offset = fields.get("first_offset")
            return cls(
                id=_transaction_id(fields["id"]),
                nonce=as_id(fields["nonce"]),
                count=as_number(fields["count"]),
                timestamp_ns=as_number(fields["at"]),
                first_offset=None if first_offset is None else as_number(first_offset),
                acknowledged=tuple(
                    Acknowledged(str(group), as_id(group_id), tuple(_run(run) for run in runs))
                    for group, group_id, runs in fields.get("acknowledged", ())
                ),
                participants=tuple(_participant(each) for each in fields.get("participants", ())),
                coordinator=None if coordinator is None else _participant(coordinator),
                waiting_file=str(fields.get("waiting_file", "")),
                part_of=None if part_of is None else _part_of(part_of),
                session=_session(fields.get("session", 0)),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"not a commit record: {error}") from None

    @classmethod
    def decode_any(cls, payload: bytes) -> CommitRecord | None:
        """Return the commit record in a payload; None if there is none: a good checksum over something else."""
        try:
            return cls.decode(payload)
        except ValueError:
            return None


def _transaction_id(found: object) -> str:
    if found == "":  # ``encode`` omits it
        raise ValueError("the transaction has no id")
    return str(found)


def _session(found: object) -> int:
    number = as_number(found)
    if number > SESSION_NUMBER_MAX:
        raise ValueError("not the number of a session")
    return number


def _participant_fields(participant: Participant) -> list[str]:
    return [participant.path, participant.queue_id.hex(), participant.group]


def _part_of_fields(part_of: PartOf) -> list[Any]:
    shared = [part_of.directory, part_of.document_id.hex()] if part_of.is_shared else []
    return [part_of.application, part_of.version, *shared]


def _part_of(fields: list[Any]) -> PartOf:
    application, version, *shared = fields
    if not shared:
        return PartOf(str(application), as_number(version))
    directory, document_id = shared
    if not directory:
        raise ValueError("the joint commit over several queues has no document")
    return PartOf(str(application), as_number(version), str(directory), as_id(document_id))


def _participant(fields: list[str]) -> Participant:
    path, queue_id, group = fields
    return Participant(str(path), as_id(queue_id), str(group))


def _run(fields: list[Any]) -> Run:
    first_offset, count, sequence, end_position = map(as_number, fields)
    return first_offset, count, sequence, end_position
