"""The vote of a prepared transaction in a group's position file. docs/format.md, "Votes". Pure.

A transaction that takes messages and is *prepared* records a vote in one atomic run of entries. From then on the
messages are held: neither finished nor delivered, over every restart, until the file has an outcome for the same nonce.
"Committed" finishes them in the same atomic run, "aborted" releases them.

A vote counts whole or not at all. Its first entry has the number of entries that follow, so that a damaged one is never
missed: :func:`read_vote` then returns None, and the reader of the file must report it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.persistence.format.commit_record import Participant, Run
from holdfast.persistence.format.constants import (
    ENTRY_DONE,
    ENTRY_HELD,
    ENTRY_OUTCOME,
    ENTRY_TEXT,
    ENTRY_VOTE,
    VOTE_START,
    VOTE_TEXT_BYTES,
    VOTE_WORDS,
)
from holdfast.persistence.format.json_object import as_number, parse_object
from holdfast.persistence.groups.position_entry import Change


@dataclass(frozen=True, slots=True)
class Vote:
    """The vote of a prepared transaction in one group.

    Attributes
    ----------
    id : str
        Name of the transaction.
    nonce : bytes, length 16
        Tells this transaction from all others, those of the same id included.
    timestamp_ns : int
        When it was prepared.
    coordinator : Participant or None
        The queue whose log decides; None: the application decides, by id.
    runs : tuple of Run
        The messages held.
    """

    id: str
    nonce: bytes
    timestamp_ns: int
    coordinator: Participant | None
    runs: tuple[Run, ...]

    @property
    def offsets(self) -> tuple[range, ...]:
        """Offsets of the messages held."""
        return tuple(range(first, first + count) for first, count, _, _ in self.runs)

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return sum(count for _, count, _, _ in self.runs)

    def text(self) -> bytes:
        """Return the text of ENTRY_TEXT: UTF-8 JSON of all but the nonce and the runs."""
        fields: dict[str, object] = {"id": self.id, "at": self.timestamp_ns}
        if (side := self.coordinator) is not None:
            fields["coordinator"] = [side.path, side.queue_id.hex(), side.group]
        return json.dumps(fields).encode()


def vote_changes(vote: Vote) -> list[Change]:
    """Return the entries of a vote, to be appended as one atomic run or as part of one."""
    assert len(vote.nonce) == 16  # noqa: PLR2004 - as the format has it
    text = vote.text()
    return [
        _filled(ENTRY_VOTE, VOTE_START.pack(vote.nonce, len(text)), end_position=len(vote.runs)),
        *(
            _filled(ENTRY_TEXT, text[at : at + VOTE_TEXT_BYTES].ljust(VOTE_TEXT_BYTES, b"\0"))
            for at in range(0, len(text), VOTE_TEXT_BYTES)
        ),
        *_run_changes(ENTRY_HELD, vote),
    ]


def outcome_changes(vote: Vote, *, committed: bool) -> list[Change]:
    """Return the entries that settle a vote: one atomic run.

    Notes
    -----
    The outcome alone finishes the messages of a known vote. ENTRY_DONE repeats them for a reader that has
    lost the vote, or the outcome, to damage.
    """
    outcome = _filled(ENTRY_OUTCOME, VOTE_START.pack(vote.nonce, 0), delivery_count=int(committed))
    return [outcome, *(_run_changes(ENTRY_DONE, vote) if committed else ())]


def nonce_of(change: Change) -> bytes:
    """Return the nonce in an ENTRY_VOTE or ENTRY_OUTCOME."""
    nonce: bytes = VOTE_START.unpack(_bytes_of(change))[0]
    return nonce


def vote_entry_count(first: Change) -> int:
    """Return how many entries the vote takes that this ENTRY_VOTE begins, itself included."""
    return 1 + _text_entry_count(first) + first.hint[1]


def read_vote(changes: Sequence[Change]) -> Vote | None:
    """Return the vote that is ``changes``, from its ENTRY_VOTE on; None if an entry is missing or invalid."""
    first = changes[0]
    held_start = 1 + _text_entry_count(first)
    texts, held = changes[1:held_start], changes[held_start:]
    if len(changes) != vote_entry_count(first) or any(change.kind != ENTRY_TEXT for change in texts):
        return None
    if any(change.kind != ENTRY_HELD for change in held):
        return None
    try:
        fields = parse_object(b"".join(map(_bytes_of, texts))[: first.count])
        return Vote(
            id=str(fields["id"]),
            nonce=nonce_of(first),
            timestamp_ns=as_number(fields["at"]),
            coordinator=_participant(fields.get("coordinator")),
            runs=tuple((change.first_offset, change.count, *change.hint) for change in held),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _participant(fields: list[str] | None) -> Participant | None:
    if fields is None:
        return None
    path, queue_id, group = fields
    return Participant(str(path), bytes.fromhex(queue_id), str(group))


def _run_changes(kind: int, vote: Vote) -> list[Change]:
    return [Change(kind, first, count, (sequence, end)) for first, count, sequence, end in vote.runs]


def _filled(kind: int, data: bytes, *, end_position: int = 0, delivery_count: int = 0) -> Change:
    """Return an entry whose sequence, first offset and count fields are these 24 bytes.

    They are passed as the three integers of other entries, so that votes do not slow the encoding of acknowledgements.
    """
    sequence, first_offset, count = VOTE_WORDS.unpack(data)
    return Change(kind, first_offset, count, (sequence, end_position), delivery_count)


def _bytes_of(change: Change) -> bytes:
    """Return the 24 bytes in the sequence, first offset and count fields."""
    return VOTE_WORDS.pack(change.hint[0], change.first_offset, change.count)


def _text_entry_count(first: Change) -> int:
    return -(-first.count // VOTE_TEXT_BYTES)
