"""What children of the proofs with real processes say, and where the power or the disk may be gone."""

import os
from contextlib import suppress

from proof.real_processes.reports import Reporter, Say, watching_syncs


def test_what_is_said_beside_a_sync_that_fails_comes_behind_the_cut() -> None:
    """The first one that fails counts."""

    def task(say: Say) -> None:
        read, write = os.pipe()
        say = watching_syncs(say)
        say("s", 1)
        say("S", 1)
        with suppress(OSError):
            os.fsync(write)  # of a pipe: refused
        say("s", 2)
        with suppress(OSError):
            os.fdatasync(write)
        os.close(read)

    child = Reporter(task)
    child.wait_for("never said", seconds=10)
    child.kill()
    assert child.lines() == [["s", "1"], ["S", "1"], ["cut"], ["s", "2"]]


def test_without_a_sync_that_fails_there_is_no_cut() -> None:
    """All that was said counts."""

    def task(say: Say) -> None:
        say = watching_syncs(say)
        say("s", 1)
        say("S", 1)

    child = Reporter(task)
    child.wait_for("never said", seconds=10)
    child.kill()
    assert child.lines() == [["s", "1"], ["S", "1"]]
