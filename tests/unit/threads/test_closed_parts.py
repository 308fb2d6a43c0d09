"""What a part of a queue refuses, if one thread drains it and another one closes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import ClosedError, ForkedError, ShutDown
from holdfast.queue.threads.lifecycle import Lifecycle


class Racing(Lifecycle):
    """Another thread closes it between the look of a drain and its change."""

    __slots__ = ("is_racing",)

    @property  # type: ignore[override]
    def refusal(self) -> Callable[[], Exception] | None:
        found: Callable[[], Exception] | None = Lifecycle.__dict__["refusal"].__get__(self)
        if getattr(self, "is_racing", False):
            self.is_racing = False
            self.close()
        return found

    @refusal.setter
    def refusal(self, refusal: Callable[[], Exception] | None) -> None:
        Lifecycle.__dict__["refusal"].__set__(self, refusal)


def test_what_was_closed_meanwhile_is_not_open_to_those_that_end_their_work() -> None:
    """A part that drains lets them."""
    part = Racing()
    part.is_racing = True
    part.drain()
    assert str(part) == "closed"
    with pytest.raises(ClosedError):
        part.check_alive()


def test_a_drain_changes_nothing_about_what_is_closed_or_forked() -> None:
    """But about what is open."""
    part = Lifecycle()
    part.drain()
    with pytest.raises(ShutDown):
        part.check()
    part.check_alive()
    part.close()
    part.drain()
    with pytest.raises(ClosedError):
        part.check_alive()
    part.forget()
    part.drain()
    with pytest.raises(ForkedError):
        part.check_alive()
