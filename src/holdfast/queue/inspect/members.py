"""Who shares a queue: the sessions that live, and what each of them has in hand. Takes no lock, and changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.persistence.filesystem.layout import open_directory
from holdfast.persistence.filesystem.storage import Storage, storage_errors
from holdfast.persistence.format.constants import SESSION_SHIFT
from holdfast.persistence.groups.group_files import list_groups, progress_reader
from holdfast.persistence.ownership.owner_lock import is_owned, read_owner_note
from holdfast.persistence.ownership.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Member:
    """One handle of the mode "shared" that is open.

    Attributes
    ----------
    session : int
        Its number.
    pid, host : int or None, str or None
        Its process, for people: process ids mean nothing in another container.
    started_ns : int or None
        When it was opened, in nanoseconds since the epoch.
    is_owner : bool
        Whether its process owns the queue.
    in_hand : mapping of str to int
        Messages that it has in hand, by consumer group.
    """

    session: int
    pid: int | None
    host: str | None
    started_ns: int | None
    is_owner: bool
    in_hand: Mapping[str, int]


def list_members(storage: Storage, root: Path) -> list[Member]:
    """Return the members of a shared queue, the longest first.

    Raises
    ------
    QueueNotFoundError
        There is no queue.
    StorageError
        The disk refuses.
    """
    directory, queue_id, _ = open_directory(storage, root, create=False, writable=False)
    with storage_errors("listing sessions", root):
        sessions = Sessions(storage, root)
        note = read_owner_note(storage, root) if is_owned(storage, root) else None
        in_hand = Counter[tuple[int, str]]()
        for group in list_groups(storage, directory):
            progress = progress_reader(storage, directory, queue_id, group).refresh()
            in_hand.update((number >> SESSION_SHIFT, group.name) for number in progress.numbers.values())
        members = []
        for number in sessions.living():
            who = sessions.note(number)
            is_owner = note is not None and (note.pid, note.host) == (who.pid, who.host)
            held = {group: count for (session, group), count in sorted(in_hand.items()) if session == number}
            members.append(Member(number, who.pid, who.host, who.started, is_owner, held))
        return sorted(members, key=lambda member: (member.started_ns or 0, member.session))
