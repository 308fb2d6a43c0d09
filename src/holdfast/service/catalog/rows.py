"""The rows that the catalogue has for one queue: a function of the queue's files and the service's facts.

The same files and the same facts always give the same rows: there is no age and no "now" in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.errors import CorruptionError, HoldfastError, QueueNotFoundError
from holdfast.persistence.filesystem.document import read_document
from holdfast.persistence.filesystem.layout import QueueDirectory, open_directory
from holdfast.persistence.filesystem.storage import Storage, storage_error
from holdfast.persistence.format.commit_record import Participant
from holdfast.persistence.format.report import DAMAGED, Damage
from holdfast.persistence.groups.dead_letter_notes import DeadLetterNotes
from holdfast.persistence.groups.group_files import GroupInfo, list_groups, progress_reader
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.vote import Vote
from holdfast.persistence.outcomes.redo import OWN
from holdfast.persistence.outcomes.waiting_puts import read_waiting_entries, waiting_puts
from holdfast.service.catalog.data_files import DataFileFacts, DataFiles
from holdfast.service.catalog.facts import QueueFacts, Row, Rows, settings_text, storable_text, time_text

DAMAGED_EVENT = "damaged"
RECOVERED_EVENT = "recovered"
DEAD_LETTERED_EVENT = "dead_lettered"


class QueueRows:
    """Makes the rows of one queue, again and again.

    Parameters
    ----------
    storage
        Where the queue is.
    service_path : Path
        The service's directory: paths of queues in it are shown without it.
    """

    def __init__(self, storage: Storage, service_path: Path) -> None:
        self._storage = storage
        self._service_path = service_path
        self._files: DataFiles | None = None
        self._notes: dict[tuple[bytes, int, int], dict[str, str]] = {}

    def read(self, facts: QueueFacts) -> Rows:
        """Return the rows as they are now; none if there is no queue.

        An error that keeps a queue from being read is in its row, and the others are not affected.
        """
        try:
            return _Reading(self._storage, self._service_path, facts, self).run()
        except QueueNotFoundError:
            return {}
        except (HoldfastError, OSError) as error:
            if isinstance(error, OSError):
                error = storage_error(error, "reading the queue", facts.path)
            return {"queues": [_queue_row(facts, self._service_path) | {"problem": str(error)}]}

    def data_files(self, directory: QueueDirectory, queue_id: bytes) -> DataFiles:
        """Return the reader of data files, which remembers those that do not change any more."""
        if self._files is None or self._files.queue_id != queue_id:
            self._files = DataFiles(self._storage, directory, queue_id)
        return self._files

    def notes(self, directory: QueueDirectory, group: GroupInfo, progress: GroupProgress) -> dict[int, dict[str, str]]:
        """Return the notes of a group's dead letters; each note is read once."""
        reader = DeadLetterNotes(self._storage, directory.group(group.name))
        found = {}
        for offset, mark in progress.dead.items():
            key = (group.group_id, offset, mark.last_failure_ns)
            found[offset] = self._notes.get(key) or reader.read(offset)
            if found[offset]:
                self._notes[key] = found[offset]
        return found

    def forget_notes(self, dead: set[tuple[bytes, int, int]]) -> None:
        """Forget the notes of messages that are not dead letters any more."""
        self._notes = {key: note for key, note in self._notes.items() if key in dead}


class _Reading:
    """One reading of one queue."""

    def __init__(self, storage: Storage, service_path: Path, facts: QueueFacts, memory: QueueRows) -> None:
        self._storage = storage
        self._service_path = service_path
        self._facts = facts
        self._memory = memory
        self._events: dict[tuple[str, str], Row] = {}
        self._directory, self._queue_id, _ = open_directory(storage, facts.path, create=False, writable=False)

    def run(self) -> Rows:
        facts = self._facts
        self._damaged(facts.damage)
        data = self._memory.data_files(self._directory, self._queue_id)
        data.read()
        self._damaged(data.damage)
        queue = _queue_row(facts, self._service_path) | self._identity()
        seen = {file.content_type for file in data.files if file.content_type is not None}
        queue["content_types"] = json.dumps(sorted(seen | set(facts.content_types)))
        queue["queue_id"], queue["next_offset"] = self._queue_id.hex(), data.end_offset
        groups, letters, votes = self._groups(data.end_offset)
        return {
            "queues": [queue],
            "data_files": [self._data_file(file) for file in data.files],
            "groups": groups,
            "dead_letters": letters,
            "prepared": self._prepared(votes),
            "events": list(self._events.values()),
        }

    def _identity(self) -> Row:
        try:
            document = read_document(self._storage, self._directory.identity)
        except CorruptionError as error:
            self._damaged([Damage(self._directory.identity, 0, 0, range(0), DAMAGED, str(error))])
            return {"format": None, "created": None}
        return {"format": int(document["format"]), "created": document.get("created")}

    # -- Data files --------------------------------------------------------------------------------------------------

    def _data_file(self, file: DataFileFacts) -> Row:
        self._damaged(file.damage)
        name = str(file.name)
        if file.recovered_ns is not None:
            detail = f"the log ended uncleanly; {file.message_count} messages of this file were kept"
            self._event(RECOVERED_EVENT, f"data/{name}", file.recovered_ns, detail)
        return {
            "queue": self._facts.name,
            "sequence": file.name.sequence,
            "file_name": name,
            "first_offset": file.name.first_offset,
            "last_offset": file.end_offset - 1 if file.message_count else None,
            "message_count": file.merged_count or file.message_count,
            "first_at": time_text(file.first_ns),
            "last_at": time_text(file.last_ns),
            "bytes": file.size_bytes,
            "state": file.state,
        }

    # -- Groups and dead letters -------------------------------------------------------------------------------------

    def _groups(self, end_offset: int) -> tuple[list[Row], list[Row], list[tuple[str, Vote]]]:
        """Return the rows of groups and of dead letters, and the votes of all groups."""
        groups, letters, votes = [], [], []
        dead: set[tuple[bytes, int, int]] = set()
        for group in list_groups(self._storage, self._directory):
            self._damaged(group.damage)
            progress = self._progress(group)
            votes += [(group.name, vote) for vote in progress.votes.values()]
            groups.append(
                {
                    "queue": self._facts.name,
                    "group_name": group.name,
                    "depth": progress.live_count(end_offset),
                    "dead": len(progress.dead),
                    "floor": progress.floor,
                }
            )
            notes = self._memory.notes(self._directory, group, progress)
            dead.update((group.group_id, offset, mark.last_failure_ns) for offset, mark in progress.dead.items())
            for offset, mark in progress.dead.items():
                note = {name: storable_text(text) for name, text in notes[offset].items()}
                letters.append(
                    {
                        "queue": self._facts.name,
                        "group_name": group.name,
                        "offset": offset,
                        "reason": mark.reason,
                        "detail": note.get("detail", ""),
                        "exception": note.get("exception", ""),
                        "deliveries": mark.delivery_count,
                        "first_failure_at": time_text(mark.first_failure_ns),
                        "last_failure_at": time_text(mark.last_failure_ns),
                    }
                )
                detail = ": ".join(filter(None, (mark.reason, note.get("exception"), note.get("detail"))))
                subject = f"groups/{group.name}, offset {offset}"
                self._event(DEAD_LETTERED_EVENT, subject, mark.last_failure_ns, detail)
        self._memory.forget_notes(dead)
        return groups, letters, votes

    def _progress(self, group: GroupInfo) -> GroupProgress:
        reader = progress_reader(self._storage, self._directory, self._queue_id, group)
        progress = reader.refresh()
        if reader.damage:  # damage that is gone the second time was a write in progress
            again = progress_reader(self._storage, self._directory, self._queue_id, group)
            again.refresh()
            self._damaged(damage for damage in again.damage if damage in reader.damage)
        return progress

    # -- Prepared transactions ---------------------------------------------------------------------------------------

    def _prepared(self, votes: Sequence[tuple[str, Vote]]) -> list[Row]:
        """Return a row for each transaction: its puts are in ``prepared/``, its acknowledgements in votes."""
        rows: dict[str, Row] = {}
        waiting = read_waiting_entries(self._storage, self._directory, self._queue_id)
        self._damaged(waiting.lost)
        for each in waiting_puts(self._storage, self._directory, self._queue_id, waiting.entries):
            self._damaged(each.damage)
            nonce, record = each.nonce.hex(), None if each.batch is None else each.batch.commit_record
            made = self._prepared_row(each.id, nonce, each.timestamp_ns, None if record is None else record.coordinator)
            if each.batch is not None:
                made |= {"puts": each.batch.message_count, "bytes": each.batch.frames_bytes}
            rows[nonce or each.id] = made
        for _, vote in votes:
            own = (row for row in rows.values() if row["nonce"] in ("", vote.nonce.hex()) and row["id"] == vote.id)
            row = next(own, None)
            if row is None:
                row = self._prepared_row(vote.id, vote.nonce.hex(), vote.timestamp_ns, vote.coordinator)
                rows[vote.nonce.hex()] = row
            row["acks"] += vote.count
        return list(rows.values())

    def _prepared_row(self, transaction_id: str, nonce: str, timestamp_ns: int, coordinator: Participant | None) -> Row:
        is_own = coordinator is None or coordinator.path == OWN
        return {
            "queue": self._facts.name,
            "id": transaction_id,
            "nonce": nonce,
            "prepared_at": time_text(timestamp_ns),
            "puts": 0,
            "acks": 0,
            "bytes": 0,
            "coordinator": None if is_own or coordinator is None else coordinator.path,
        }

    # -- Events ------------------------------------------------------------------------------------------------------

    def _damaged(self, damage: Iterable[Damage]) -> None:
        for each in damage:
            path = each.path
            if path.is_relative_to(self._facts.path):
                path = path.relative_to(self._facts.path)
            lost = f"offsets {each.offsets.start} to {each.offsets.stop - 1} lost" if each.offsets else "no offset lost"
            reason = each.reason.replace(f"{self._facts.path}/", "")
            self._event(DAMAGED_EVENT, f"{path}, position {each.position}", None, f"{each.verdict}: {reason}; {lost}")

    def _event(self, kind: str, subject: str, at_ns: int | None, detail: str) -> None:
        row = {"queue": self._facts.name, "kind": kind, "subject": subject, "at": time_text(at_ns), "detail": detail}
        self._events.setdefault((kind, subject), row)


def _queue_row(facts: QueueFacts, service_path: Path) -> Row:
    path = facts.path.relative_to(service_path) if facts.path.is_relative_to(service_path) else facts.path
    return {
        "name": facts.name,
        "path": str(path),
        "queue_id": None,
        "format": None,
        "created": None,
        "next_offset": None,
        "content_types": json.dumps(sorted(facts.content_types)),
        "settings": settings_text(facts.settings),
        "problem": None,
    }
