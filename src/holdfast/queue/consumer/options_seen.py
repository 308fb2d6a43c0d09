"""The options of unfinished messages, as far as a handle without sides has read the log."""

from __future__ import annotations

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
    expired : int
        Expired, which is not recorded yet.
    """

    in_hand: int
    delayed: int
    expired: int


def in_hand_count(progress: GroupProgress) -> int:
    """Return how many messages were handed out and not settled, or are held by prepared transactions."""
    return progress.held_count + sum(map(progress.is_out, progress.deliveries))


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

    def waiting(self, progress: GroupProgress, now_ns: int) -> Waiting:
        """Return how many messages cannot be taken now, of all that is known of them."""
        over = [each for each in self._options if progress.is_finished(each) or each in progress.dead]
        for offset in over:
            del self._options[offset]
        delayed, expired, keys = 0, 0, set()
        for offset in sorted({*self._options, *progress.returned}):
            options = self._options.get(offset, NO_OPTIONS)
            has_turn = options.order_key not in keys
            if options.order_key:
                keys.add(options.order_key)
            if progress.is_held(offset) or progress.is_out(offset):
                continue
            if progress.is_over(offset, options.expires_ns, now_ns):
                expired += 1
            elif not has_turn or progress.due_ns(offset, options.not_before_ns) > now_ns:
                delayed += 1
        return Waiting(in_hand_count(progress), delayed, expired)
