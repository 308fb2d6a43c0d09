"""Dead letters: messages of a group that are not delivered any more, unless they are retried. docs/work-queue.md."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.persistence.filesystem.storage import replace_text
from holdfast.persistence.format.constants import DEAD_REASONS, NUMBER_MAX
from holdfast.persistence.format.message_headers import readable_headers
from holdfast.persistence.groups.dead_letter_notes import DeadLetterNotes
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.inspect.browse import Browser
from holdfast.queue.verbs.group_verbs import DEAD_DISCARD, DEAD_RETRY


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that is not delivered any more.

    Attributes
    ----------
    offset, timestamp_ns, payload, headers
        As in :class:`Message`.
    reason : str
        "exception", "lease_expired", "rejected", "expired", "undecodable" or "max_deliveries".
    detail : str
        The reason of the rejection, or the text of the exception.
    delivery_count : int
        How often it was delivered.
    first_failure_ns, last_failure_ns : int
        In nanoseconds since the epoch; the first one to the second.
    exception, traceback : str
        Type and traceback of the last exception, cut; empty if there was none.
    """

    offset: int
    timestamp_ns: int
    payload: bytes
    reason: str
    delivery_count: int
    first_failure_ns: int
    last_failure_ns: int
    detail: str = ""
    exception: str = ""
    traceback: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return one line of JSON; the payload is base64."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("payload", "headers")}
        payload = base64.b64encode(self.payload).decode()
        return json.dumps({**fields, "headers": dict(self.headers), "payload_base64": payload})


Letters = list[DeadLetter]
Offsets = list[int]
"""Named here, because a class whose verb is ``list`` cannot name the type any more."""

Which = int | DeadLetter | Iterable[int | DeadLetter]
"""One dead letter or several, as they are or by offset."""


class DeadLetters:
    """The dead letters of the group that a handle is for: ``queue.dead``.

    Reading needs no lock, but a mode that reads. The others work from every process, also if another one owns the
    group.

    Parameters
    ----------
    handle : QueueHandle
        The queue.
    make_browser : callable
        Makes the reader of messages.
    do : callable
        Asks the owner of the group to perform a verb.
    """

    def __init__(
        self, handle: QueueHandle, make_browser: Callable[[], Browser], do: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        self._handle = handle
        self._make_browser = make_browser
        self._do = do

    def list(self, *, reason: str | None = None, limit: int | None = None) -> Letters:
        """Return dead letters in offset order: those of one reason, or all; at most ``limit``."""
        letters: Letters = []
        for letter in self._letters(_check_reason(reason)):
            if limit is not None and len(letters) >= limit:
                break
            letters.append(letter)
        return letters

    def offsets(self, *, reason: str | None = None) -> Offsets:
        """Return the offsets of dead letters, in order: of one reason, or of all. Reads no message."""
        dead, wanted = dict(self._make_browser().progress().dead), _check_reason(reason)
        return sorted(offset for offset, mark in dead.items() if wanted in (None, mark.reason))

    def retry(self, which: Which | None = None, *, reason: str | None = None) -> int:
        """Make dead letters available again, as if they had never been delivered; return how many of these there were.

        Parameters
        ----------
        which : int, DeadLetter, or an iterable of those
            Letters, or their offsets; ``queue.dead.list()`` for all.
        reason : str
            All of one reason, instead.

        Raises
        ------
        UsageError
            Neither was named, or both; or a reason, and the mode does not read.
        HoldfastError
            As the owner of the group raises it; nothing is known to have changed.
        """
        return self._decide(DEAD_RETRY, which, reason)

    def discard(self, which: Which | None = None, *, reason: str | None = None) -> int:
        """Finish dead letters for good; return how many of these there were. Arguments and errors as for :meth:`retry`.

        Notes
        -----
        Durability: as the flush policy.
        """
        return self._decide(DEAD_DISCARD, which, reason)

    def export(self, path: str | os.PathLike[str], which: Which | None = None, *, reason: str | None = None) -> int:
        """Write dead letters into a new file, as lines of JSON; return how many. They stay dead letters.

        The payload is base64. The file is whole and on the disk when this returns; an existing file is replaced.

        Parameters
        ----------
        path : str or path-like
            The file.
        which : int, DeadLetter, or an iterable of those
            Letters, or their offsets; by default all. Those that are not dead letters any more are left out.
        reason : str
            All of one reason, instead.

        Raises
        ------
        UsageError
            Both were named, or the mode does not read; no file was made.
        OSError
            It cannot be written; an existing file is unchanged.
        """
        if which is not None and reason is not None:
            raise UsageError("say which dead letters: some of queue.dead.list(), or a reason; not both")
        letters = self._letters(_check_reason(reason), None if which is None else _offsets(which))
        return replace_text(Path(path), (letter.as_json() for letter in letters))

    def __len__(self) -> int:
        return len(self._make_browser().progress().dead)

    def _decide(self, verb: str, which: Which | None, reason: str | None) -> int:
        if (which is None) == (reason is None):
            raise UsageError("say which dead letters: some of queue.dead.list(), or a reason")
        if which is None:
            dead = dict(self._make_browser().progress().dead)
            offsets = [offset for offset, mark in dead.items() if mark.reason == _check_reason(reason)]
        else:
            offsets = [each for each in _offsets(which) if each <= NUMBER_MAX]
        return int(self._do({"verb": verb, "offsets": offsets})["count"]) if offsets else 0

    def _letters(self, reason: str | None, offsets: Iterable[int] | None = None) -> Iterator[DeadLetter]:
        browser = self._make_browser()
        dead = dict(browser.progress().dead)  # that of an owner keeps changing
        if offsets is not None:
            dead = {offset: dead[offset] for offset in offsets if offset in dead}
        notes = DeadLetterNotes(self._handle.storage, self._handle.directory.group(self._handle.options.group))
        for record in browser.records(sorted(each for each in dead if reason in (None, dead[each].reason))):
            offset, timestamp, headers, payload, _, _ = record
            mark, note = dead[offset], notes.read(offset)
            yield DeadLetter(
                offset,
                timestamp,
                payload,
                mark.reason,
                mark.delivery_count,
                mark.first_failure_ns,
                mark.last_failure_ns,
                note.get("detail", ""),
                note.get("exception", ""),
                note.get("traceback", ""),
                readable_headers(headers),
            )


def _offsets(which: Which) -> list[int]:
    several: Iterable[int | DeadLetter] = (which,) if isinstance(which, int | DeadLetter) else which
    offsets = [each.offset if isinstance(each, DeadLetter) else each for each in several]
    if not all(isinstance(each, int) and each >= 0 for each in offsets):
        raise UsageError("name dead letters by the entries of queue.dead.list(), or by offsets, each 0 or more")
    return offsets


def _check_reason(reason: str | None) -> str | None:
    known = DEAD_REASONS[1:]
    if reason is not None and reason not in known:
        raise UsageError(f"a reason is one of {', '.join(known)}; not {reason!r}")
    return reason
