"""Merges of data files in a life: whatever lives is there behind them, in one file instead of several."""

from __future__ import annotations

from collections.abc import Callable

from proof.crash_states.asked import AskingGroup, unfinished
from proof.crash_states.lives.books import A
from proof.crash_states.lives.several import Several
from proof.crash_states.opening import log_of

LIVING_BYTES = 40
"""Messages of this size are what lives in files that are merged."""

DYING_BYTES, DYING_COUNT = 2200, 12
"""What is beside one of them: more than a data file has, so that a batch gets one of its own, of 31 KB.

A quarter of 16 KiB, the smallest data file, is less than the header of a merged one.
"""


class Merging(Several):
    """Merges data files.

    Attributes
    ----------
    merged_count : int
        How many merged files were made in this life.
    """

    merged_count = 0

    def compact(self) -> None:
        """Merge what can be merged: nothing that a group needs goes, and the rest of a log stays as it was."""
        before, needed = log_of(self.queue), self._needed()
        done = self.queue.compact()
        after = log_of(self.queue)
        assert set(after) <= set(before), "a merge has made messages"
        assert [each for each in after if each[0] in needed] == [each for each in before if each[0] in needed]
        assert 3 * done.written_bytes <= done.freed_bytes, f"{done.written_bytes} B for {done.freed_bytes} B"
        assert (after == before) or done.merged_count or done.file_count
        self.merged_count += done.merged_count
        self._return(f"compact({done.merged_count})")

    def compact_in_pass(self) -> None:
        """Have a pass merge, which skips what is not in the last data file first."""
        self.queue.configure(compact_ratio=1)
        self._return("configure")
        self.pass_over()
        self.queue.configure(reset=["compact_ratio"])
        self._return("configure")

    def _needed(self) -> set[int]:
        """Return what a group has not finished, as well as what a transaction holds."""
        wishes, end = self.history.wishes[A], len(self.history.payloads[A])
        groups: list[AskingGroup] = [each for each in (self.groups[A], self.slow_group) if each is not None]
        left = {each.offset for group in groups for each in unfinished(group.state(), wishes, end, self.now_ns)}
        return left.union(self.held_offsets, *(group.dead for group in groups))

    # -- What there is to merge --------------------------------------------------------------------------------------

    def put_sparse(self, file_count: int) -> None:
        """Put batches that get data files of their own: large messages, and a small one at the end."""
        for _ in range(file_count):
            self.put(*[DYING_BYTES] * DYING_COUNT, LIVING_BYTES)

    def finish_large(self, *ends: str) -> None:
        """Take all that there is for the first group, finish what is large, and end each small one in its way."""
        while self.may_come():
            self.receive()
        verbs = iter(ends)
        while self.in_hand:
            is_small = len(self.history.payloads[A][min(self.in_hand)]) == LIVING_BYTES
            verb: Callable[[], None] = getattr(self, next(verbs)) if is_small else self.ack
            verb()
        self.flush()

    def finish_for_slow(self, but: int) -> None:
        """Take all that there is for the second group, but for the message at one offset."""
        self.slow_get(but)
        self.slow_receive()
        while self.may_come_to_slow():
            self.slow_get(5)
