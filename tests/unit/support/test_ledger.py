"""The ledger of the proofs with real processes accepts what may be, and finds each kind of broken promise."""

import pytest

from proof.real_processes.ledger import Ledger, ViolationError

FIRST = "s 1 3 / S 1 0 keeps / s 2 1"
"""A batch that returned, and a put that was cut off."""


def lines(text: str) -> list[list[str]]:
    """Return what a child said, written with slashes between the lines."""
    return [line.split() for line in text.split(" / ")]


def ledger_of(work: str, *, power: str = "") -> Ledger:
    """Return what is known after one child has worked on a new queue, and has lost power or not."""
    ledger = Ledger()
    ledger.read(lines(f"o 0 / v / h / go / {work}"))
    if power:
        ledger.lose_power(keeps_all=power == "keeps all")
    return ledger


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (FIRST, "o 3 / v 1:0@0 1:1@1 1:2@2 / h"),
        (FIRST, "o 4 / v 1:0@0 1:1@1 1:2@2 2:0@3 / h"),
        ("s 1 2 / S 1 0 keeps / r 1:0@0 1:1@1 / s 2 0 1:0 1:1", "o 2 / v 1:0@0 1:1@1 / h"),
        ("s 1 2 / S 1 0 keeps / r 1:0@0 1:1@1 / s 2 0 1:0 1:1", "o 2 / v / h"),
        ("s 1 2 / S 1 0 keeps / g 5", "o 2 / v 1:1@1 / h"),
        ("s 1 1 / S 1 0 keeps / r 1:0@0 / p 2 1 1:0 / S 2 -1 keeps", "o 1 / v / h 2"),
        ("s 1 1 / S 1 0 keeps / r 1:0@0 / p 2 1 1:0 / S 2 -1 keeps / d 2 commit", "o 1 / v / h 2"),
        ("s 1 1 / S 1 0 keeps / r 1:0@0 / p 2 1 1:0 / S 2 -1 keeps / d 2 commit", "o 2 / v 2:0@1 / h"),
        ("s 1 1 / S 1 0 keeps / r 1:0@0 / p 2 1 1:0 / S 2 -1 keeps / d 2 abort", "o 1 / v 1:0@0 / h"),
    ],
)
def test_what_a_call_that_was_cut_off_may_have_done_is_accepted(work: str, found: str) -> None:
    """Its whole effect, or none of it."""
    ledger_of(work).read(lines(f"{found} / go"))


@pytest.mark.parametrize(
    ("kind", "work", "found"),
    [
        ("lost", FIRST, "o 0 / v / h"),
        ("lost", FIRST, "o 3 / v 1:0@0 1:2@2 / h"),
        ("half", "s 1 3", "o 0 / v 1:0@0 1:1@1 / h"),
        ("place", "s 1 3", "o 0 / v 1:0@0 1:1@1 1:2@2 / h"),
        ("place", FIRST, "o 5 / v 1:0@0 1:1@1 1:2@2 / h"),
        ("place", FIRST, "o 3 / v 1:0@0 1:1@2 1:2@1 / h"),
        ("back", FIRST, "o 3 / v 1:0@0 1:1@1 1:2@2 3:0@3 / h"),
        ("doubled", "s 1 1 / S 1 0 keeps / G 2 keeps 1:0", "o 1 / v 1:0@0 / h"),
        ("back", "s 1 1 / S 1 0 keeps / r 1:0@0 / s 2 1 1:0", "o 2 / v 1:0@0 2:0@1 / h"),
        ("lost", "p 1 1 / S 1 -1 keeps", "o 0 / v / h"),
        ("back", "p 1 1 / S 1 -1 keeps", "o 1 / v 1:0@0 / h 1"),
        ("back", "p 1 1 / S 1 -1 keeps / d 1 abort / S 1 -1 keeps", "o 0 / v / h 1"),
        ("lost", FIRST, "w damaged / o 3 / v 1:0@0 1:1@1 1:2@2 / h"),
        ("failed", FIRST, "X OSError(5)"),
    ],
)
def test_each_kind_of_broken_promise_is_found(kind: str, work: str, found: str) -> None:
    """Lost, doubled, a half, back from the dead, at a wrong place."""
    with pytest.raises(ViolationError) as violation:
        ledger_of(work).read(lines(f"{found} / go"))
    assert violation.value.kind == kind


def test_what_was_finished_stays_finished_for_ever() -> None:
    """Also long after it was seen to be gone."""
    ledger = ledger_of("s 1 1 / S 1 0 keeps / G 2 keeps 1:0")
    ledger.read(lines("o 1 / v / h / go"))
    with pytest.raises(ViolationError, match="doubled"):
        ledger.read(lines("o 1 / v 1:0@0 / h / go"))


UNSYNCED = "s 1 1 / S 1 0 may-go / f / F / s 2 2 / S 2 1 may-go / s 3 1 / S 3 3 may-go"


@pytest.mark.parametrize("left", ["1:0@0", "1:0@0 2:0@1 2:1@2", "1:0@0 2:0@1 2:1@2 3:0@3"])
def test_a_loss_of_power_takes_an_unsynced_end_of_the_log(left: str) -> None:
    """Whole batches, the last ones first."""
    ledger_of(UNSYNCED, power="takes").read(lines(f"w unsynced-or-damaged / o 4 / v {left} / h / go"))


@pytest.mark.parametrize("left", ["", "2:0@1 2:1@2 3:0@3", "1:0@0 3:0@3", "1:0@0 2:0@1"])
def test_a_loss_of_power_takes_nothing_that_was_flushed_and_leaves_no_hole(left: str) -> None:
    """Nor half a batch."""
    with pytest.raises(ViolationError):
        ledger_of(UNSYNCED, power="takes").read(lines(f"o 4 / v {left} / h / go"))


def test_what_promised_to_survive_a_loss_of_power_has_to() -> None:
    """What returned in the moment of the cut is not counted among it: nobody knows which came first."""
    with pytest.raises(ViolationError, match="lost"):
        ledger_of("s 1 1 / S 1 0 keeps", power="keeps all").read(lines("o 0 / v / h / go"))
    late = ledger_of("s 1 1 / cut / S 1 0 keeps", power="keeps all")
    late.read(lines("o 0 / v / h / go"))
    assert late.late_lost_count == 1


@pytest.mark.parametrize("found", ["o 0 / v / h", "o 0 / v / h 1"])
def test_a_decision_made_as_the_power_went_may_be_gone_on_with_by_a_later_owner(found: str) -> None:
    """A consumer still finds the transaction in doubt; who has the write side may end it, or find nothing of it."""
    ledger = ledger_of("p 1 1 / S 1 -1 keeps / cut / d 1 abort", power="keeps all")
    ledger.read(lines("o 0 / v / h? 1 / go"))
    ledger.read(lines(f"{found} / go"))
    with pytest.raises(ViolationError, match="back"):
        ledger.read(lines("o 1 / v 1:0@0 / h 1 / go"))
