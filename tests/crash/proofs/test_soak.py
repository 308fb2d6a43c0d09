"""The soak (``python -m proof.soak``) for seconds: every message counts once, and all that was opened is closed.

Memory needs minutes to be judged; that the judge sees a leak is shown here with figures that are made up.
"""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from proof.soak.flatness import Bound, broken, course_of
from proof.soak.ledger import AccountError, Lane, Ledger, Table, name_of, payload_of
from proof.soak.samples import can_look
from proof.soak.soaking import Plan, soak
from support.processes.threads import wait_until

SECONDS = list(range(60))
BOUND = Bound(growth_max=4.0, growth_share_max=0.05, ceiling=120.0)


def noisy(course: Callable[[int], float]) -> list[float]:
    """Return figures that follow a course, give or take two."""
    choice = random.Random(7)
    return [course(second) + choice.uniform(-2, 2) for second in SECONDS]


@pytest.mark.skipif(not can_look(), reason="descriptors and threads are read from /proc")
def test_every_message_of_a_mixed_load_counts_once_and_nothing_stays_open(tmp_path: Path) -> None:
    """Two processes, two groups, transactions, requests, rolling and reclaim, for seconds."""
    PersistentQueue(
        tmp_path / "before", mode="exclusive"
    ).close()  # what the first queue of a process opens stays for the others
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "holdfast-reclaim"])
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    result = soak(Plan(seconds=2, rate=1000, look_seconds=0.2), tmp_path)
    assert not result.wrong, "\n".join(result.wrong[:9])
    assert result.put_count > 100
    assert len(result.samples) == 10
    wait_until(lambda: threading.active_count() <= threads)
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize(
    "course",
    [lambda second: 100 + second * 0.15, lambda second: 100 + 6 * (second >= 36), lambda second: 100 + second % 20 * 2],
    ids=["leak", "step", "above the ceiling"],
)
def test_a_figure_that_grows_is_seen(course: Callable[[int], float]) -> None:
    """Slowly, at once, or only for a while."""
    assert broken(BOUND, course_of(SECONDS, noisy(course)))


@pytest.mark.parametrize(
    "course",
    [lambda second: 100, lambda second: 100 - second * 0.1, lambda second: 70 + min(second, 10) * 3],
    ids=["level", "falling", "warming up"],
)
def test_a_figure_that_stays_level_is_not_blamed(course: Callable[[int], float]) -> None:
    """What happens in the first fifth does not count."""
    assert not broken(BOUND, course_of(SECONDS, noisy(course)))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Books for ten messages of each lane."""
    return Ledger(tmp_path / "ledger", 10)


def test_the_ledger_finds_a_message_that_is_lost_and_one_that_nobody_should_have(ledger: Ledger) -> None:
    """Each is named."""
    for first in (0, 2):
        ledger.begin(Lane.RESULT, first, 2)
    ledger.acknowledge(Lane.RESULT, 0, 2)
    ledger.take_back(Lane.RESULT, 2, 1)
    ledger.finish(Table.RESULTS, [(Lane.RESULT, 0), (Lane.RESULT, 2)])
    assert ledger.judge() == [
        "RESULTS: message 1 of RESULT was acknowledged, and is lost",
        "RESULTS: message 2 of RESULT was aborted, and is finished",
        "RESULTS: message 3 of RESULT was begun and not answered, and is lost",
    ]
    ledger.close()


def test_the_ledger_finds_a_message_that_comes_again(ledger: Ledger) -> None:
    """What a group has finished it is not given again; another group is."""
    ledger.finish(Table.FAST, [(Lane.SINGLE, 4)])
    ledger.check_is_open(Table.SLOW, (Lane.SINGLE, 4))
    with pytest.raises(AccountError, match="message 4 of SINGLE came again"):
        ledger.finish(Table.FAST, [(Lane.SINGLE, 4)])
    ledger.close()


def test_a_message_with_a_wrong_byte_is_not_counted() -> None:
    """Its checksum covers all of it."""
    payload = bytearray(payload_of(Lane.BATCH, 3))
    assert name_of(bytes(payload)) == (Lane.BATCH, 3)
    payload[-1] ^= 1
    with pytest.raises(AccountError, match="other bytes"):
        name_of(bytes(payload))
