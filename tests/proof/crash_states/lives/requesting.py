"""What clients put, whose process lives on where the owner's dies: requests, and requests that come again."""

from __future__ import annotations

from contextlib import suppress

from holdfast import PersistentQueue, UsageError
from holdfast.persistence.format.commit_record import CommitRecord, count_of
from proof.crash_states.lives.books import SMALL_BYTES, A
from proof.crash_states.lives.configuring import Configuring
from proof.crash_states.opening import DEAD, LIVING
from support.builders.handles import handle_of
from support.builders.sessions import put, requested

THREAD = b"a thread"
OF_THE_DEAD = b"departed"


def ask(queue: PersistentQueue, request: CommitRecord, payload: bytes) -> int:
    """Have the owner of a queue put something for a client; return its offset."""
    return put(handle_of(queue).require_write_side(), request, payload).start


def check_pending(queue: PersistentQueue) -> None:
    """Check that at most one request of each thread waits for its answer, and of a dead session none.

    What has parts in other queues waits for these, too.
    """
    side = handle_of(queue).require_write_side()
    waiting = [each for each in side.pending_commit_records if each.session and not each.participants]
    assert len(waiting) <= 1, f"{waiting} wait for answers to one thread"
    assert all(each.session == LIVING for each in waiting), f"{waiting} wait for the dead"


class Requesting(Configuring):
    """Puts for clients."""

    def request(self) -> None:
        """Put for a client that lives on; that it sends the next request says that it has the answer before."""
        self._request(THREAD, LIVING)
        check_pending(self.queue)

    def request_of_the_dead(self) -> None:
        """Put for a client that dies with the owner at the latest: it never asks again."""
        self._request(OF_THE_DEAD, DEAD)
        del self.history.requests[A][OF_THE_DEAD]
        handle_of(self.queue).require_write_side().end_session(DEAD)
        check_pending(self.queue)

    def _request(self, thread: bytes, session: int) -> None:
        (payload,) = self._payloads(A, [SMALL_BYTES])
        before = self._last_data_file(A)
        request = requested(len(self.history.payloads[A]) + 1, thread=thread, session=session)
        offset = ask(self.queue, request, payload)
        self.history.requests[A][thread] = (request, offset)
        self._put(offset, [payload], before)
        self._return("request")

    def request_again(self) -> None:
        """Send the last request again: whoever owns the queue now answers as the owner did that put it."""
        request, offset = self.history.requests[A][THREAD]
        given = ask(self.queue, request, b"sent again")
        assert given == offset, f"it was put as {offset}, and sent again as {given}"
        check_pending(self.queue)
        self._return("request_again")

    def has_answer(self) -> None:
        """Say that the answer to the last request has arrived: it is never sent again."""
        request, _ = self.history.requests[A].pop(THREAD)
        side = handle_of(self.queue).require_write_side()
        assert side.answer_to(request.nonce) is not None, "no other request of the thread has come since"
        side.acknowledge_answers(THREAD, count_of(request.nonce))
        assert side.answer_to(request.nonce) is None
        with suppress(UsageError):
            ask(self.queue, request, b"an old copy")
            raise AssertionError("an old copy was put")
        self._return("has_answer")
