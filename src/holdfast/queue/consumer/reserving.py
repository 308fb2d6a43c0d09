"""Taking many messages at once and holding them durably, in one step: what a reservation is made of.

No delivery is made of any of them, and most are not even read: see ``run_reader.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from holdfast.errors import ShutDown
from holdfast.persistence.format.commit_record import Run
from holdfast.persistence.groups.vote import Vote
from holdfast.queue.consumer.pausing import Pausing
from holdfast.queue.consumer.settling import Settling
from holdfast.queue.dispatch.delivery import Holder
from holdfast.queue.dispatch.taken_runs import TakenRuns

MakeVote = Callable[[tuple[Run, ...]], Vote]
"""Makes the vote that holds these messages."""


class Reserving(Settling):
    """The part of :class:`ReadSide` that reservations see."""

    pausing: Pausing

    @abstractmethod
    def _is_drained(self, holder: Holder | None = None) -> bool:
        """Whether whoever finds nothing ends: the queue was shut down, and nothing is worth waiting for."""

    @abstractmethod
    def _ending(self) -> ShutDown:
        """Return the error that says what is left."""

    def reserve(self, taken: TakenRuns, make_vote: MakeVote) -> Vote | None:
        """Hold what comes next, restarts included, until :meth:`resolve`; None where nothing can be taken now.

        Notes
        -----
        Durability: power loss, whatever the flush policy. Cost: one sync; what is plain is not read but for its
        frame headers.
        """
        self.give_back_due()
        with self._take_lock:
            if self._refusal is not None:
                raise self._refusal()
            try:
                self._start()
                if not self.pausing.is_paused:
                    self._backlog.take_runs(taken)
                if not taken.count:
                    if self._is_drained():
                        raise self._ending()
                    return None
                vote = make_vote(taken.runs())
                ticket = self._require_books().vote(vote)
                if taken.has_order_keys:  # whose turns were passed on as if these were finished
                    self._backlog.must_read_anew = True
            except BaseException:
                self._backlog.must_read_anew = True
                raise
        self._require_books().sync(ticket)
        return vote
