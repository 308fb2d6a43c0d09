"""Bugs in filters of groups: they judge what does not verify, or too much, or leave what they should finish."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

_READ = """
            is_good = False
            break
        if gaps is not None and found > index:
            gaps += (index, found)
            index = found
            if kind == KIND_MESSAGE and index >= index_end:
                break
        if kind == KIND_MESSAGE:
"""
"""What follows the checksum in ``read_messages``."""

FILTERS = (
    Mutation(
        "filter-before-checksum",
        "A message with headers is judged, and finished, though its checksum does not hold.",
        "persistence/format/frame_runs.py",
        "        if crc(salt ^ size, body) != checksum or stx != STX or headers_size > size - RECORD_SIZE_MIN:" + _READ,
        "        if (crc(salt ^ size, body) != checksum and not headers_size) or stx != STX:" + _READ,
        "filters",
    ),
    Mutation(
        "filter-takes-back",
        "A message that was handed out is finished, because the filter says something else by now.",
        "queue/dispatch/dispatcher.py",
        "            offset in progress.deliveries\n            or offset in progress.dead\n",
        "            offset in progress.dead\n",
        "filters",
    ),
    Mutation(
        "filtered-ahead-of-the-others",
        "A message with a priority is handed out though it does not match.",
        "queue/dispatch/dispatcher.py",
        "                    self._filter is None\n                    or self._filter.passes(",
        "                    self._filter is not False\n                    or self._filter.passes(",
        "filters",
    ),
    Mutation(
        "filter-passed-by-a-reservation",
        "A drain or a purge takes messages unread, also those that do not match.",
        "queue/dispatch/dispatcher.py",
        "        if self._filter is None and cursor.next_offset >=",
        "        if cursor.next_offset >=",
        "filters",
    ),
    Mutation(
        "failed-filter-loses",
        "A message that the filter cannot judge is finished unread.",
        "queue/options/message_filter.py",
        "                self.failed_count += 1\n            return True\n",
        "                self.failed_count += 1\n            return False\n",
        "filters",
    ),
    Mutation(
        "filter-remembers-too-much",
        "An answer is remembered by headers alone, though the expression names the size too.",
        "queue/options/message_filter.py",
        '        self._is_by_headers = names is not None and {"size", "time"}.isdisjoint(used)\n',
        "        self._is_by_headers = names is not None\n",
        "filters",
    ),
    Mutation(
        "filter-changed-later",
        "A group that exists takes another filter without a word.",
        "queue/inspect/groups.py",
        "                elif FILTER in settings and ",
        "                elif not settings and ",
        "filters",
    ),
    Mutation(
        "left-out-counted-twice",
        "What a refused take has left out is noted beside what is left out when the log is read again.",
        "queue/dispatch/dispatcher.py",
        "        self._ready.clear()\n        self.forget_left_out()\n",
        "        self._ready.clear()\n",
        "filters",
    ),
    Mutation(
        "left-out-behind-a-lease",
        "What a take leaves out stays unfinished while what it hands out is in hand.",
        "queue/consumer/read_side.py",
        "        self._dispatcher.end_left_out()\n        counts =",
        "        counts =",
        "filters",
    ),
    Mutation(
        "left-out-for-nothing",
        "A take that hands out nothing does not finish what it has left out.",
        "queue/dispatch/dispatcher.py",
        "                if not ready:\n                    self.end_left_out()\n",
        "                if not ready:\n",
        "filters",
    ),
    Mutation(
        "left-out-without-bound",
        "One take holds all that it leaves out in memory, however much it reads.",
        "queue/dispatch/dispatcher.py",
        "        if self._left_out_bytes >= TAKE_BYTES:\n            self.end_left_out()\n",
        "",
        "filters",
    ),
    Mutation(
        "known-though-new",
        "A message in hand is judged again, because messages behind the last finished one are taken for new.",
        "queue/dispatch/dispatcher.py",
        "NUMBER_MAX if progress.deliveries or progress.dead or progress.votes else progress.finished_end",
        "progress.finished_end",
        "filters",
    ),
)
"""In the order in which they are tried."""
