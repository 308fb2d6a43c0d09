"""A handle of the mode "shared": in one process, and in several."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast import ConfigError, PersistentQueue
from support.processes.children import child


def _hold(path: Path, ready: Path) -> None:
    with PersistentQueue(path, mode="shared"):
        ready.touch()
        signal.pause()


def _wait_for(path: Path) -> None:
    while not path.exists():
        os.sched_yield()


def test_the_first_handle_owns_the_queue_and_the_second_is_its_client(tmp_path: Path) -> None:
    """Both put and take."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared") as first,
        PersistentQueue(tmp_path / "q", mode="shared") as second,
    ):
        assert (first.is_owner, second.is_owner) == (True, False)
        assert [first.put(b"a"), second.put(b"b")] == [0, 1]
        assert [second.get(timeout=5), first.get(timeout=5)] == [b"a", b"b"]


def test_a_client_takes_over_if_the_owner_is_killed_and_keeps_what_it_has_in_hand(tmp_path: Path) -> None:
    """Nothing that was put is lost, and nothing that was acknowledged comes again."""
    path, ready = tmp_path / "q", tmp_path / "ready"
    with child(lambda: _hold(path, ready)) as owner:
        _wait_for(ready)
        with PersistentQueue(path, mode="shared") as queue:
            assert not queue.is_owner
            queue.put_many([b"a", b"b"])
            delivery = queue.receive(timeout=5)
            owner.kill()
            owner.wait()
            assert queue.put(b"c") == 2
            assert queue.is_owner
            delivery.ack()
            assert [queue.get(timeout=5), queue.get(timeout=5)] == [b"b", b"c"]
            assert queue.stats().depth == 0


@pytest.mark.parametrize("is_owner", [True, False])
def test_settings_that_a_handle_changes_count_for_it_at_once(tmp_path: Path, is_owner: bool) -> None:
    """Whatever it asked for when it was opened; the owner changes them."""
    path = tmp_path / "q"
    with (
        PersistentQueue(path, mode="shared", record_bytes_max=10) as first,
        PersistentQueue(path, mode="shared", record_bytes_max=10) as second,
    ):
        queue = first if is_owner else second
        queue.configure(record_bytes_max=20, max_deliveries=3)
        assert (queue.settings["record_bytes_max"], queue.settings["max_deliveries"]) == (20, 3)
        assert queue.put(bytes(20)) == 0
    with PersistentQueue(path) as queue:
        assert queue.settings["record_bytes_max"] == 20


def test_a_handle_that_may_not_own_is_only_a_client(tmp_path: Path) -> None:
    """The owner may be in the same process."""
    with (
        PersistentQueue(tmp_path / "q", mode="shared") as owner,
        PersistentQueue(tmp_path / "q", mode="shared", can_own=False) as client,
    ):
        client.put(b"a")
        assert not client.is_owner
        assert owner.get(timeout=5) == b"a"


def test_only_a_shared_handle_may_give_up_owning(tmp_path: Path) -> None:
    """The others own what they open."""
    with pytest.raises(ConfigError, match="can_own"):
        PersistentQueue(tmp_path / "q", can_own=False)


def test_an_exclusive_handle_between_two_owners_keeps_what_a_client_has_sent_and_what_it_has_in_hand(
    tmp_path: Path,
) -> None:
    """The client lives: its put is not done twice, and its delivery is given to no other process."""
    path, ready = tmp_path / "q", tmp_path / "ready"
    with child(lambda: _hold(path, ready)) as owner:
        _wait_for(ready)
        with PersistentQueue(path, mode="shared") as client:
            client.put_many([b"a", b"b"])
            delivery = client.receive(timeout=5)
            owner.kill()
            owner.wait()
            with PersistentQueue(path) as between:
                assert between.get(timeout=0) == b"b"
                assert between.stats().in_flight == 1
            delivery.ack()
            assert client.stats().depth == 0
