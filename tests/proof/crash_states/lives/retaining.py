"""Retention in a life: passes that skip what is not in the last data file, and finished files that are kept."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast import CommitUnknownError, HoldfastError, LeaseExpiredError, PoisonedError
from proof.crash_states.asked import PLAIN, AskingGroup
from proof.crash_states.history import Part
from proof.crash_states.lives.books import PROGRESS, SLOW_PROGRESS, A
from proof.crash_states.lives.putting import HOUR_SECONDS
from proof.crash_states.lives.requesting import Requesting
from proof.crash_states.opening import take_apart
from support.builders.handles import handle_of, pass_over
from support.storages.refusals import refusing


class Retaining(Requesting):
    """Does passes of retention. If a group has no filter, it is too far behind at the second data file."""

    _kept: frozenset[str] | None = None

    @property
    def is_kept(self) -> bool:
        """Whether finished data files are kept."""
        return self._kept is not None

    def keep(self) -> None:
        """Keep finished data files from now on."""
        self.queue.configure(retain_messages=10**6)
        self._kept = frozenset(self.storage.list(self.data))
        self._return("keep")

    def keep_no_more(self) -> None:
        """Retire them again, at the next pass."""
        self._kept = None
        self.queue.configure(reset=["retain_messages"])
        self._return("keep_no_more")

    def pass_over(self) -> None:
        """Do a pass."""
        handle_of(self.queue).require_read_side().begin()
        group = self._group()
        in_transaction = set() if self.tx is None or self.tx.is_prepared else {*self.tx.acks, *self.tx.received}
        skipped = self._skipped(group, self.held_offsets | in_transaction)
        slow_group = self.slow_group
        slow = self._skipped(slow_group) if slow_group is not None and not slow_group.is_filtered else []
        before, counted = self._last_data_file(A), self.queue.stats().skipped
        pass_over(self.queue)
        if self._last_data_file(A) != before:
            self.history.is_durable((A, Part.LOG))
        assert self.queue.stats().skipped - counted == len(skipped), "as many were skipped as were counted"
        self._skip(group, skipped)
        if slow_group is not None:
            self._skip_slow(slow_group, slow)
        self._return(f"pass_over({skipped}, {slow})")

    def pass_later(self) -> None:
        """Do a pass an hour later: the last data file is left, and all of it is skipped."""
        self.let_pass(HOUR_SECONDS)
        self.pass_over()

    def pass_asleep(self) -> None:
        """Do a pass while nothing has the second group open."""
        self._close_slow()
        self.pass_over()
        self._open_slow()

    def fail_and_live(self) -> None:
        """Have the sync of the second group fail behind an acknowledgement, and want the space of data files.

        Its handle refuses everything until it is opened again.
        """
        self._fail()
        with suppress(HoldfastError):
            handle_of(self.queue).reclaim()
        self._return("fail_and_live")
        self._reopen_slow()

    def fail_and_die(self) -> None:
        """Do the same, but the process dies; the next one wants the space before it opens the second group."""
        self._fail()
        self._return("fail")
        group, self.slow_group = self.slow_group, None
        self.kill()
        self.slow_group = group
        handle_of(self.queue).reclaim()
        self._return("fail_and_die")
        self._open_slow()

    def _fail(self) -> None:
        """Take a message for the second group and acknowledge it; the sync of that fails."""
        assert self.slow is not None
        self.slow_receive()
        offset, delivery = self.slow_in_hand.popitem()
        with refusing(self.storage, "sync", ".position"), suppress(CommitUnknownError, PoisonedError):
            delivery.ack()
            self.slow.flush()
        group, _ = self._of_slow()
        group.finish([offset])
        self._happened({SLOW_PROGRESS: group.state()})

    def _reopen_slow(self) -> None:
        """Open the second group again, whose handle is poisoned: what was in hand counts as delivered."""
        assert self.slow is not None
        self.slow_in_hand.clear()
        with suppress(HoldfastError):
            self.slow.close()
        take_apart(self.slow)
        self._open_slow()

    def _skipped(self, group: AskingGroup, in_use: set[int] | frozenset[int] = frozenset()) -> list[int]:
        """Return what the next pass skips; what has expired by then is dropped, unless it is in hand."""
        wishes, end = self.history.wishes[A], self._first_of_last_file()
        found = []
        for offset in range(group.start, end):
            if offset in group.finished | group.dead | in_use:
                continue
            count, until_ns = group.deliveries.get(offset, 0), group.until_ns.get(offset, 0)
            if offset in group.in_flight or not wishes.get(offset, PLAIN).is_over(self.now_ns, count, until_ns):
                found.append(offset)
        return found

    def _first_of_last_file(self) -> int:
        """Return where the last data file will begin at the next pass: an old one with messages is left by it."""
        handle = handle_of(self.queue)
        oldest_ns = handle.require_write_side()._writer.oldest_ns
        if oldest_ns is not None and self.now_ns - oldest_ns >= HOUR_SECONDS * 10**9:
            return len(self.history.payloads[A])
        return handle.files.names()[-1].first_offset if len(handle.files) else 0

    def _skip(self, group: AskingGroup, offsets: list[int]) -> None:
        for offset in self.in_hand.keys() & set(offsets):
            with pytest.raises(LeaseExpiredError, match="was skipped"):
                self.in_hand.pop(offset).ack()
        if offsets:
            group.finish(offsets)
            self._happened({PROGRESS: group.state()})
            self._committed(PROGRESS)

    def _skip_slow(self, group: AskingGroup, offsets: list[int]) -> None:
        for offset in self.slow_in_hand.keys() & set(offsets):
            with pytest.raises(LeaseExpiredError, match="was skipped"):
                self.slow_in_hand.pop(offset).ack()
        if offsets:
            group.finish(offsets)
            self._happened({SLOW_PROGRESS: group.state()}, durable=self.slow is None)
            self._committed(SLOW_PROGRESS)

    def _return(self, call: str) -> None:
        if self._kept is not None and A in self.queues:
            there = frozenset(self.storage.list(self.data))
            assert self._kept <= there, "a data file that is kept has gone"
            self._kept = there
        super()._return(call)
