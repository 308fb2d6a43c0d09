"""Why a side refuses to write on."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import PoisonedError
from holdfast.persistence.filesystem.poison import Poison
from support.processes.log_handlers import text_said


def test_the_first_failure_is_the_one_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Later ones follow from it; it is logged once, and is the cause of every refusal."""
    poison, first = Poison("the write side", Path("/queue")), OSError("the first")
    poison.check()
    poison.set(first)
    poison.set(OSError("the second"))
    for _ in range(2):
        with pytest.raises(PoisonedError, match="Reopen") as caught:
            poison.check()
        assert caught.value.__cause__ is first
    assert text_said(caplog).count("is poisoned") == 1
    assert "the second" not in text_said(caplog)
