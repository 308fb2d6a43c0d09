"""The judge of killed processes accepts what a kill may do, and nothing else."""

import pytest

from support.models.kill_oracle import BrokenPromiseError, judge


def lines(text: str) -> list[list[str]]:
    """Return a journal; events are parted by semicolons."""
    return [event.split() for event in text.split(";") if event.strip()]


PUTS = "p 1 1; P 1 0; p 2 3; P 2 1; p 3 2"  # the last one did not return

ALLOWED = {
    "all came out": ("g 1; G 1:0; D 1=2:0 2=2:1 3=2:2; a 1 2 3; A", 4),
    "the put that did not return is there": ("D 0=1:0 1=2:0 2=2:1 3=2:2 4=3:0 5=3:1; a 0 1 2 3 4 5; A", 6),
    "what was in flight comes again": ("D 0=1:0; R 2; D 0=1:0; a 0; A; D 1=2:0 2=2:1 3=2:2; a 1 2 3; A", 4),
    "a get that did not return has taken": ("g 2; R 2; D 2=2:1 3=2:2; a 2 3; A", 4),
    "a get that did not return has taken nothing": ("g 1; R 2; D 0=1:0 1=2:0 2=2:1 3=2:2; a 0 1 2 3; A", 4),
    "a get that did not return has taken what was given back, which comes first": (
        "D 0=1:0 1=2:0; N 1; a 0; A; g 1; R 2; D 2=2:1 3=2:2; a 2 3; A",
        4,
    ),
    "two gets that did not return have taken what came next, one behind the other": (
        "D 0=1:0 1=2:0; a 0; A; g 1; R 2; g 1; G 2:0; g 1; R 3",
        4,
    ),
    "a get that did not return has taken what came behind an ack that did not return": (
        "D 0=1:0; a 0; R 2; g 2; R 3; D 3=2:2; a 3; A",
        4,
    ),
    "a get that did not return has taken what was released, which comes when it comes": (
        "D 0=1:0 1=2:0; f 1; F; a 0; A; g 1; R 2; D 2=2:1 3=2:2; a 2 3; A",
        4,
    ),
    "an ack that did not return counts": ("D 0=1:0 1=2:0; a 0 1; R 2; D 2=2:1 3=2:2; a 2 3; A", 4),
    "what was given back comes next": ("D 0=1:0 1=2:0; N 0; D 0=1:0; a 0 1; A; D 2=2:1 3=2:2; a 2 3; A", 4),
    "what was handed out comes before what was released": (
        "D 0=1:0 1=2:0; f 0; F; R 2; D 1=2:0; D 0=1:0 2=2:1 3=2:2; a 0 1 2 3; A",
        4,
    ),
    "a release that did not return counts": ("D 0=1:0 1=2:0; f 0 1; R 2; D 0=1:0 1=2:0 2=2:1 3=2:2; a 0 1 2 3; A", 4),
}

BROKEN = {
    "lost": ("D 0=1:0; a 0; A; D 2=2:1 3=2:2; a 2 3; A", 4, "passed over"),
    "lost at the end": ("D 0=1:0; a 0; A", 4, "nothing had finished"),
    "again after its ack": ("D 0=1:0; a 0; A; R 2; D 0=1:0 1=2:0 2=2:1 3=2:2; a 0 1 2 3; A", 4, "came again"),
    "again after get": ("g 1; G 1:0; D 0=1:0", 4, "came again"),
    "handed out twice at once": ("D 0=1:0; D 0=1:0", 4, "twice at once"),
    "at another offset": ("D 1=1:0", 4, "at offset 1 and at 0"),
    "out of order": ("D 1=2:0; a 1; A; D 0=1:0", 4, "passed over"),
    "a message nobody put": ("D 0=1:0 1=2:0 2=2:1 3=2:2 4=9:0; a 0 1 2 3 4; A", 5, "nobody put"),
    "given back and not first": ("D 0=1:0 1=2:0; N 0; N 1; D 1=2:0", 4, "passed over"),
    "given back and after others": ("D 0=1:0; N 0; D 1=2:0", 4, "passed over"),
    "released and lost": ("D 0=1:0 1=2:0; f 0; F; R 2; D 1=2:0; D 2=2:1 3=2:2; a 1 2 3; A", 4, "passed over"),
    "handed out before, and in company": ("D 0=1:0 1=2:0; R 2; D 0=1:0 1=2:0", 4, "came together"),
    "half a batch": ("D 0=1:0 1=2:0 2=2:1 3=2:2 4=3:0; a 0 1 2 3 4; A", 5, "ends at 5"),
    "half an ack": ("D 0=1:0 1=2:0; a 0 1; R 2; D 1=2:0", 4, "half of|came again"),
    "a get took more than it asked for": ("g 1; R 2; D 2=2:1 3=2:2; a 2 3; A", 4, "passed over"),
    "two gets took more than they asked for": ("g 1; R 2; g 1; R 3; D 3=2:2; a 3; A", 4, "passed over"),
    "a get took what was not the head, behind another that did not return": (
        "g 1; R 2; g 1; R 3; D 1=2:0; a 1; A; D 3=2:2; a 3; A",
        4,
        "passed over",
    ),
    "a get has taken what was not the head": ("g 2; R 2; D 0=1:0; a 0; A; D 2=2:1 3=2:2; a 2 3; A", 4, "passed over"),
    "lost beside a get that has taken the head": ("g 1; R 2; D 1=2:0; a 1; A; D 3=2:2; a 3; A", 4, "passed over"),
    "lost beside a get, behind what was given back": (
        "D 0=1:0 1=2:0; N 1; g 1; R 2; D 0=1:0; a 0; A; D 1=2:0; a 1; A; D 3=2:2; a 3; A",
        4,
        "passed over",
    ),
    "a get has left out what comes first": (
        "D 0=1:0 1=2:0; N 1; a 0; A; g 2; R 2; D 3=2:2; D 1=2:0",
        4,
        "passed over",
    ),
    "an offset that belongs to nothing": ("D 0=1:0 1=2:0 2=2:1 3=2:2; a 0 1 2 3; A; g 9; R 2", 5, "ends at 5"),
    "a failure": ("X boom", 4, "boom"),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_a_kill_may_do_is_accepted(case: str) -> None:
    """Calls that did not return may have had their effect, or not."""
    takes, end = ALLOWED[case]
    judge(lines(PUTS), lines(takes), end)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_promise_is_found(case: str) -> None:
    """Each of them is named."""
    takes, end, reason = BROKEN[case]
    with pytest.raises(BrokenPromiseError, match=reason):
        judge(lines(PUTS), lines(takes), end)
