"""Flush policies say when written bytes are synced."""

from __future__ import annotations

import math

import pytest

from holdfast import ConfigError, FlushPolicy


def test_every_commit_syncs_each() -> None:
    """The default waits for the disk."""
    policy = FlushPolicy.every_commit()
    assert policy.syncs_every_commit
    assert (policy.commits, policy.seconds) == (1, None)
    assert str(policy) == "every_commit()"


def test_never_leaves_it_to_the_operating_system() -> None:
    """Neither number nor time."""
    policy = FlushPolicy.never()
    assert not policy.syncs_every_commit
    assert (policy.commits, policy.seconds) == (None, None)
    assert str(policy) == "never()"


def test_every_counts_commits_and_time() -> None:
    """Whichever comes first."""
    policy = FlushPolicy.every(commits=7, seconds=0.5)
    assert (policy.commits, policy.seconds) == (7, 0.5)
    assert not policy.syncs_every_commit
    assert str(policy) == "every(commits=7, seconds=0.5)"
    assert FlushPolicy.every() == FlushPolicy.every(commits=1000, seconds=0.05)


@pytest.mark.parametrize("options", [{"commits": 0}, {"commits": -1}, {"seconds": 0}, {"seconds": math.nan}])
def test_bounds_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    """The error names both."""
    with pytest.raises(ConfigError, match="at least 1 commit"):
        FlushPolicy.every(**options)
