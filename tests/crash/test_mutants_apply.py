"""The planted bugs (``python -m proof.mutants``) still fit the code they are planted into."""

from pathlib import Path

import pytest

from proof.mutants.catalogue import MUTATIONS
from proof.mutants.mutation import PACKAGE, Mutation, MutationError
from proof.mutants.suites import SUITES, SuiteError, Verdict

ROOT = Path(__file__).resolve().parents[2]


def test_there_are_twenty_of_them_and_no_two_are_the_same() -> None:
    """The figure that is published, and no bug counted twice."""
    assert len(MUTATIONS) >= 20
    assert (
        len({each.name for each in MUTATIONS}) == len({(each.file, each.old) for each in MUTATIONS}) == len(MUTATIONS)
    )


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_the_suite_that_is_to_see_a_planted_bug_is_there(mutation: Mutation) -> None:
    """A name that no suite has would have it run through all of them."""
    assert mutation.suite in {suite.name for suite in SUITES}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_planted_bug_applies(mutation: Mutation) -> None:
    """What it replaces stands in the code exactly once, and what comes of it compiles."""
    assert mutation.new in mutation.mutated(ROOT)


@pytest.mark.parametrize(
    ("old", "new", "reason"), [("b", "c", "0 times"), ("a", "c", "2 times"), ("a\na", "a\na", "changes nothing")]
)
def test_a_planted_bug_that_does_not_apply_says_so(tmp_path: Path, old: str, new: str, reason: str) -> None:
    """And leaves the file alone."""
    (tmp_path / PACKAGE).mkdir(parents=True)
    path = tmp_path / PACKAGE / "module.py"
    path.write_text("a\na")
    with pytest.raises(MutationError, match=reason):
        Mutation("bug", "It breaks.", "module.py", old, new).apply(tmp_path)
    assert path.read_text() == "a\na"


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        (
            "..F\n=== short summary ===\nFAILED tests/a.py::test_b[x y] - assert 0\n1 failed, 2 passed in 3.04s\n",
            Verdict(caught=True, count=3, where="tests/a.py::test_b[x y]"),
        ),
        (
            "1,500 distinct states\nviolation after 1,500 states: AssertionError: half a batch\nkill after put\n",
            Verdict(caught=True, count=1500, where="half a batch"),
        ),
    ],
    ids=["pytest", "explorer"],
)
def test_what_a_suite_prints_is_understood(output: str, verdict: Verdict) -> None:
    """How many cases it took, and which one failed."""
    assert SUITES[0].read(output, caught=True) == verdict


def test_a_suite_that_fails_and_does_not_say_where_counts_for_nothing() -> None:
    """It was broken before it could catch anything."""
    with pytest.raises(SuiteError, match="does not say where"):
        SUITES[0].read("no module of that name", caught=True)
