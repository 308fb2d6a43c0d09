"""The figures of docs/reliability.md are those that the programmes wrote, and no others."""

import json
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from proof import scoreboard
from proof.scoreboard import DOCS, NOT_RECORDED, OFF, PROGRAMMES, ROOT, Run, rendered, results


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
    assert {path.stem for path in (DOCS / "scoreboard").glob("*")} == set(results())


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
    written = json.loads((docs / "scoreboard" / "kills.json").read_text())
    assert written["covered"] == {"kills": 1234}
    assert set(written) == {
        "covered", "violations", "seconds", "command", "date", "commit", "dirty", "python", "cores",
    }  # fmt: skip
    page = (docs / "scoreboard.md").read_text()
    assert "| 1,234 kills | 0 |" in page
    assert page.count(NOT_RECORDED) == len(PROGRAMMES) - 1
    assert page == rendered(docs)


@pytest.mark.parametrize("options", [["--rounds", "20"], ["--shape", "two"], ["--quick"]])
def test_a_part_of_a_run_leaves_the_row_of_the_last_whole_one(docs: Path, options: list[str]) -> None:
    """It names the option that made it a part."""
    run(kills(docs))
    before = (docs / "scoreboard" / "kills.json").read_bytes(), (docs / "scoreboard.md").read_bytes()
    assert f"not recorded ({options[0]})" in run(kills(docs), *options)
    assert before == ((docs / "scoreboard" / "kills.json").read_bytes(), (docs / "scoreboard.md").read_bytes())


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
    assert NOT_RECORDED not in (docs / "scoreboard.md").read_text()
    shutil.rmtree(docs / "scoreboard")
    assert rendered(docs).count(NOT_RECORDED) == len(PROGRAMMES)
