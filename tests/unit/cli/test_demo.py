"""What ``holdfast demo`` makes of the notes of its processes; tests/crash/killed/test_demo_command.py runs it."""

import random
import signal

import pytest

from holdfast.cli.demo.evidence import Evidence
from holdfast.cli.demo.orders import digest, order
from holdfast.cli.demo.show import plan_for
from holdfast.cli.demo.stopping import ENDING, StoppedError, signals_noted
from holdfast.cli.demo.victim import plan_kills

DIGESTS = [digest(order(number)) for number in range(3)]


def judged(*lines: str) -> Evidence:
    """Return what is known after the lines of a journal."""
    evidence = Evidence(DIGESTS)
    for line in lines:
        evidence.take(line.split())
    return evidence


def whole(*after: str) -> Evidence:
    """Return what is known if every order was put, received and acknowledged, and more was noted ``after``."""
    lines = [f"{verb} {number}{extra}" for number, each in enumerate(DIGESTS) for verb, extra in
             [("put", ""), ("received", f" {each}"), ("acked", "")]]  # fmt: skip
    return judged("resumed 0", *lines, *after)


def test_orders_that_came_out_as_they_went_in_break_nothing() -> None:
    """And are counted."""
    evidence = whole("opened 0.25 0", "owner 0", "opened 0.5 0", "owner 7")
    assert evidence.violations == []
    assert (len(evidence.put), evidence.redelivered_count, evidence.torn_tail_count) == (3, 0, 1)
    evidence.kill_counts, evidence.owner_kill_count = {"producer": 2, "consumer 1": 1}, 1
    assert evidence.rows()[-2:] == [
        ("owner killed", "1", "2 owners, one after another"),
        ("killed", "2 / 1", "producer / consumer 1"),
    ]
    assert ("recovery, median / max", "375.0 / 500.0 ms", "2 openings after a kill; 1 half-written puts dropped") in (
        evidence.rows()
    )


def test_an_order_that_never_came_out_is_lost() -> None:
    """Whether its put was answered or not."""
    assert judged("put 0", f"received 1 {DIGESTS[1]}").violations == ["2 lost (offsets 0, 2)"]


def test_an_offset_that_no_order_has_is_altered() -> None:
    """As if the queue had made a message up."""
    assert whole(f"received 3 {DIGESTS[0]}").violations == ["1 altered (offsets 3)"]


def test_an_order_in_the_place_of_another_one_is_altered() -> None:
    """Each offset has its own bytes."""
    assert whole().altered == set()
    assert judged(f"received 0 {DIGESTS[1]}").altered == {0}


def test_an_order_that_came_again_unacknowledged_is_counted_and_breaks_nothing() -> None:
    """That is what at-least-once means."""
    evidence = judged(f"received 0 {DIGESTS[0]}", f"received 0 {DIGESTS[0]}")
    assert (evidence.redelivered_count, evidence.received_after_ack) == (1, set())


def test_a_seed_decides_when_to_kill() -> None:
    """So a failure can be looked at again; without a seed each demo has its own."""
    plan = plan_for(10, 7)
    assert plan == plan_for(10, 7)
    kills = [plan_kills(random.Random(plan.seed), plan.kill_count, plan.order_count, 0.1) for _ in range(2)]
    assert kills[0] == kills[1]
    assert len(kills[0]) == plan.kill_count
    assert 0 <= plan_for(10, None).seed < 10**6


def test_an_order_is_always_the_same_and_no_two_are() -> None:
    """The judge makes them again to compare."""
    assert order(5) == order(5)
    assert len({digest(order(number)) for number in range(500)}) == 500


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_obeyed_at_the_next_check_and_not_before(number: signal.Signals) -> None:
    """In between nothing is interrupted; behind the block the earlier handler is back."""
    before = signal.getsignal(number)
    with signals_noted() as check:
        check()
        signal.raise_signal(number)
        with pytest.raises(StoppedError) as stopped:
            check()
        assert stopped.value.number == number
    assert signal.getsignal(number) is before
