"""The room set aside for groups that begin on a full disk."""

from __future__ import annotations

import errno
import logging

import pytest

from holdfast.persistence.filesystem.reserve import RESERVE_BYTES, keep_reserve, spend_reserve
from support.builders.log_parts import LogParts
from support.processes.log_handlers import text_said
from support.storages.refusals import refusing


def reserved_bytes(parts: LogParts) -> int:
    """Return how much is set aside, after a loss of power."""
    content = parts.storage.crash_dropping_unsynced().tree().get(parts.directory.reserve)
    return len(content or b"")


def test_room_is_set_aside_once_and_given_back(parts: LogParts) -> None:
    """Giving back what is not there says so, without a word in the log."""
    keep_reserve(parts.storage, parts.directory)
    parts.storage.sync_directory(parts.directory.groups)
    assert reserved_bytes(parts) == RESERVE_BYTES
    count = parts.storage.mutation_count
    keep_reserve(parts.storage, parts.directory)
    assert parts.storage.mutation_count == count
    assert spend_reserve(parts.storage, parts.directory)
    assert reserved_bytes(parts) == 0
    assert not spend_reserve(parts.storage, parts.directory)


def test_on_a_full_disk_setting_room_aside_has_to_wait(parts: LogParts, caplog: pytest.LogCaptureFixture) -> None:
    """It is not an error, and the next time finds that it is still to be done."""
    with caplog.at_level(logging.INFO), refusing(parts.storage, "allocate", ".reserve", errno.ENOSPC):
        keep_reserve(parts.storage, parts.directory)
    assert "no space to reserve" in text_said(caplog)
    keep_reserve(parts.storage, parts.directory)
    parts.storage.sync_directory(parts.directory.groups)
    assert reserved_bytes(parts) == RESERVE_BYTES


def test_room_that_cannot_be_given_back_is_not_there(parts: LogParts, caplog: pytest.LogCaptureFixture) -> None:
    """And the log says why."""
    keep_reserve(parts.storage, parts.directory)
    with refusing(parts.storage, "remove", ".reserve", errno.EROFS):
        assert not spend_reserve(parts.storage, parts.directory)
    assert "cannot be used" in text_said(caplog)
