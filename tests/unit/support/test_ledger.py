"""The ledger of the proofs with real processes accepts what may be, and finds each kind of broken promise."""

import pytest

from proof.real_processes.ledger import Ledger, excuses
from proof.real_processes.steps import ViolationError

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
        ("s 1 2 / S 1 0 keeps / r 0 1:0@0 1:1@1 / s 2 0 1:0 1:1", "o 2 / v 1:0@0 1:1@1 / h"),
        ("s 1 2 / S 1 0 keeps / r 0 1:0@0 1:1@1 / s 2 0 1:0 1:1", "o 2 / v / h"),
        ("s 1 2 / S 1 0 keeps / g 0 5", "o 2 / v 1:1@1 / h"),
        ("s 1 1 / S 1 0 keeps / r 0 1:0@0 / p 2 1 1:0 / S 2 -1 keeps", "o 1 / v / h 2"),
        ("s 1 1 / S 1 0 keeps / r 0 1:0@0 / p 2 1 1:0 / S 2 -1 keeps / d 2 commit", "o 1 / v / h 2"),
        ("s 1 1 / S 1 0 keeps / r 0 1:0@0 / p 2 1 1:0 / S 2 -1 keeps / d 2 commit", "o 2 / v 2:0@1 / h"),
        ("s 1 1 / S 1 0 keeps / r 0 1:0@0 / p 2 1 1:0 / S 2 -1 keeps / d 2 abort", "o 1 / v 1:0@0 / h"),
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
        ("doubled", "s 1 1 / S 1 0 keeps / G 0 2 keeps 1:0", "o 1 / v 1:0@0 / h"),
        ("back", "s 1 1 / S 1 0 keeps / r 0 1:0@0 / s 2 1 1:0", "o 2 / v 1:0@0 2:0@1 / h"),
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
    ledger = ledger_of("s 1 1 / S 1 0 keeps / G 0 2 keeps 1:0")
    ledger.read(lines("o 1 / v / h / go"))
    with pytest.raises(ViolationError, match="doubled"):
        ledger.read(lines("o 1 / v 1:0@0 / h / go"))


UNSYNCED = "s 1 1 / S 1 0 may-go / f 0 / F 0 / s 2 2 / S 2 1 may-go / s 3 1 / S 3 3 may-go"


@pytest.mark.parametrize("left", ["1:0@0", "1:0@0 2:0@1 2:1@2", "1:0@0 2:0@1 2:1@2 3:0@3"])
def test_a_loss_of_power_takes_an_unsynced_end_of_the_log(left: str) -> None:
    """Whole batches, the last ones first."""
    ledger_of(UNSYNCED, power="takes").read(lines(f"w unsynced-or-damaged / o 4 / v {left} / h / go"))


def test_what_is_lacking_may_be_reported_again_after_the_next_loss_of_power() -> None:
    """That it was reported is noted, and nobody waits until that is on the disk; once it is, that is the end of it."""
    ledger = ledger_of(UNSYNCED, power="takes")
    lacking = lines("w unsynced-or-damaged / o 4 / v 1:0@0 / h / go")
    for _ in range(2):
        ledger.read(lacking)
        ledger.lose_power(keeps_all=True)
    ledger.read(lines("o 4 / v 1:0@0 / h / go"))
    ledger.lose_power(keeps_all=True)
    with pytest.raises(ViolationError, match="lost"):
        ledger.read(lacking)


def test_what_is_lacking_is_reported_by_the_first_opening_that_ends() -> None:
    """The power may go during the opening before it: that one has looked at nothing. After a look nothing may lack."""
    ledger = ledger_of(UNSYNCED, power="takes")
    lacking = lines("w unsynced-or-damaged / o 4 / v 1:0@0 / h / go")
    ledger.read(lines("cut / e StorageError"))
    ledger.lose_power(keeps_all=True)
    ledger.read(lacking)
    with pytest.raises(ViolationError, match="lost"):
        ledger.read(lacking)


def test_an_owner_under_cut_power_may_give_the_place_of_what_was_lost_again() -> None:
    """What it said of the log does not count. A put of one life is still not missing in front of a later one of it."""
    ledger = ledger_of(UNSYNCED, power="takes")
    ledger.read(lines("cut / s 4 1 / S 4 1 keeps / s 5 1"))
    ledger.lose_power(keeps_all=True)
    ledger.read(lines("o 2 / v 1:0@0 4:0@1 / h / go"))
    ledger = ledger_of(UNSYNCED, power="takes")
    ledger.read(lines("cut / s 4 1 / S 4 1 keeps / s 5 1"))
    ledger.lose_power(keeps_all=True)
    with pytest.raises(ViolationError, match="lost"):
        ledger.read(lines("o 5 / v 1:0@0 3:0@3 4:0@4 / h / go"))


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
def test_a_decision_made_as_the_power_went_may_be_there_or_not(found: str) -> None:
    """The next owner finds the transaction in doubt, or nothing of it; but not that it was committed."""
    ledger = ledger_of("p 1 1 / S 1 -1 keeps / cut / d 1 abort", power="keeps all")
    ledger.read(lines(f"{found} / go"))
    with pytest.raises(ViolationError, match="back"):
        ledger.read(lines("o 1 / v 1:0@0 / h 1 / go"))


FIVE = "s 1 5 / S 1 0 keeps"
ALL_FIVE = {"1:0": 0, "1:1": 1, "1:2": 2, "1:3": 3, "1:4": 4}


def found(*names: str, end: int = 5) -> list[list[str]]:
    """Return what a child says that finds these of the five."""
    return lines(f"o {end} / v {' '.join(f'{name}@{ALL_FIVE[name]}' for name in names)} / h / go")


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_get_in_flight_may_have_taken_the_head_up_to_as_many_as_it_asked_for(taken: int) -> None:
    """And is counted as the excuse that it is."""
    ledger = ledger_of(f"{FIVE} / g 0 2")
    ledger.read(found(*list(ALL_FIVE)[taken:]))
    excused = excuses([ledger])
    assert excused["judgements"] == 2
    assert excused["with a get in flight"] == 1
    assert (excused["of them that explained messages"], excused["messages so explained"]) == (int(taken > 0), taken)


@pytest.mark.parametrize(
    ("work", "left"),
    [
        (f"{FIVE} / g 0 2", ["1:0", "1:2", "1:3", "1:4"]),  # behind the head
        (f"{FIVE} / g 0 2", ["1:0", "1:1", "1:2", "1:4"]),  # far behind it
        (f"{FIVE} / g 0 2", ["1:2", "1:3"]),  # the head too
        (f"{FIVE} / g 0 2", ["1:3", "1:4"]),  # more than it asked for
        (f"{FIVE} / g 0 2 / E 0", ["1:1", "1:2", "1:3", "1:4"]),  # it has returned
        (f"{FIVE} / q 0 2", ["1:1", "1:2", "1:3", "1:4"]),  # a receive finishes nothing
        (f"{FIVE} / r 0 1:0@0 1:1@1 / g 1 2", ["1:2", "1:3", "1:4"]),  # another thread has them in hand
        (f"{FIVE} / r 0 1:3@3 / b 0 counted 1:3 / B 0 / g 0 1", ["1:1", "1:2", "1:3", "1:4"]),  # 1:3 comes before 1:0
        (f"{FIVE} / g 0 1 / G 0 2 keeps 1:0 / g 0 1", ["1:1", "1:2", "1:4"]),  # what returned is no excuse
    ],
)
def test_a_get_in_flight_excuses_no_loss_that_is_not_at_the_head(work: str, left: list[str]) -> None:
    """A message was acknowledged, is not there, and could not have been what came next."""
    with pytest.raises(ViolationError) as violation:
        ledger_of(work).read(found(*left))
    assert violation.value.kind == "lost"


@pytest.mark.parametrize(
    ("work", "left"),
    [
        (f"{FIVE} / r 0 1:3@3 / b 0 counted 1:3 / B 0 / g 0 1", ["1:0", "1:1", "1:2", "1:4"]),  # it comes first
        (f"{FIVE} / r 0 1:3@3 / b 0 as-it-was 1:3 / B 0 / g 0 1", ["1:0", "1:1", "1:2", "1:4"]),
        (f"{FIVE} / r 0 1:0@0 / g 1 1", ["1:0", "1:2", "1:3", "1:4"]),  # the head was in hand
        (f"{FIVE} / q 0 1 / g 1 1", ["1:0", "1:2", "1:3", "1:4"]),  # and so it may have been here
        (f"{FIVE} / g 0 1 / g 1 2", ["1:3", "1:4"]),  # two of them
        (f"{FIVE} / r 0 1:0@0 / g 1 1 / b 0 counted 1:0 / B 0", ["1:0", "1:2", "1:3", "1:4"]),  # given back meanwhile
    ],
)
def test_what_comes_next_is_not_always_what_was_put_first(work: str, left: list[str]) -> None:
    """What was handed out before comes first, and nobody is given what somebody else has in hand."""
    ledger_of(work).read(found(*left))


def test_what_was_handed_out_before_an_opening_comes_first_too() -> None:
    """The child that opens the queue says so."""
    ledger = ledger_of(FIVE)
    ledger.read(lines("o 5 / c 1:4 / v 1:4@4 1:0@0 1:1@1 1:2@2 1:3@3 / h / go / g 0 1"))
    ledger.read(found("1:0", "1:1", "1:2", "1:3"))
    ledger.read(lines("o 5 / c 1:3 / v 1:3@3 1:0@0 1:1@1 1:2@2 / h / go / g 0 1"))
    with pytest.raises(ViolationError, match="lost"):
        ledger.read(found("1:1", "1:2", "1:3"))


def test_beside_a_get_in_flight_other_calls_that_were_cut_off_are_judged_as_ever() -> None:
    """A batch whose second half is missing was not put."""
    ledger = ledger_of(f"{FIVE} / s 2 2 / g 0 1")
    with pytest.raises(ViolationError, match="half"):
        ledger.read(lines("o 6 / v 1:1@1 1:2@2 1:3@3 1:4@4 2:0@5 / h / go"))


CROWD = "o 0 / v / h / go / s 1 2 / s 2 1 / s 3 2 / S 3 3 keeps / S 1 0 keeps"
"""Three threads put; the one whose messages stand in the middle did not return."""


@pytest.mark.parametrize("there", ["o 5 / v 1:0@0 1:1@1 2:0@2 3:0@3 3:1@4 / h"])
def test_calls_of_many_threads_return_in_any_order(there: str) -> None:
    """What lies between those that returned was put by one that did not."""
    ledger = Ledger(in_order=False)
    ledger.read(lines(CROWD))
    ledger.read(lines(f"{there} / go"))


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("lost", "o 5 / v 1:0@0 1:1@1 2:0@2 / h"),
        ("place", "o 5 / v 1:0@0 1:1@1 3:0@3 3:1@4 / h"),
        ("place", "o 6 / v 1:0@0 1:1@1 2:0@2 3:0@3 3:1@4 / h"),
        ("place", "o 5 / v 1:0@0 1:1@1 2:0@3 3:0@3 3:1@4 / h"),
    ],
)
def test_the_log_of_many_threads_has_no_gap_and_no_overlap(kind: str, there: str) -> None:
    """Whoever did not return."""
    ledger = Ledger(in_order=False)
    ledger.read(lines(CROWD))
    with pytest.raises(ViolationError) as violation:
        ledger.read(lines(f"{there} / go"))
    assert violation.value.kind == kind


KILLED = "s 1 2 / S 1 0 keeps / s 2 3 / s 3 1"
"""A producer that was killed in a put of three messages, and another one of one, while the queue stays open."""


def successors_of(*producers: str) -> Ledger:
    """Return what is known once other producers, who did not look at all there is, have worked behind a killed one."""
    ledger = ledger_of(KILLED)
    for said in producers:
        ledger.read(lines(said))
    return ledger


@pytest.mark.parametrize(
    ("said", "there"),
    [
        ("o 2 / go / s 4 1 / S 4 5 keeps", "o 6 / v 1:0@0 1:1@1 2:0@2 2:1@3 2:2@4 4:0@5 / h"),
        ("o 5 / go / s 4 1 / S 4 5 keeps", "o 6 / v 1:0@0 1:1@1 2:0@2 2:1@3 2:2@4 4:0@5 / h"),
        ("o 2 / go / s 4 1 / S 4 2 keeps", "o 6 / v 1:0@0 1:1@1 4:0@2 2:0@3 2:1@4 2:2@5 / h"),
        ("o 2 / go / s 4 1 / S 4 2 keeps", "o 3 / v 1:0@0 1:1@1 4:0@2 / h"),
        (
            "o 2 / go / s 4 1 / S 4 5 keeps / s 5 1 / S 5 7 keeps",
            "o 8 / v 1:0@0 1:1@1 2:0@2 2:1@3 2:2@4 4:0@5 3:0@6 5:0@7 / h",
        ),
    ],
)
def test_an_owner_may_do_what_a_killed_producer_has_sent_before_or_behind_what_others_put(
    said: str, there: str
) -> None:
    """The offsets of others have a gap as large as that, and a queue that is looked at has it in that place."""
    successors_of(said).read(lines(f"{there} / go"))


@pytest.mark.parametrize(
    "said",
    [
        ["o 2 / go / s 4 1 / S 4 4 keeps"],
        ["o 2 / go / s 4 1 / S 4 1 keeps"],
        ["o 2 / go / s 4 1 / S 4 5 keeps / s 5 1 / S 5 9 keeps"],
        ["o 2 / go / s 4 1 / S 4 5 keeps", "o 9 / go"],
        ["o 5 / go", "o 8 / go"],
        ["o 5 / go", "o 2 / go"],
    ],
)
def test_a_gap_that_no_put_of_unknown_fate_explains_is_found(said: list[str]) -> None:
    """One of another size, a place that was given, and a second gap for the same put."""
    with pytest.raises(ViolationError, match="place"):
        successors_of(*said)


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("lost", "o 6 / v 1:0@0 1:1@1 2:0@2 2:1@3 2:2@4 / h"),
        ("half", "o 6 / v 1:0@0 1:1@1 2:0@2 2:1@3 4:0@5 / h"),
        ("place", "o 6 / v 1:0@0 1:1@1 4:0@5 / h"),
    ],
)
def test_a_gap_that_is_possible_excuses_no_loss(kind: str, there: str) -> None:
    """What was told is there, and what has filled the gap is there as a whole."""
    ledger = successors_of("o 2 / go / s 4 1 / S 4 5 keeps")
    with pytest.raises(ViolationError) as violation:
        ledger.read(lines(f"{there} / go"))
    assert violation.value.kind == kind


def test_two_calls_that_were_told_one_offset_are_found() -> None:
    """Also if they returned in another order than that of the log."""
    ledger = Ledger(in_order=False)
    ledger.read(lines("o 0 / v / h / go / s 1 2 / s 2 2 / S 2 1 keeps / S 1 0 keeps / G 0 3 keeps 1:0 1:1 2:0 2:1"))
    with pytest.raises(ViolationError, match="place"):
        ledger.read(lines("o 3 / v / h / go"))


PASSED = "o 0 / v / h / go / s 1 2 / s 2 3 / s 3 2 / S 3 5 keeps / S 1 0 keeps"
"""As the crowd, and the put in the middle, which did not return, has three."""


@pytest.mark.parametrize(
    ("count", "there"),
    [
        (3, "o 7 / v 2:1@3 2:2@4 3:0@5 3:1@6 / h"),  # the first of the three, seen by the others
        (4, "o 7 / v 2:2@4 3:0@5 3:1@6 / h"),
        (5, "o 7 / v 3:0@5 3:1@6 / h"),  # all of them: only the gap tells that they were there
        (6, "o 7 / v 3:1@6 / h"),
    ],
)
def test_a_get_in_flight_may_have_taken_of_a_put_in_flight_in_front_of_others_that_returned(
    count: int, there: str
) -> None:
    """Where it stands is not known before it is seen, so it may have stood in front."""
    ledger = Ledger(in_order=False)
    ledger.read(lines(f"{PASSED} / g 0 {count}"))
    ledger.read(lines(f"{there} / go"))
    assert ledger.excused_count == 1


@pytest.mark.parametrize(
    ("work", "there"),
    [
        (f"{PASSED} / g 0 2", "o 7 / v 2:1@3 2:2@4 3:0@5 3:1@6 / h"),  # one more than it asked for
        (f"{PASSED} / g 0 3", "o 7 / v 1:1@1 2:1@3 2:2@4 3:0@5 3:1@6 / h"),  # behind one that is there
        (f"{PASSED} / g 0 3", "o 7 / v 2:0@2 2:2@4 3:0@5 3:1@6 / h"),  # behind one of the same put
        (f"{PASSED} / s 4 2 / g 0 3", "o 9 / v 2:1@3 2:2@4 3:0@5 3:1@6 4:1@8 / h"),  # it began behind them
        (f"{PASSED} / s 4 2 / g 0 2", "o 9 / v 2:0@2 2:1@3 2:2@4 3:0@5 3:1@6 4:1@8 / h"),
    ],
)
def test_a_get_in_flight_excuses_no_hole_in_a_put_in_flight(work: str, there: str) -> None:
    """Once the put is seen its place counts."""
    ledger = Ledger(in_order=False)
    ledger.read(lines(work))
    with pytest.raises(ViolationError, match=r"half|lost"):
        ledger.read(lines(f"{there} / go"))


@pytest.mark.parametrize(("there", "is_possible"), [("1:0@0 1:2@2", True), ("1:0@0", False), ("1:1@1 1:2@2", False)])
def test_a_get_in_flight_takes_what_was_handed_out_before_first(there: str, is_possible: bool) -> None:
    """In front of the messages that its own put, which never returned, has put before it."""
    ledger = ledger_of("s 1 3 / q 1 3")
    ledger.read(lines("o 3 / c 1:1 / v 1:1@1 1:0@0 1:2@2 / h / go / g 0 5"))
    left = lines(f"o 3 / v {there} / h / go")
    if is_possible:
        ledger.read(left)
        return
    with pytest.raises(ViolationError, match=r"half|lost"):
        ledger.read(left)


ABORT_BEHIND_THE_CUT = (
    "s 1 1 / S 1 0 keeps / r 0 1:0@0 / p 2 0 1:0 / S 2 -1 keeps / s 3 2 / S 3 1 keeps / d 2 abort / cut / S 2 -1 keeps"
)


def test_a_get_in_flight_may_have_taken_what_an_abort_gave_back_as_the_power_went() -> None:
    """The abort returned behind the cut, and all of it had come to the disk before the power was gone."""
    ledger_of(f"{ABORT_BEHIND_THE_CUT} / g 0 1", power="keeps all").read(lines("o 3 / v 3:0@1 3:1@2 / h / go"))


ABORT_UNDER_WAY = "s 1 1 / S 1 0 keeps / r 0 1:0@0 / p 2 0 1:0 / S 2 -1 keeps / d 2 abort / q 1 1 / r 1 1:0@0"


@pytest.mark.parametrize("found", ["o 1 / v / h 2", "o 1 / c 1:0 / v 1:0@0 / h"])
def test_a_message_may_be_handed_out_before_the_abort_that_released_it_is_on_the_disk(found: str) -> None:
    """So after a loss of power the transaction is in doubt again, or aborted."""
    ledger_of(ABORT_UNDER_WAY, power="keeps all").read(lines(f"{found} / go"))


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (f"{ABORT_UNDER_WAY} / S 2 -1 keeps", "o 1 / v / h 2"),
        (ABORT_UNDER_WAY, "o 1 / v / h"),
        (ABORT_UNDER_WAY, "o 1 / v 1:0@0 / h 2"),
    ],
)
def test_an_abort_that_returned_stays_and_one_that_did_not_has_one_outcome(work: str, found: str) -> None:
    """A message that was released is there, and one that is held is not."""
    with pytest.raises(ViolationError):
        ledger_of(work, power="keeps all").read(lines(f"{found} / go"))


def test_a_message_in_doubt_is_handed_out_by_nobody() -> None:
    """While its transaction is decided by no call."""
    with pytest.raises(ViolationError, match="doubled"):
        ledger_of("s 1 1 / S 1 0 keeps / r 0 1:0@0 / p 2 0 1:0 / S 2 -1 keeps / q 1 1 / r 1 1:0@0")


GIVEN_BACK_BESIDE_AN_ABORT = (
    "s 1 1 / S 1 0 keeps / s 3 2 / S 3 1 keeps / r 0 1:0@0 / p 2 0 1:0 / S 2 -1 keeps / r 0 3:0@1 3:1@2 / "
    "b 0 counted 3:0 3:1 / B 0 / d 2 abort"
)


def test_a_get_in_flight_may_have_taken_what_an_abort_under_way_gave_back_first() -> None:
    """Before others that were handed out before."""
    ledger = ledger_of(f"{GIVEN_BACK_BESIDE_AN_ABORT} / g 1 1", power="keeps all")
    ledger.read(lines("o 3 / c 3:0 3:1 / v 3:0@1 3:1@2 / h / go"))


@pytest.mark.parametrize("work", ["", " / g 1 1 / E 1", " / q 1 1"])
def test_without_a_get_in_flight_what_an_abort_gave_back_is_there(work: str) -> None:
    """Or still in doubt."""
    with pytest.raises(ViolationError, match=r"half|lost"):
        ledger_of(f"{GIVEN_BACK_BESIDE_AN_ABORT}{work}").read(lines("o 3 / c 3:0 3:1 / v 3:0@1 3:1@2 / h / go"))


@pytest.mark.parametrize(
    ("work", "there"), [("", "3:0@1 3:1@2"), (" / g 0 1", "3:1@2"), (" / g 0 1", "1:0@0 3:0@1"), (" / g 0 2", "3:0@1")]
)
def test_such_a_get_takes_no_more_than_it_asked_for_and_leaves_no_hole(work: str, there: str) -> None:
    """Without a get the message is lost; two are more than one, and what comes later does not go first."""
    with pytest.raises(ViolationError, match="lost"):
        ledger_of(f"{ABORT_BEHIND_THE_CUT}{work}", power="keeps all").read(lines(f"o 3 / v {there} / h / go"))
