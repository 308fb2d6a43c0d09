"""Browses a queue by state, page by page; takes nothing and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from holdfast.errors import UsageError
from holdfast.persistence.filesystem.storage import storage_errors
from holdfast.persistence.format.message_headers import readable_headers
from holdfast.persistence.format.message_options import decode_options
from holdfast.persistence.format.report import Damage
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_reader import LogReader, Record
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.queue.consumer.look_side import LookSide
from holdfast.queue.consumer.read_side import ReadSide
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.message_filter import MessageFilter

_READ_COUNT = 64


State = Literal["ready", "leased", "delayed", "dead"]
"""The states that can be browsed."""


class MessageState(Enum):
    """The state of a message. A message whose order key is held by another one is ready, and waits for its turn."""

    READY = "ready"
    LEASED = "leased"
    DELAYED = "delayed"
    DEAD = "dead"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class BrowsedMessage:
    """A message as :meth:`PersistentQueue.browse` shows it.

    Attributes
    ----------
    payload, offset, timestamp_ns, headers, delivery_count
        As in :class:`Message`.
    state : str
        "ready", "leased", "delayed" or "dead".
    until_ns : int or None
        Of a delayed one: when it is ready, in nanoseconds since the epoch.
    priority : int
        0 to 9.
    order_key : str or None
        The key; its messages are delivered one at a time.
    """

    payload: bytes
    offset: int
    timestamp_ns: int
    headers: Mapping[str, str] = field(default_factory=dict)
    delivery_count: int = 0
    state: str = "ready"
    until_ns: int | None = None
    priority: int = 0
    order_key: str | None = None


class Browser:
    """Walks the log of one queue with a reader of its own.

    Parameters
    ----------
    handle : QueueHandle
        The queue, with a read side or a look side.
    """

    def __init__(self, handle: QueueHandle) -> None:
        self._handle = handle
        self._view: LookSide | ReadSide = handle.look_side or handle.require_read_side()
        if handle.read_side is not None:
            handle.read_side.give_back_due()  # the view must be current, even if no take has updated it
        self._losses: list[Damage] = []  # reported when their turn comes to be taken

    def _end(self) -> LogEnd:
        return self._view.log_end

    def browse(
        self, state: str, limit: int, after: int | None, message_filter: MessageFilter | None = None
    ) -> list[BrowsedMessage]:
        """Return up to ``limit`` messages of a state behind offset ``after``, in offset order, that pass a filter."""
        try:
            wanted = MessageState(state)
        except ValueError:
            wanted = MessageState.DONE
        if wanted is MessageState.DONE:
            raise UsageError(f'state is "ready", "leased", "delayed" or "dead", not {state!r}')
        progress, leased = self.progress(), self._view.leased
        if wanted is MessageState.LEASED:
            end = self._end()[2]
            with self._view.lock:
                held = progress.held_offsets(end)
            candidates = self._records_behind(after, [*leased, *held])
        elif wanted is MessageState.DEAD:
            candidates = self._records_behind(after, list(progress.dead))  # in one step: other threads continue
        else:
            candidates = self._walk(progress, after)
        found: list[BrowsedMessage] = []
        for record in candidates:
            message = self._message(record, progress, leased)
            if message is None or message.state != wanted.value:
                continue
            if message_filter is None or message_filter.passes(record[0], record[1], record[2], len(record[3])):
                found.append(message)
                if len(found) == limit:
                    break
        return found

    def progress(self) -> GroupProgress:
        """Return the group's progress; if this process owns the group, it keeps changing."""
        return self._view.progress

    def records(self, offsets: list[int]) -> Iterator[Record]:
        """Yield the records of ascending offsets, as far as they can be read."""
        with self._reader() as reader:
            for offset in offsets:
                reader.go_on_to(offset)
                while reader.next_offset <= offset and (records := reader.read(1, self._end())):
                    if records[0][0] >= offset:
                        if records[0][0] == offset:
                            yield records[0]
                        break

    def _records_behind(self, after: int | None, offsets: list[int]) -> Iterator[Record]:
        return self.records(sorted({offset for offset in offsets if after is None or offset > after}))

    def _walk(self, progress: GroupProgress, after: int | None) -> Iterator[Record]:
        with self._reader() as reader:
            with self._view.lock:
                floor, hint = progress.floor, progress.hint
            if after is None or after < floor:
                reader.seek(floor, hint)
            else:
                reader.seek(after + 1)
            while records := reader.read(_READ_COUNT, self._end()):
                for record in records:
                    if after is None or record[0] > after:
                        yield record
                with self._view.lock:
                    run = progress.run_at(reader.next_offset)
                if run is not None and run[0] - reader.next_offset > _READ_COUNT * 4:
                    reader.seek(*run)

    @contextmanager
    def _reader(self) -> Iterator[LogReader]:
        files = self._handle.files
        with (
            storage_errors("browsing", files.directory),
            closing(LogReader(files, self._losses.append, recheck=True)) as reader,
        ):
            yield reader

    def _message(self, record: Record, progress: GroupProgress, leased: Mapping[int, object]) -> BrowsedMessage | None:
        offset, timestamp, headers, payload, _, _ = record
        options = decode_options(headers)
        now = self._handle.clock.time_ns()
        with self._view.lock:
            until = progress.due_ns(offset, options.not_before_ns)
            is_dead = offset in progress.dead
            is_leased = offset in leased or progress.is_held(offset)
            is_over = progress.is_over(offset, options.expires_ns, now) and not is_dead and not is_leased
            is_finished = progress.is_finished(offset) or is_over
            delivery_count = progress.deliveries.get(offset, 0)
        state = state_of(is_finished=is_finished, is_dead=is_dead, is_leased=is_leased, until_ns=until, now_ns=now)
        if state is MessageState.DONE:
            return None
        return BrowsedMessage(
            payload,
            offset,
            timestamp,
            readable_headers(headers),
            delivery_count,
            state.value,
            until if state is MessageState.DELAYED else None,
            options.priority,
            options.order_key or None,
        )


def state_of(
    *, is_finished: bool = False, is_dead: bool = False, is_leased: bool = False, until_ns: int = 0, now_ns: int = 0
) -> MessageState:
    """Return the state of a message, from these facts."""
    if is_finished:
        return MessageState.DONE
    if is_dead:
        return MessageState.DEAD
    if is_leased:
        return MessageState.LEASED
    return MessageState.DELAYED if until_ns > now_ns else MessageState.READY
