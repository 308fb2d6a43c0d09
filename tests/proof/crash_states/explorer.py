"""Recovers what crashes leave, judges it, crashes the recovery, and works with what was recovered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice

from holdfast import FlushPolicy
from proof.crash_states.counting import Tally, as_number, fate_of, view_of
from proof.crash_states.crashes import crashes
from proof.crash_states.history import History, Moment, Numbers
from proof.crash_states.life import Life
from proof.crash_states.lives.books import Place, Segment
from proof.crash_states.opening import CLOCK, draw_from
from proof.crash_states.oracle import Recovered, Seen, judge
from proof.crash_states.second_reader import LeftPrepared
from proof.crash_states.working import put_once_more, work_on
from support.storages.disk_operations import Operation, Sync, SyncDirectory
from support.storages.simulated_storage import SimulatedStorage

RECOVERY_CRASHED_EVERY = 50
"""One in so many distinct states has its recovery crashed at each of its operations."""

WORKED_WITH_EVERY = 12
"""One in so many recoveries is worked with, if none that left the same was."""

LOSES_POWER_EVERY = 4
"""One in so many states that a kill has left loses its power once it is recovered."""

CACHED_MAX = 20_000
"""What so many states show is kept: the same disk comes from different histories, and is judged for each.

What a recovery shows follows from what it reads, so that what is not synced of it makes no difference there.
"""


class Explorer:
    """Judges crashes of one flush policy.

    Parameters
    ----------
    policy : FlushPolicy
        Of the queues.
    tally : Tally
        Where it counts.
    """

    def __init__(self, policy: FlushPolicy, tally: Tally) -> None:
        self.policy = policy
        self.tally = tally
        self._cache: dict[tuple[bytes | str | int, ...], dict[str, Seen]] = {}
        self._worked: set[bytes] = set()
        self._killed: set[bytes] = set()

    def explore(
        self, life: Life, since: Place, rng: random.Random, *, samples: int | None, instants: int | None
    ) -> None:
        """Crash a life at its instants behind a place of it; at some of them, the last one too, where there are more.

        ``samples`` as for :func:`crashes`.
        """
        points = [
            (number, count)
            for number, segment in enumerate(life.segments)
            for count in range(segment.moments[-1].operation_count + 1)
            if (number, count) > since
        ]
        if instants is not None and len(points) > instants:
            points = [*rng.sample(points[:-1], instants - 1), points[-1]]
        for number, segment in enumerate(life.segments):
            counts = {count for life_number, count in points if life_number == number}
            returned = {moment.operation_count for moment in segment.moments}
            if not counts:
                continue
            for count, storage in enumerate(segment.storage.replay(), segment.storage.replayed_from):
                if count in counts:
                    is_alone = count - 1 in counts and count not in returned
                    last = segment.storage.log[count - 1] if is_alone else None
                    self._crash(life, segment, storage, count, rng, samples, last)
                if count == max(counts):
                    break

    def _crash(
        self,
        life: Life,
        segment: Segment,
        storage: SimulatedStorage,
        count: int,
        rng: random.Random,
        samples: int | None,
        last: Operation | None,
    ) -> None:
        before, under_way = segment.around(count)
        names = [name for name in life.history.payloads if any(side[0] == name for side in before.latest)]
        for kind, crashed in crashes(storage, rng, samples, last):
            try:
                numbers = self.check(life.history, crashed, names, before, under_way, killed=kind == "kill")
                operation = segment.storage.log[count - 1] if count else None
                self.tally.fates.add(fate_of(kind, before, under_way, operation, numbers))
            except BaseException as error:
                operation = segment.storage.log[count - 1] if count else None
                error.add_note(f"{kind} after {before.call}, operation {count} of its disk ({operation!r:.150})")
                raise

    def check(
        self,
        history: History,
        crashed: SimulatedStorage,
        names: Sequence[str],
        before: Moment,
        under_way: Moment,
        *,
        killed: bool,
    ) -> Numbers:
        """Recover one disk and apply the oracle; crash its recovery, now and then, and work with what it left.

        Returns the states that it shows.
        """
        self.tally.crashes += 1
        CLOCK.set_time_ns(before.now_ns)
        digest = crashed.digest()
        seen = self._cache.get((digest, before.now_ns, *names))
        loses_power = killed and digest[1] % LOSES_POWER_EVERY == 0 and digest not in self._killed
        if seen is not None and not loses_power:
            return judge(history, seen, before, under_way, self.policy, killed=killed)
        crashed.keeps_log = self._count(digest) and int.from_bytes(digest[2:4], "little") % RECOVERY_CRASHED_EVERY == 0
        left = LeftPrepared(crashed, names)
        draw_from("recovery")
        recovered = Recovered(crashed, self.policy, names)
        try:
            numbers = judge(history, recovered.seen, before, under_way, self.policy, killed=killed)
            left.compare(recovered.seen)
            self._remember(digest, recovered.seen)
            operation_count = len(crashed.log)
            without_power = crashed.crash_dropping_unsynced() if loses_power else None
            made = put_once_more(recovered, history)
            if digest[4] % WORKED_WITH_EVERY == 0:
                self._work_on(recovered, history, numbers, made)
        finally:
            recovered.close()  # before it is crashed: open queues answer what others ask in this process
        if without_power is not None:  # what was shown is durable, even where the killed process had not synced it
            self._killed.add(digest)
            self._again(history, recovered.seen, without_power, before, under_way)
        if crashed.keeps_log:
            rng = random.Random(digest)
            self._crash_recovery(history, recovered, operation_count, before, under_way, rng, killed=killed)
        return numbers

    def _work_on(self, recovered: Recovered, history: History, numbers: Numbers, made: dict[str, int]) -> None:
        left = recovered.storage.digest()
        if left not in self._worked:
            self._worked.add(left)
            self.tally.works += 1
            work_on(recovered, history, numbers, made)

    def _count(self, digest: bytes) -> bool:
        """Count a state; return whether the task has not seen it yet."""
        before = len(self.tally.digests)
        self.tally.digests.add(as_number(digest))
        return len(self.tally.digests) > before

    def _remember(self, digest: bytes, seen: dict[str, Seen]) -> None:
        if len(self._cache) >= CACHED_MAX:
            self._cache.clear()
            self._worked.clear()
            self._killed.clear()
        self._cache[digest, CLOCK.time_ns(), *seen] = seen
        self.tally.views.add(view_of(seen))

    def _crash_recovery(
        self,
        history: History,
        recovered: Recovered,
        operation_count: int,
        before: Moment,
        under_way: Moment,
        rng: random.Random,
        *,
        killed: bool,
    ) -> None:
        """Crash a recovery at each of its operations: the next one shows the same.

        But for one case: what a killed process had not synced may be lost still, until the recovery is over.
        """
        for count, storage in enumerate(islice(recovered.storage.replay(), operation_count + 1)):
            is_over = count == operation_count
            is_sync = count > 0 and isinstance(storage.log[-1], Sync | SyncDirectory)
            left = [] if is_sync else [(storage.crash_keeping_all(), True)]  # which a sync changes nothing of
            if is_sync or is_over or not count:  # nothing else changes what is sure
                left.append((storage.crash_dropping_unsynced(), is_over or not killed))
            left.append((storage.random_crash(rng), is_over or not killed))
            try:
                for again, shows_the_same in left:
                    self._again(history, recovered.seen, again, before, under_way, shows_the_same=shows_the_same)
            except BaseException as error:
                operation = storage.log[-1] if count else None
                error.add_note(f"the recovery crashed at its operation {count} ({operation!r:.150})")
                raise

    def _again(
        self,
        history: History,
        first: dict[str, Seen],
        crashed: SimulatedStorage,
        before: Moment,
        under_way: Moment,
        *,
        shows_the_same: bool = True,
    ) -> None:
        """Recover once more from what is left behind a recovery that has shown ``first``, or would have."""
        self.tally.recoveries_crashed += 1
        digest = crashed.digest()
        self._count(digest)
        seen = self._cache.get((digest, CLOCK.time_ns(), *first))
        if seen is None:
            draw_from("recovery of a recovery")
            second = Recovered(crashed, self.policy, list(first))
            second.close()
            seen = second.seen
            self._remember(digest, seen)
        judge(history, seen, before, under_way, self.policy, reported=True)
        for name, each in seen.items():
            assert not shows_the_same or first[name].agrees_with(each), (
                f"the next recovery of {name} shows other things"
            )
