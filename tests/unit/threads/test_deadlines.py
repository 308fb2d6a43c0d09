"""Deadlines of transactions: called when they are due, and again where somebody is busy."""

import threading

import pytest

from holdfast.queue.threads.deadlines import Deadlines
from holdfast.queue.transactions.transaction_state import State
from support.builders.clocks import FakeClock
from support.builders.jobs import Jobs, ready


def test_who_is_busy_is_called_again_a_little_later() -> None:
    """Until it has seen to it; then never more."""
    clock = FakeClock()
    deadlines = Deadlines(clock)
    answers = [False, False, True]
    deadlines.add(clock.monotonic() + 10, lambda: answers.pop(0))
    deadlines.expire_due()
    assert len(answers) == 3
    clock.advance(10)
    for left in (2, 1, 0):
        deadlines.expire_due()
        assert len(answers) == left
        deadlines.expire_due()
        assert len(answers) == left, "not at once"
        seconds = deadlines.seconds_left()
        assert (seconds is None) == (left == 0)
        clock.advance(seconds or 0)
    assert deadlines.seconds_left() is None


def test_a_transaction_whose_verb_is_under_way_is_left_to_it() -> None:
    """Time does not take it out of a thread's hands; the next look does, and what is decided stays so."""
    jobs = Jobs()
    with jobs.open() as queue:
        queue.put(b"one")
        tx = queue.begin(timeout=5)
        tx.ack(tx.receive(timeout=0))
        found: list[bool] = []
        with tx._lock:
            jobs.clock.advance(10)
            looking = threading.Thread(target=lambda: found.append(tx.expire()))
            looking.start()
            looking.join()
        assert found == [False]
        assert tx.state is State.OPEN
        assert tx.expire()
        assert tx.state is State.ABORTED
        assert ready(queue) == [b"one"]
        done = queue.begin(timeout=5)
        done.put(b"two")
        done.commit()
        jobs.clock.advance(10)
        assert done.expire()
        assert done.state is State.COMMITTED


def test_what_is_interrupted_is_called_again() -> None:
    """A transaction whose time is over, and that no thread ends, would keep its messages for ever."""
    clock = FakeClock()
    deadlines = Deadlines(clock)
    answers: list[BaseException | bool] = [KeyboardInterrupt(), True]

    def expire() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    deadlines.add(clock.monotonic(), expire)
    with pytest.raises(KeyboardInterrupt):
        deadlines.expire_due()
    clock.advance(deadlines.seconds_left() or 0)
    deadlines.expire_due()
    assert answers == []
    assert deadlines.seconds_left() is None
