"""``FlushPolicy.every(commits=n)``: the n-th commit syncs those before it too, in whichever order they were counted."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast import FlushPolicy, PersistentQueue
from support.builders.handles import handle_of


def test_the_commit_that_syncs_covers_those_that_were_counted_before(tmp_path: Path) -> None:
    """Two threads append; the second one is counted first, so the first one's turn comes to sync for both."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", flush=FlushPolicy.every(commits=2)) as queue:
        side = handle_of(queue).require_write_side()
        writer = side._writer  # the race itself cannot be had at will
        offsets = [side._append(b"first", b""), side._append(b"second", b"")]
        for offset in reversed(offsets):
            side._commit(offset + 1)
        assert writer.synced[2] == 2


def test_the_commit_behind_one_whose_sync_was_interrupted_syncs_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else twice as many could be lost as the policy says."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", flush=FlushPolicy.every(commits=3)) as queue:
        side = handle_of(queue).require_write_side()
        queue.put(b"")
        queue.put(b"")
        with monkeypatch.context() as patched:
            patched.setattr(side._commits, "wait", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                queue.put(b"")
        queue.put(b"")
        assert side._writer.synced[2] == 4
        queue.put(b"")
        assert side._writer.synced[2] == 4
