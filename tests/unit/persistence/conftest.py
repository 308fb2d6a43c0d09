"""An empty queue directory in a simulated storage."""

from __future__ import annotations

import pytest

from support.log_parts import LogParts


@pytest.fixture
def parts() -> LogParts:
    """Return the parts of an empty queue."""
    return LogParts()
