"""Reading a queue that others own: takes no lock, changes nothing, pins nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from holdfast.messages import Message
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.constants import SESSION_SHIFT
from holdfast.persistence.format.message_headers import readable_headers
from holdfast.persistence.format.message_options import decode_options
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_files import LogFiles
from holdfast.persistence.log.log_reader import LogReader
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.run_reader import RunReader
from holdfast.queue.consumer.options_seen import OptionsSeen, Waiting
from holdfast.queue.consumer.published_end import PublishedEnd
from holdfast.queue.options.message_filter import MessageFilter

_READ_COUNT = 64


class LookSide:
    """Shows the messages that a consumer group would get next.

    Parameters
    ----------
    files, published
        The log, and how far it may be read.
    find_positions : callable
        Returns the group's progress, and whether the group has begun.
    find_filter : callable
        Returns the filter of the group, if it has one; raises ConfigError if this process cannot have it.
    time_ns : callable
        The wall clock.
    living : callable
        Whether a session has in hand what it was handed out; 0: a handle without a session.
    is_last : callable
        Whether a message that was handed out so often is not delivered again.
    """

    def __init__(
        self,
        files: LogFiles,
        published: PublishedEnd,
        find_positions: Callable[[], tuple[PositionFileReader, bool]],
        find_filter: Callable[[], MessageFilter | None],
        time_ns: Callable[[], int],
        living: Callable[[int], bool],
        is_last: Callable[[int], bool],
    ) -> None:
        self._files = files
        self._published = published
        self._find_positions = find_positions
        self._find_filter = find_filter
        self._filters: list[MessageFilter | None] = []
        self._time_ns = time_ns
        self._living = living
        self._is_last = is_last
        self._positions, self._has_begun = find_positions()
        self._options = OptionsSeen()
        self._lock = threading.Lock()
        self._losses: list[Damage] = []
        self.damage: list[Damage] = []

    def peek(self, count_max: int) -> list[Message]:
        """Return up to ``count_max`` messages that the group has not finished, in offset order.

        Messages that a consumer has in hand now are among them. Messages that a prepared transaction holds, or that are
        consumed meanwhile, are left out.
        """
        if not self._filters:  # it never changes
            self._filters.append(self._find_filter())
        return self._look(count_max, self._filters[0], with_held=False)

    def _look(self, count_max: int, message_filter: MessageFilter | None, *, with_held: bool) -> list[Message]:
        with self._lock, storage_errors("looking", self._files.directory):
            progress = self._refresh()
            end = self._published.end()
            unknown = self._published.damage()
            if unknown is not None:
                self._losses.append(unknown)
            found: list[Message] = []
            reader = LogReader(self._files, self._losses.append, recheck=True)
            try:
                reader.seek(progress.floor, progress.hint)
                while len(found) < count_max and (records := reader.read(_READ_COUNT, end)):
                    for offset, timestamp, headers, payload, _, _ in records:
                        if progress.is_finished(offset) or offset in progress.dead or len(found) == count_max:
                            continue
                        if not with_held and not self._is_ready(offset, headers, progress):
                            continue
                        if message_filter is None or message_filter.passes(offset, timestamp, headers, len(payload)):
                            count = progress.deliveries.get(offset, 0)
                            found.append(Message(payload, offset, timestamp, readable_headers(headers), count))
            finally:
                reader.close()
                self._note_losses()
            return found

    def _is_ready(self, offset: int, headers: bytes, progress: GroupProgress) -> bool:
        """Whether a message is not held, delayed or ended."""
        options, now = decode_options(headers), self._time_ns()
        until_ns = progress.due_ns(offset, options.not_before_ns)
        is_over = progress.is_over(offset, options.expires_ns, now)
        return not progress.is_held(offset) and until_ns <= now and not is_over

    def _refresh(self) -> GroupProgress:
        """Return the progress as it is now; of a group that has begun meanwhile, or was moved by seek, too."""
        if not self._has_begun:
            self._positions, self._has_begun = self._find_positions()
        progress = self._positions.refresh()
        if not self._positions.is_superseded:
            return progress
        positions, _ = self._find_positions()
        if positions.ids != self._positions.ids:  # else the other life has not begun
            self._positions, self._options = positions, OptionsSeen()
        return self._positions.refresh()

    @property
    def depth(self) -> int:
        """Messages the group has not finished, those included that a prepared transaction holds."""
        with self._lock, storage_errors("looking", self._files.directory):
            return self._refresh().live_count(self._published.end()[2])

    @property
    def ready_count(self) -> int:
        """Messages that can be taken now, as far as the log has been read, and those behind that."""
        with self._lock, storage_errors("looking", self._files.directory):
            waiting = self._waiting()
            return max(0, self._positions.progress.live_count(self._published.end()[2]) - sum(waiting))

    @property
    def in_flight_count(self) -> int:
        """Messages in hand of those who live, as far as can be told, or held by a prepared transaction."""
        with self._lock, storage_errors("looking", self._files.directory):
            progress = self._refresh()
            return progress.held_count + len(self._in_hand(progress))

    @property
    def waiting_count(self) -> int:
        """Messages that wait for their time or for their order key, as far as the log has been read."""
        with self._lock, storage_errors("looking", self._files.directory):
            return self._waiting().delayed

    def _waiting(self) -> Waiting:
        """Read on, and return how many messages cannot be taken now."""
        progress = self._refresh()
        reader = RunReader(self._files, self._losses.append, recheck=True)
        try:
            self._options.read_on(reader, progress, self._published.end())
        finally:
            reader.close()
            self._note_losses()
        return self._options.waiting(progress, self._in_hand(progress), self._is_last, self._time_ns())

    def _in_hand(self, progress: GroupProgress) -> dict[int, int]:
        """Return delivery counts of messages that were handed out and not settled, of sessions that live."""
        lives: dict[int, bool] = {}
        found: dict[int, int] = {}
        for offset, count in progress.deliveries.items():
            if progress.is_out(offset):
                session = progress.numbers.get(offset, 0) >> SESSION_SHIFT
                if session not in lives:
                    lives[session] = self._living(session)
                if lives[session]:
                    found[offset] = count
        return found

    @property
    def progress(self) -> GroupProgress:
        """The group's current progress."""
        with self._lock, storage_errors("looking", self._files.directory):
            return self._refresh()

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while the progress changes."""
        return self._lock

    @property
    def log_end(self) -> LogEnd:
        """The high watermark for consumers."""
        return self._published.end()

    @property
    def leased(self) -> dict[int, int]:
        """The messages in hand of those who live, as far as can be told, by offset."""
        with self._lock, storage_errors("looking", self._files.directory):
            return self._in_hand(self._refresh())

    @property
    def end(self) -> int:
        """Offset behind the last message that consumers may see."""
        return self._published.end()[2]

    def oldest(self) -> tuple[int, int] | None:
        """Return timestamp, in nanoseconds, and offset of the oldest unfinished message; None if there is none."""
        oldest = self._look(1, None, with_held=True)
        return (oldest[0].timestamp_ns, oldest[0].offset) if oldest else None

    def close(self) -> None:
        """Close ``write.mark``."""
        self._published.close()

    def _note_losses(self) -> None:
        """Keep the damage that is not caused by retiring: files that were retired meanwhile are finished by now."""
        if not self._losses:
            return
        progress = self._refresh()
        for damage in self._losses:
            missed = progress.unfinished_runs(damage.offsets.start, damage.offsets.stop)
            found = [replace(damage, offsets=run) for run in missed] if damage.offsets else [damage]
            self.damage += [item for item in found if item not in self.damage]
        self._losses.clear()
