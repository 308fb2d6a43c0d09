"""The planted bugs (``python -m proof.mutants``) still fit the code they are planted into."""

from pathlib import Path

import pytest

from proof.mutants import suites
from proof.mutants.__main__ import Outcome, Task
from proof.mutants.catalogue import MUTATIONS
from proof.mutants.mutation import PACKAGE, Mutation, MutationError
from proof.mutants.suites import SUITES, Ending, Suite, Verdict

ROOT = Path(__file__).resolve().parents[3]


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


@pytest.mark.parametrize("listed", SUITES, ids=lambda each: each.name)
def test_what_a_suite_runs_is_there(listed: Suite) -> None:
    """Pytest would fail for a file that has moved, and catch nothing."""
    paths = [argument for argument in listed.arguments if argument.startswith("tests/")]
    assert bool(paths) == ("pytest" in listed.arguments)
    assert not [path for path in paths if not (ROOT / path).exists()]


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
            Verdict(Ending.CAUGHT, count=3, where="tests/a.py::test_b[x y]"),
        ),
        (
            "1,500 distinct states\nviolation after 1,500 states: AssertionError: half a batch\nkill after put\n",
            Verdict(Ending.CAUGHT, count=1500, where="half a batch"),
        ),
    ],
    ids=["pytest", "explorer"],
)
def test_what_a_suite_prints_is_understood(output: str, verdict: Verdict) -> None:
    """How many cases it took, and which one failed."""
    assert SUITES[0].read(output, "", 1) == verdict


def test_a_suite_that_fails_and_names_no_test_is_broken() -> None:
    """It could not catch anything."""
    assert SUITES[0].read("no module of that name", "", 1).ending is Ending.BROKEN


@pytest.mark.parametrize("status", [-11, -9, 2, 3, 4, 5])
def test_a_suite_that_ends_by_a_signal_or_without_tests_is_broken(status: int) -> None:
    """Whatever it had printed before."""
    output = "FAILED tests/a.py::test_b - assert 0\n1 failed in 3.04s\n"
    assert SUITES[0].read(output, "", status).ending is Ending.BROKEN


def suite(tmp_path: Path, source: str) -> Suite:
    """Return a suite of one file of tests."""
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "test_it.py").write_text(source)
    arguments = ("-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "test_it.py")
    return Suite("made up", "tests", ("pytest", *arguments))


@pytest.mark.parametrize(
    ("source", "ending"),
    [
        ("def test_a():\n    assert False\n", Ending.CAUGHT),
        ("def test_a():\n    pass\n", Ending.PASSED),
        ("import no_module_of_that_name\n", Ending.BROKEN),
        ("import os\n\ndef test_a():\n    os.kill(os.getpid(), 11)\n", Ending.BROKEN),
        (
            "import pytest, time\n\n@pytest.mark.timeout(0.2)\ndef test_a():\n    time.sleep(60)\n",
            Ending.TIMED_OUT,
        ),
    ],
    ids=["a test fails", "all pass", "a module is missing", "a signal", "a test hangs"],
)
def test_only_a_test_that_fails_is_a_catch(tmp_path: Path, source: str, ending: Ending) -> None:
    """A real run of pytest says how it ended."""
    assert suite(tmp_path, source).run(tmp_path).ending is ending


def test_a_suite_that_hangs_has_timed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, with all processes that it has started."""
    monkeypatch.setattr(suites, "SUITE_SECONDS_MAX", 1.0)
    source = "import subprocess\nsubprocess.run(['sleep', '600'])\n"
    assert suite(tmp_path, source).run(tmp_path).ending is Ending.TIMED_OUT


@pytest.mark.parametrize("ending", list(Ending))
def test_a_mutant_passes_only_if_it_is_caught_and_the_control_only_if_nothing_is(ending: Ending) -> None:
    """Neither a time-out nor a broken suite is good for either."""
    mutant = Outcome(Task(MUTATIONS[0], SUITES), ending, "", 1.0)
    control = Outcome(Task(None, SUITES), ending, "", 1.0)
    assert (mutant.violation == "") == (ending is Ending.CAUGHT)
    assert (control.violation == "") == (ending is Ending.PASSED)
