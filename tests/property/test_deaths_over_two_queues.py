"""A short run of ``python -m proof.owner_deaths.two_queues``, and contents that its books must not accept."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from proof.owner_deaths.books import BrokenPromiseError
from proof.owner_deaths.two_queues.books import Books, Left
from proof.owner_deaths.two_queues.history import judged_history
from proof.owner_deaths.two_queues.mortality import DeathError, Mortality
from support.storages.simulated_storage import SimulatedStorage

SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20240521"))
A, B, C = b"a", b"b", b"c"


@pytest.mark.parametrize("number", range(6))
def test_processes_of_two_queues_may_die_at_any_moment(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """What a transaction or a joint commit does in both is there as a whole, or not at all."""
    caplog.set_level(logging.CRITICAL, "holdfast")  # recoveries have much to say here
    tally, broken = judged_history(SEED + number, 3, stride=23)
    assert not broken
    assert tally.deaths_of_owners + tally.deaths_of_clients > 3


def test_a_process_that_has_died_changes_nothing_any_more() -> None:
    """Each further call of it raises; another process works on."""
    storage = SimulatedStorage()
    mortality = Mortality(storage, {2})
    mortality.is_on = True
    dead, living = object(), object()
    with mortality.working(dead):
        file = storage.open(Path("/file"), create=True)
        file.write_at((b"1",), 0)
        for _ in range(2):
            with pytest.raises(DeathError):
                file.write_at((b"2",), 0)
        with pytest.raises(DeathError):
            file.read_at(1, 0)
    with mortality.working(living):
        assert file.read_at(1, 0) == b"1"


def moved(fates: set[bool], *, is_durable: bool = True) -> Books:
    """Return the books of two queues between which a transaction has moved a message, or may have."""
    books = Books()
    books.begin("put", {"a": [A, B]}).happened({"a": 0})
    step = books.begin("move", {"b": [C]}, {"a": [A]})
    step.fates, step.is_durable = fates, is_durable
    return books


BEFORE: Left = {"a": {A: 0, B: 1}, "b": {}}
AFTER: Left = {"a": {B: 1}, "b": {C: 0}}
HALF: Left = {"a": {A: 0, B: 1}, "b": {C: 0}}
LOST: Left = {"a": {B: 1}, "b": {}}


@pytest.mark.parametrize("left", [BEFORE, AFTER], ids=["before", "after"])
def test_a_step_of_unknown_fate_has_happened_or_not(left: Left) -> None:
    """As a whole."""
    moved({False, True}).judge(left, "killed")


def test_what_was_not_synced_may_be_lost_with_the_power() -> None:
    """And with nothing else."""
    books = moved({True}, is_durable=False)
    books.judge(BEFORE, "power lost", lost_power=True)
    with pytest.raises(BrokenPromiseError, match="is left"):
        books.judge(BEFORE, "killed")


BROKEN: dict[str, tuple[Callable[[], Books], Left]] = {
    "put, and not finished": (lambda: moved({False, True}), HALF),
    "finished, and not put": (lambda: moved({False, True}), LOST),
    "committed, and not there": (lambda: moved({True}), BEFORE),
    "aborted, and there": (lambda: moved({False}), AFTER),
    "never put": (lambda: moved({True}), {"a": {B: 1}, "b": {C: 0, b"d": 1}}),
    "another offset than was told": (lambda: moved({True}), {"a": {B: 0}, "b": {C: 0}}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_books_do_not_accept(name: str) -> None:
    """Each broken promise is told with all that was done."""
    books, left = BROKEN[name]
    with pytest.raises(BrokenPromiseError, match="killed: "):
        books().judge(left, "killed")
