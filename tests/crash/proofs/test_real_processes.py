"""A short run of each proof with real processes and real disks; ``tests/proof`` has the long ones.

``python -m proof.kills``, ``proof.lock_race``, ``proof.power_cuts`` and ``proof.failing_sync`` say how to run them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from proof import failing_sync, power_cuts
from proof.failing_sync import fail_again_and_again
from proof.kills import kill_again_and_again
from proof.lock_race import race
from proof.power_cuts import cut_again_and_again
from proof.real_processes.crew import SHAPES
from proof.real_processes.workplace import SKIPPED
from support.storages.loop_disk import LoopDiskError, cannot_be_cut, loop_disk

SEED = int(os.environ.get("HOLDFAST_TEST_SEED", "20240521"))


def test_killed_producers_and_consumers_lose_double_and_halve_nothing(tmp_path: Path) -> None:
    """Puts, takes, transactions and prepared ones, under all flush policies, by one process or two."""
    tally = kill_again_and_again(tmp_path, rounds=20, seed=SEED)
    assert tally.kills >= 20
    assert sum(ledger.acknowledged_count for ledger in tally.ledgers) > 20, "they were killed before they did anything"


def test_of_16_processes_racing_for_a_lock_one_wins_also_after_winners_were_killed(tmp_path: Path) -> None:
    """The others are told the winner's process id, also of an owner whose directory was removed."""
    tally = race(tmp_path / "queue", rounds=20, seed=SEED)
    assert tally.races >= 20
    assert tally.kills > 0
    assert tally.removals > 0


def test_a_kernel_level_power_cut_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """It does take what a file beside the queue was given without a sync."""
    try:
        with loop_disk(tmp_path) as disk:
            reason = cannot_be_cut(disk)
            if reason is not None:
                pytest.skip(f"the power of a file system cannot be cut here: {reason}")
            tally = cut_again_and_again(disk, cuts=1, seed=SEED)
    except LoopDiskError as error:
        pytest.skip(f"no file system of one's own can be mounted here: {error}")
    assert tally.cuts == dict.fromkeys(SHAPES, 1)


def test_a_put_that_returned_is_there_after_syncs_have_failed(tmp_path: Path) -> None:
    """The medium below the file system is full, so that what was written well is lost at the sync."""
    try:
        tally = fail_again_and_again(tmp_path, rounds=3, seed=SEED)
    except LoopDiskError as error:
        pytest.skip(f"no file system that fails can be mounted here: {error}")
    assert sum(tally.errors.values()) >= 3
    assert tally.acknowledged > 100


@pytest.mark.parametrize("programme", [failing_sync, power_cuts], ids=lambda module: module.__name__)
def test_a_programme_that_has_no_disk_of_its_own_does_not_pass(
    programme: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that nothing was tested, exits with 77, and records nothing."""

    @contextmanager
    def no_disk(*_arguments: object, **_options: object) -> Iterator[None]:
        raise LoopDiskError("no loop devices")
        yield

    monkeypatch.setattr(programme, "loop_disk", no_disk)
    monkeypatch.setattr(programme, "workplace", lambda _on_disk: nullcontext(tmp_path))  # which sets a signal handler
    done = CliRunner().invoke(programme.main)
    assert done.exit_code == SKIPPED == 77
    assert "skipped, nothing was tested" in done.output
    assert "recorded" not in done.output
