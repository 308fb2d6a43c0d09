"""The study of profiles prints a row for each case it is asked for, whose shares are whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.studies.profiles import percents

ROOT = Path(__file__).resolve().parents[3]


def test_shares_are_whole_percents_that_sum_to_100() -> None:
    """Three thirds would be 99 if each was rounded by itself."""
    assert sorted(percents({"write": 1.0, "read": 1.0, "sync": 1.0, "locks": 0.0}).values()) == [0, 33, 33, 34]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_program_prints_shares_of_each_case(tmp_path: Path) -> None:
    """Those of the one thread, or of the threads that a pool starts, where Python can profile these."""
    cases = "put with a dedup_id", "durable put, 8 threads"
    command = [sys.executable, "-m", "benchmarks.studies.profiles", "--dir", str(tmp_path), "--count", "100"]
    command += [word for case in cases for word in ("--case", case)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=110).stdout
    rows = [
        line.strip("| ").split("|")
        for line in output.splitlines()
        if line.startswith(tuple(f"| {case} " for case in cases))
    ]
    assert [cells[0].strip() for cells in rows] == list(cases)
    for cells in rows:
        shares = [int(share) for cell in cells[4:] for share in re.findall(r"(?:^| )(\d+)(?:,|\s*$)", cell)]
        assert sum(shares) == 100 or (sys.version_info >= (3, 12) and not shares)
    assert not list(tmp_path.iterdir())
