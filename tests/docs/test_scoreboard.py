"""The figures of docs/reliability.md are those that the programmes wrote, and no others."""

import json
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast import implementation
from proof import scoreboard
from proof.scoreboard import DOCS, NOT_RECORDED, OFF, PROGRAMMES, ROOT, Run, rendered, results

ROW_COUNT = sum(len(each.implementations) for each in PROGRAMMES)


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory for a scoreboard, on which results are recorded."""
    monkeypatch.delenv(OFF, raising=False)
    return tmp_path


def kills(docs: Path) -> click.Command:
    """Return a programme with options of every kind."""

    @click.command()
    @click.option("--rounds", default=1000)
    @click.option("--seed", default=1)
    @click.option("--shape", "shapes", multiple=True)
    @click.option("--quick", is_flag=True)
    def main(rounds: int, **_others: object) -> None:
        Run("kills", docs=docs).record({"kills": rounds}, violations=0)

    return main


def run(command: click.Command, *arguments: str) -> str:
    """Run a programme; return what it prints."""
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_the_page_shows_what_the_result_files_say() -> None:
    """A figure that is entered by hand, or a result whose page was forgotten, fails here."""
    assert (DOCS / "scoreboard.md").read_text(encoding="utf-8") == rendered()


def test_every_result_file_belongs_to_a_programme() -> None:
    """One of another name would be shown nowhere."""
    files = (DOCS / "scoreboard").glob("**/*.json")
    assert {(path.parent.name, path.stem) for path in files} == set(results())


def test_the_page_about_reliability_has_the_scoreboard_and_no_table_of_its_own() -> None:
    """A second table would be one that is kept by hand."""
    page = (DOCS / "reliability.md").read_text(encoding="utf-8")
    assert "```{include} scoreboard.md\n```" in page
    assert not [line for line in page.splitlines() if line.startswith("|")]


def test_every_programme_of_the_makefile_that_proves_something_has_its_row() -> None:
    """The commands of the rows are commands of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for programme in PROGRAMMES:
        assert f"\n{programme.command.removeprefix('make ')}:" in makefile


def test_a_whole_run_is_recorded_with_all_that_says_what_it_was(docs: Path) -> None:
    """Figures, violations, time, command line, date, commit, Python and cores are in the file and on the page."""
    run(kills(docs), "--seed", "7", "--rounds", "1234")
    written = json.loads((docs / "scoreboard" / implementation / "kills.json").read_text())
    assert written["covered"] == {"kills": 1234}
    assert set(written) == {
        "covered", "violations", "seconds", "command", "date", "commit", "dirty", "python", "cores",
    }  # fmt: skip
    page = (docs / "scoreboard.md").read_text()
    assert "| 1,234 kills | 0 |" in page
    assert page.count(NOT_RECORDED) == ROW_COUNT - 1
    assert page == rendered(docs)


@pytest.mark.parametrize("options", [["--rounds", "20"], ["--shape", "two"], ["--quick"]])
def test_a_part_of_a_run_leaves_the_row_of_the_last_whole_one(docs: Path, options: list[str]) -> None:
    """It names the option that made it a part."""
    run(kills(docs))
    before = (docs / "scoreboard" / implementation / "kills.json").read_bytes(), (docs / "scoreboard.md").read_bytes()
    assert f"not recorded ({options[0]})" in run(kills(docs), *options)
    assert before == (
        (docs / "scoreboard" / implementation / "kills.json").read_bytes(),
        (docs / "scoreboard.md").read_bytes(),
    )


def test_what_says_itself_to_be_a_part_is_not_recorded(docs: Path) -> None:
    """As fuzzing of one target is, which is chosen by an argument."""
    Run("fuzz", partial=True, docs=docs).record({}, violations=0)
    assert not list(docs.iterdir())


def test_nothing_is_recorded_if_it_is_switched_off(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CI must not change the tree that it checks."""
    monkeypatch.setenv(OFF, "off")
    assert f"{OFF}=off" in run(kills(docs))
    assert not list(docs.iterdir())


def test_violations_are_recorded_too(docs: Path) -> None:
    """A row that only successes may change would say that there never was a violation."""
    Run("kills", docs=docs).record({"kills": 3}, violations=2)
    assert "| 3 kills | 2 |" in (docs / "scoreboard.md").read_text()


def test_a_programme_that_has_no_row_is_refused() -> None:
    """Its result would be shown nowhere."""
    with pytest.raises(ValueError, match="no programme of the scoreboard"):
        Run("kill")


def test_a_tree_without_git_has_no_commit(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says that it is unknown."""
    monkeypatch.setattr(scoreboard, "ROOT", docs)
    Run("kills", docs=docs).record({}, violations=0)
    assert "commit unknown," in (docs / "scoreboard.md").read_text()


def test_each_programme_that_records_keeps_the_rows_of_the_others(docs: Path) -> None:
    """Even if all of them began before the first one ended, as two of one `make` do."""
    runs = [Run(each.name, docs=docs) for each in PROGRAMMES]
    for each in runs:
        each.record({}, violations=0)
    others = [each for each in PROGRAMMES if len(each.implementations) > 1]
    assert (docs / "scoreboard.md").read_text().count(NOT_RECORDED) == len(others)
    shutil.rmtree(docs / "scoreboard")
    assert rendered(docs).count(NOT_RECORDED) == ROW_COUNT


def test_each_implementation_has_a_row_of_its_own(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of Python alone leaves the figures of a run with the extension."""
    for tried, count in (("c", 17), ("python", 18)):
        monkeypatch.setattr(scoreboard, "implementation", tried)
        Run("kills", docs=docs).record({"kills": count}, violations=0)
    page = (docs / "scoreboard.md").read_text()
    assert "| C | 17 kills | 0 |" in page
    assert "|  |  | Python | 18 kills | 0 |" in page
    assert "`HOLDFAST_PURE=1 make crash`" in page


def test_planted_bugs_are_tried_in_python_alone_whatever_serves_the_programme(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are changes of Python, and their copies of the tree have no extension: there is one row."""
    monkeypatch.setattr(scoreboard, "implementation", "c")
    Run("mutants", docs=docs).record({}, violations=0)
    assert set(results(docs)) == {("python", "mutants")}
    assert (docs / "scoreboard.md").read_text().count("`make crash-mutants`") == 1


def tell(run: Run, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this run count so many calls into the extension."""
    monkeypatch.setattr(scoreboard.calls, "total", lambda _path: count)
    run.record({}, violations=0)


def test_calls_into_the_extension_are_recorded(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say that it was tried at all."""
    monkeypatch.setattr(scoreboard, "implementation", "c")
    tell(Run("faults", docs=docs), 4321, monkeypatch)
    assert "| C | 4,321 calls into C | 0 |" in (docs / "scoreboard.md").read_text()


def test_calls_into_the_extension_fail_a_run_of_python_alone(
    docs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that the programme began may have lost the variable: its figures would be another's."""
    monkeypatch.setattr(scoreboard, "implementation", "python")
    with pytest.raises(SystemExit):
        tell(Run("faults", docs=docs), 1, monkeypatch)
    assert "Python alone was to serve" in capsys.readouterr().out
    assert not list(docs.iterdir())


def test_no_call_into_the_extension_fails_a_run_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row would say that C was tried."""
    monkeypatch.setattr(scoreboard, "implementation", "c")
    with pytest.raises(SystemExit):
        tell(Run("faults"), 0, monkeypatch)
    assert "was never called" in capsys.readouterr().out
