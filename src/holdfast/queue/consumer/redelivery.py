"""Redelivery of messages that were not acknowledged: handed out again, after a while, or dead letters.

The caller holds the take lock. Changes that belong together are one atomic run of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from holdfast.persistence.format.dead_letter import DeadMark
from holdfast.persistence.groups.dead_letter_notes import DeadLetterNotes
from holdfast.persistence.groups.position_entry import Change, dead_change, returned_change
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.log.follow_up import follow_up
from holdfast.persistence.log.log_reader import Record
from holdfast.queue.consumer.dead_letter_log import DeadLetterLog
from holdfast.queue.dispatch.deferred_messages import EXHAUSTED, EXPIRED, FILTERED
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.dispatch.dispatcher import Dispatcher
from holdfast.queue.dispatch.progress_store import ProgressStore
from holdfast.queue.options.failure import Failure
from holdfast.queue.options.retry_policy import RetryPolicy

_SECOND_NS = 10**9
_NS_MAX = 2**63 - 1


def expired_change(progress: GroupProgress, offset: int, now_ns: int) -> Change:
    """Return the entry that makes a message a dead letter because its time to live is over."""
    first_s = progress.returned.get(offset, (0, 0))[1]
    mark = DeadMark(EXPIRED, progress.deliveries.get(offset, 0), first_s * _SECOND_NS or now_ns, now_ns)
    return dead_change(offset, mark)


class Redelivery:
    """Decides for one consumer group.

    Parameters
    ----------
    policy : RetryPolicy
        How often and how soon a message is handed out again.
    time_ns : callable
        The wall clock.
    notes : DeadLetterNotes
        The notes with the texts of exceptions.
    log : DeadLetterLog
        Logs which messages became dead letters.

    Attributes
    ----------
    policy : RetryPolicy
        The rules that count now.
    dropped_count : int
        Messages dropped so far because their time to live was over.
    filtered_count : int
        Messages that the group's filter has left out so far.
    ended_count : int
        Both, and dead letters that no delivery has made: their time to live was over, or their last receiver died.
    """

    def __init__(
        self, policy: RetryPolicy, time_ns: Callable[[], int], notes: DeadLetterNotes, log: DeadLetterLog
    ) -> None:
        self.policy = policy
        self.log = log
        self._time_ns = time_ns
        self._notes = notes
        self._sweep_due_ns = 0
        self.dropped_count = 0
        self.filtered_count = 0
        self.ended_count = 0
        self._ended: set[int] = set()  # of those, the dead letters: they may come again

    def change(self, policy: RetryPolicy) -> None:
        """Decide by other rules from now on."""
        self.policy = policy
        self._sweep_due_ns = 0

    # -- Deliveries --------------------------------------------------------------------------------------------------

    def is_last(self, delivery_count: int) -> bool:
        """Whether a message that was handed out so often, and fails, becomes a dead letter."""
        return self.policy.is_last(delivery_count)

    def fail(
        self,
        progress_store: ProgressStore,
        deliveries: Sequence[Delivery],
        delay: float | None,
        failure: Failure,
        *,
        by_owner: bool,
    ) -> list[Delivery]:
        """Note that deliveries have failed; return those that were the last of their message.

        ``delay`` is how long the others wait, in seconds; None: after the back-off. ``by_owner``: not their holder says
        so, who has yet to hear of it.
        """
        now = self._time_ns()
        changes, last = [], []
        for delivery in deliveries:
            if self.policy.is_last(delivery.delivery_count):
                last.append(delivery)
                continue
            wait = self.policy.wait_seconds(delivery.delivery_count) if delay is None else delay
            first_failure_s = progress_store.progress.returned.get(delivery.offset, (0, 0))[1] or now // _SECOND_NS
            until_ns = min(now + round(wait * _SECOND_NS), _NS_MAX) if wait else 0
            taken_away_from = delivery.number if by_owner else 0
            changes.append(
                returned_change(
                    delivery.offset,
                    delivery.delivery_count,
                    until_ns,
                    first_failure_s,
                    taken_away_from=taken_away_from,
                )
            )
        dead = [(each.offset, each.delivery_count, each.number if by_owner else 0) for each in last]
        self._bury(progress_store, dead, failure, changes)
        return last

    def release(self, progress_store: ProgressStore, deliveries: Sequence[Delivery], *, by_owner: bool = False) -> None:
        """Note that deliveries never took place; ``by_owner`` as :meth:`fail` has it."""
        returned = progress_store.progress.returned
        progress_store.note(
            [
                returned_change(
                    each.offset,
                    each.delivery_count - 1,
                    *returned.get(each.offset, (0, 0)),
                    taken_away_from=each.number if by_owner else 0,
                )
                for each in deliveries
            ]
        )

    def orphan(self, progress_store: ProgressStore, deliveries: Sequence[Delivery]) -> None:
        """Note that the process has died that had deliveries in hand: they count, and wait for nothing.

        The last delivery of a message makes it a dead letter at the next take, as if the owner had died.
        """
        returned = progress_store.progress.returned
        progress_store.note(
            [
                returned_change(each.offset, each.delivery_count, 0, returned.get(each.offset, (0, 0))[1])
                for each in deliveries
            ]
        )

    def reject(
        self,
        progress_store: ProgressStore,
        deliveries: Sequence[Delivery],
        failure: Failure,
        *,
        is_counted: bool = True,
    ) -> None:
        """Make messages dead letters at once."""
        uncounted = 0 if is_counted else 1
        self._bury(progress_store, [(each.offset, each.delivery_count - uncounted, 0) for each in deliveries], failure)

    # -- Messages that are not handed out any more -------------------------------------------------------------------

    def end(self, progress_store: ProgressStore, ended: Sequence[tuple[Record, str]]) -> None:
        """End messages that have expired, that the group's filter leaves out, or whose last receiver died."""
        dropped = [record for record, why in ended if why == EXPIRED and not self.policy.keeps_expired]
        deliveries = progress_store.progress.deliveries
        for reason in (EXPIRED, EXHAUSTED):
            dead = [record for record, why in ended if why == reason and (why != EXPIRED or self.policy.keeps_expired)]
            self._bury(
                progress_store, [(record[0], deliveries.get(record[0], 0), 0) for record in dead], Failure(reason)
            )
            self._ended.update(record[0] for record in dead)
            self.ended_count += len(dead)
        filtered = [record for record, why in ended if why == FILTERED]
        if dropped or filtered:
            self.finish(progress_store, dropped, filtered)
            self.dropped_count += len(dropped)
            self.ended_count += len(dropped)

    def finish(self, progress_store: ProgressStore, records: Sequence[Record], left_out: Sequence[Record]) -> int:
        """Finish messages, and beside them those that the group's filter leaves out; return the ticket to commit."""
        ticket = progress_store.finish([*records, *left_out])
        self.filtered_count += len(left_out)
        self.ended_count += len(left_out)
        return ticket

    def _bury(
        self,
        progress_store: ProgressStore,
        messages: Iterable[tuple[int, int, int]],
        failure: Failure,
        more: Sequence[Change] = (),
    ) -> None:
        now, progress, changes = self._time_ns(), progress_store.progress, list(more)
        notes = {"detail": failure.detail, "exception": failure.exception, "traceback": failure.trace}
        dead = list(messages)
        for offset, delivery_count, taken_away_from in dead:
            first_s = progress.returned.get(offset, (0, 0))[1]
            mark = DeadMark(failure.reason, delivery_count, first_s * _SECOND_NS or now, now)
            if any(notes.values()):
                self._notes.write(offset, notes)
            else:
                self._notes.remove(offset)  # one of an earlier death would tell a wrong story
            changes.append(dead_change(offset, mark, taken_away_from))
        if changes:
            progress_store.note(changes)
        for offset, delivery_count, _ in dead:
            self.log.note(offset, delivery_count, failure)

    # -- Dead letters ------------------------------------------------------------------------------------------------

    def retry(self, progress_store: ProgressStore, offsets: Collection[int], dispatcher: Dispatcher) -> int:
        """Hand dead letters out again, as if they never had been; return how many there were."""
        dead = [offset for offset in sorted(set(offsets)) if offset in progress_store.progress.dead]
        if dead:
            now = self._time_ns()  # records that they are wanted even if they have expired
            progress_store.note([returned_change(offset, 0, now, 0) for offset in dead])
            self.ended_count -= len(self._ended.intersection(dead))
            self._ended.difference_update(dead)
            if not follow_up(
                "dead letters are handed out again once the log is read anew", self._revive, dead, dispatcher
            ):
                dispatcher.must_read_anew = True
        return len(dead)

    def _revive(self, dead: Sequence[int], dispatcher: Dispatcher) -> None:
        for offset in dead:
            dispatcher.revive(offset)
            self._notes.remove(offset)

    def discard(self, progress_store: ProgressStore, offsets: Collection[int]) -> int:
        """Finish dead letters; return how many there were."""
        dead = [offset for offset in sorted(set(offsets)) if offset in progress_store.progress.dead]
        progress_store.finish_offsets(dead)
        self._ended.difference_update(dead)
        for offset in dead:
            self._notes.remove(offset)
        return len(dead)

    def sweep(self, progress_store: ProgressStore, progress: GroupProgress) -> None:
        """Finish dead letters that were kept long enough; checks now and then only."""
        now = self._time_ns()
        if not progress.dead or now < self._sweep_due_ns:
            return
        kept_ns = round(self.policy.dead_letter_seconds * _SECOND_NS)
        self._sweep_due_ns = now + min(kept_ns, 60 * _SECOND_NS)
        old = [offset for offset, mark in progress.dead.items() if mark.last_failure_ns + kept_ns <= now]
        if old:
            self.discard(progress_store, old)
