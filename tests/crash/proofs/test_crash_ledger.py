"""What the explorer of crash states counts, keeps over runs, and stops at."""

from pathlib import Path

import pytest

from proof.crash_states.__main__ import Goal
from proof.crash_states.counting import Tally, fate_of
from proof.crash_states.history import Moment, Part
from proof.crash_states.ledger import Ledger, digest_of, digest_of_what_matters
from support.storages.disk_operations import Sync

LOG, PROGRESS = ("a", Part.LOG), ("a", Part.PROGRESS)


def test_what_was_seen_before_is_counted_once_over_runs(tmp_path: Path) -> None:
    """States, recovered views and pairs of operation and fate, each by itself."""
    path = tmp_path / "build" / "ledger.sqlite"
    ledger = Ledger(path)
    assert ledger.note("first", Tally(digests={1, 2}, views={7}, fates={"kill in put"}), 0.5)
    ledger.close()
    ledger = Ledger(path)
    assert not ledger.note("second", Tally(digests={2, 3}, views={7}, fates={"kill in put"}), 0.5)
    assert (ledger.state_count, ledger.view_count, ledger.fate_count) == (3, 1, 1)
    assert ledger.note("third", Tally(digests={3}, views={8}), 0.5)
    assert ledger.is_done("second")
    ledger.close()


def test_a_ledger_belongs_to_the_code_it_was_made_with(tmp_path: Path) -> None:
    """States that other code has recovered say nothing of this one."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert ledger.belongs_to(1)
    assert ledger.belongs_to(1)
    assert not ledger.belongs_to(2)
    ledger.close()


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        ('"""Another."""\n\ndef f():\n    """Other words."""\n    return 1  # why\n', False),
        ('"""Text."""\ndef f():\n    """Says."""\n    return 2\n', True),
    ],
)
def test_a_ledger_outlives_comments_and_docstrings_and_no_change_of_the_code(
    tmp_path: Path, changed: str, matters: bool
) -> None:
    """Of the files that matter only what they do counts."""
    path = tmp_path / "module.py"
    path.write_text('"""Text."""\ndef f():\n    """Says."""\n    return 1\n')
    before = digest_of([path])
    path.write_text(changed)
    assert (digest_of([path]) != before) is matters


def test_a_ledger_outlives_changes_of_what_the_explorer_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages that are tried and the modules of the explorer count; services, command line and tests do not."""
    seen: list[Path] = []
    monkeypatch.setattr("proof.crash_states.ledger.digest_of", lambda paths: len(seen) or seen.extend(paths) or 0)
    digest_of_what_matters()
    names = {path.parent.name + "/" + path.name for path in seen}
    assert {
        "recovery/log_recovery.py",
        "dispatch/dispatcher.py",
        "crash_states/oracle.py",
        "models/model.py",
    } <= names
    others = ("holdfast/service/", "holdfast/cli/", "/test_")
    assert not [path for path in seen if any(other in str(path) for other in others)]


def test_a_search_ends_when_an_hour_has_brought_nothing_new() -> None:
    """Or with enough recovered views; more disk images do not end it."""
    ledger = Ledger(None)
    ledger.note("many images", Tally(digests=set(range(100)), views={1}), 1)
    assert Goal(100, None, None).is_reached(ledger)
    goal = Goal(100, 2, 3600)
    assert not goal.is_reached(ledger)
    assert not goal.is_quiet(3599)
    assert goal.is_quiet(3600)
    ledger.note("another view", Tally(views={2}), 1)
    assert goal.is_reached(ledger)
    ledger.close()


def test_a_fate_says_what_was_under_way_and_what_is_left_of_it() -> None:
    """The call, the last change of the disk, and each side that it would have moved on, or that fell back."""
    before = Moment(3, "get(1)", {LOG: 1, PROGRESS: 2}, {LOG: 1, PROGRESS: 1})
    under_way = Moment(9, "put(600,)", {LOG: 2, PROGRESS: 2}, {LOG: 2, PROGRESS: 1})
    fate = fate_of("power loss, drawn", before, under_way, Sync(1), {LOG: 2, PROGRESS: 1})
    assert fate == "power loss in put behind Sync: log of a there; progress of a falls back"
    assert fate_of("kill", before, before, None, {LOG: 1, PROGRESS: 2}) == "kill when get had returned: "
