"""The second group of a life: slower, under its own flush policy, made and deleted; and races of two actors.

A race interleaves two actors at storage calls, the same each time: before a chosen call of the one, the other one does
all it does. If it wants a lock that is held, it has done nothing, and tries again before the next call, as who waits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from proof.crash_states.asked import AskingGroup
from proof.crash_states.history import FILTERED_BYTES
from proof.crash_states.lives.books import SLOW_PROGRESS
from proof.crash_states.lives.giving import Giving
from proof.crash_states.opening import SLOW, another_actor

NEXT_MERGED = "next.merged"
"""A merged file while it is made, which takes no message with it if it goes."""

LOCK = ".lock"
"""What the names of lock files end with, and the whole name of the one under which groups come and go."""


class BlockedError(Exception):
    """The other actor waits for a lock."""


class Grouping(Giving):
    """Takes for the second group.

    Attributes
    ----------
    race_count : int
        How many races there were, with both actors.
    """

    race_count = 0

    def create(self, start: str = "earliest") -> None:
        """Make the group, and open a handle for it."""
        first = self.queue.groups.create(SLOW, start, max_deliveries=None, max_lag_bytes=1)
        self._created(first)
        self._return("create")
        self._open_slow()

    def create_filtered(self) -> None:
        """Make the group with a filter that lets small messages pass, and open a handle for it."""
        first = self.queue.groups.create(SLOW, filter=f"size < {FILTERED_BYTES}", max_deliveries=None)
        self._created(first, is_filtered=True)
        self._return("create_filtered")
        self._open_slow()

    def _created(self, first: int, *, is_filtered: bool = False) -> None:
        self.slow_group = self._begun(first)
        self.slow_group.is_filtered = is_filtered
        self._happened({SLOW_PROGRESS: self.slow_group.state()}, durable=True)

    def delete(self) -> None:
        """Close the handle of the group, and delete it."""
        self._close_slow()
        self.queue.groups.delete(SLOW)
        self._deleted()
        self._return("delete")

    def _deleted(self) -> None:
        self.slow_group = None
        self._happened({SLOW_PROGRESS: None}, durable=True)

    def _of_slow(self) -> tuple[AskingGroup, int]:
        """Return the group, and how far its handle sees the log."""
        assert self.slow is not None
        assert self.slow_group is not None
        return self.slow_group, self.slow.stats().next_offset

    def may_come_to_slow(self) -> list[int]:
        """Return which messages the next one is one of; nothing if none has to come."""
        if self.slow is None:
            return []
        allowed, is_sure = self._may_come(*self._of_slow(), frozenset())
        return allowed if is_sure else []

    def slow_get(self, count: int = 1) -> None:
        """Take and acknowledge."""
        assert self.slow is not None
        group, end = self._of_slow()
        payloads = [self.slow.get(block=False)] if count == 1 else self.slow.get_many(count, timeout=0)
        offsets = self._offsets(group, payloads, end, frozenset())
        group.in_flight.difference_update(offsets)
        group.finish(offsets)
        self._slow_progressed(f"slow_get({count})", is_commit=True)

    def slow_receive(self) -> None:
        """Take a message and keep it in hand."""
        assert self.slow is not None
        group, end = self._of_slow()
        delivery = self.slow.receive(timeout=0)
        (offset,) = self._offsets(group, [delivery.payload], end, frozenset())
        assert [delivery.delivery_count] == group.deliver([offset])
        self.slow_in_hand[offset] = delivery
        self._slow_progressed("slow_receive")

    def slow_ack(self) -> None:
        """Acknowledge the oldest message in hand."""
        offset = min(self.slow_in_hand)
        self.slow_in_hand.pop(offset).ack()
        self._of_slow()[0].finish([offset])
        self._slow_progressed("slow_ack", is_commit=True)

    def _slow_progressed(self, call: str, *, is_commit: bool = False) -> None:
        assert self.slow_group is not None
        self._happened({SLOW_PROGRESS: self.slow_group.state()})
        if is_commit:
            self._committed(SLOW_PROGRESS)
        self._return(call)

    # -- Races -------------------------------------------------------------------------------------------------------

    def race_with_create(self, call: Callable[[], None], at: int) -> bool:
        """Make the group before a storage call of something else; return whether that makes so many calls."""
        there: list[str] = []
        first: list[int] = []
        data = self.data
        with another_actor(self.queue) as groups:

            def create() -> None:
                first.append(groups.create(SLOW, max_deliveries=None, max_lag_bytes=1))
                there.extend(name for name in self.storage.list(data) if name != NEXT_MERGED)

            has_come = self._race(call, create, at)
        if has_come:
            assert set(there) <= set(self.storage.list(data)), "a file of a group that was made has gone"
            self._created(first[0])
            self._return("race with create")
            self._open_slow()
        return has_come

    def race_with_delete(self, call: Callable[[], None], at: int) -> bool:
        """Delete the group before a storage call of something else; return whether that makes so many calls."""
        self._close_slow()
        self.slow_group = None
        with another_actor(self.queue) as groups:
            has_come = self._race(call, lambda: groups.delete(SLOW), at)
        if has_come:
            self._deleted()
            self._return("race with delete")
        return has_come

    def _race(self, call: Callable[[], None], other: Callable[[], None], at: int) -> bool:
        storage, count = self.storage, 0
        returned = len(self.segments[-1].moments)

        def before_verb(verb: str, path: Path) -> None:
            nonlocal count
            if LOCK in (path.suffix, path.name):
                return  # files of locks are opened with a lock of the process held
            count += 1
            if count < at:
                return
            storage.before_verb = before_verb_of_other
            try:
                other()
            except BlockedError:
                storage.before_verb = before_verb  # and again before the next call
            else:
                storage.before_verb = None

        def before_verb_of_other(verb: str, path: Path) -> None:
            is_tried_once = path.name == "read.lock"  # of a group with an owner, whose progress it then only syncs
            if verb == "try_lock" and storage.is_locked(path) and not is_tried_once:
                raise BlockedError

        storage.before_verb = before_verb
        call()
        has_come = storage.before_verb is None
        storage.before_verb = None
        self.race_count += has_come
        if has_come:  # what both did is one call, of which nobody knows yet
            del self.segments[-1].moments[returned:]
        return has_come
