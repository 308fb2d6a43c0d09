"""The options of unfinished messages, as far as a handle without sides has read the log."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from holdfast.persistence.format.message_options import NO_OPTIONS, MessageOptions, decode_options, has_options
from holdfast.persistence.groups.position_entry import NO_HINT
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.log_tail import LogEnd
from holdfast.persistence.log.run_reader import RunReader

MESSAGES_MAX = 50_000
"""So many are read at once, 20 ms for plain ones and ten times that for those that ask for something; and no more of
these are remembered."""

_READ_COUNT = 64
_NO_LIMIT = 2**63 - 1


class Waiting(NamedTuple):
    """How many unfinished messages cannot be taken now, by the reason.

    Attributes
    ----------
    in_hand : int
        Handed out and not settled, or held by a prepared transaction.
    delayed : int
        Waiting for their time or for their order key.
    ended : int
        Expired, or lost by the last one who was to have them, which is not recorded yet.
    """

    in_hand: int
    delayed: int
    ended: int


class OptionsSeen:
    """Remembers the messages that ask for something, until they are finished: 200 bytes of memory each."""

    def __init__(self) -> None:
        self._options: dict[int, MessageOptions] = {}
        self._next_offset = 0
        self._hint = NO_HINT

    def read_on(self, reader: RunReader, progress: GroupProgress, end: LogEnd) -> None:
        """Continue from the place of the last call, towards the end of the log; raises OSError."""
        if self._next_offset < progress.floor:
            self._next_offset, self._hint = progress.floor, progress.hint
        reader.seek(self._next_offset, self._hint)
        stop = min(end[2], self._next_offset + MESSAGES_MAX)
        while reader.next_offset < stop and len(self._options) < MESSAGES_MAX:
            run = reader.pass_plain(stop - reader.next_offset, _NO_LIMIT, end)
            if run is not None:
                self._hint = run.sequence, run.end_position
                continue
            records = reader.read(_READ_COUNT, end)
            if not records:
                break
            for offset, _, headers, _, _, _ in records:
                if has_options(headers):
                    self._options[offset] = decode_options(headers)
            self._hint = records[-1][5], records[-1][4]
        self._next_offset = max(self._next_offset, reader.next_offset)

    def waiting(
        self, progress: GroupProgress, in_hand: Collection[int], is_last: Callable[[int], bool], now_ns: int
    ) -> Waiting:
        """Return how many messages cannot be taken now, of all that is known of them.

        ``in_hand`` are those that a living session has; others were lost, and are dead letters at the next take if
        their delivery count ``is_last``.
        """
        over = [each for each in self._options if progress.is_finished(each) or each in progress.dead]
        for offset in over:
            del self._options[offset]
        lost = [each for each in progress.deliveries if each not in in_hand and progress.is_out(each)]
        delayed, ended, keys = 0, 0, set()
        for offset in sorted({*self._options, *progress.returned, *lost}):
            options = self._options.get(offset, NO_OPTIONS)
            has_turn = options.order_key not in keys
            if options.order_key:
                keys.add(options.order_key)
            if progress.is_held(offset) or offset in in_hand:
                continue
            if progress.is_over(offset, options.expires_ns, now_ns):
                ended += 1
            elif not has_turn or progress.due_ns(offset, options.not_before_ns) > now_ns:
                delayed += 1
            elif is_last(progress.deliveries.get(offset, 0)):
                ended += 1
        return Waiting(progress.held_count + len(in_hand), delayed, ended)
