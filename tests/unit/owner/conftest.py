"""For the tests of owners without sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.owners.served import close_all


@pytest.fixture(autouse=True)
def no_owner_is_left() -> Iterator[None]:
    """Close the owners of each test: thousands of their threads would slow all other tests down."""
    yield
    close_all()
