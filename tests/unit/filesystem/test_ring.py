"""Where what a ring holds ends, and its room begins."""

from __future__ import annotations

import pytest

from holdfast.persistence.filesystem.ring import used_bytes

BLOCK_BYTES = 4096


@pytest.mark.parametrize("room", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
@pytest.mark.parametrize("used", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_zeros_at_the_end_are_room(used: int, room: int) -> None:
    """To the byte, wherever blocks begin; zeros in between are none."""
    data = bytes(max(0, used - 1)) + b"x" * min(1, used) + bytes(room)
    assert used_bytes(data) == used
