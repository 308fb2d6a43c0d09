"""Ctrl-C in jobs that run in the background, where shells have it ignored."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from support.processes.ctrl_c import have_ctrl_c_work
from support.processes.interruptions import Kind, Point, interrupted


@pytest.fixture(autouse=True)
def _ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_job_in_the_background_hears_of_it() -> None:
    """From then on."""
    have_ctrl_c_work()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_handler_of_ones_own_stays() -> None:
    """Whoever has set one wants it."""
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    have_ctrl_c_work()
    signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT]


def test_nothing_is_interrupted_where_it_is_ignored() -> None:
    """A call that continues as if nothing had happened is not taken for one that was interrupted."""
    with pytest.raises(AssertionError, match="Ctrl-C does nothing"):
        interrupted(lambda: None, Point(1, Kind.DELIVERED))
