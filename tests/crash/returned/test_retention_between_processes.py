"""Retention by the owner, in its own thread, while another process has messages of the queue in hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from holdfast.queue.engine import retention
from holdfast.threads import start_thread
from support.processes.threads import wait_until

CLIENT = """
import sys
from holdfast import LeaseExpiredError, PersistentQueue

with PersistentQueue(sys.argv[1], can_own=False) as queue:
    delivery = queue.receive(timeout=30, lease_seconds=600)
    print(delivery.offset, flush=True)
    sys.stdin.readline()
    try:
        delivery.ack()
    except LeaseExpiredError as error:
        print(error, flush=True)
    print(queue.receive(timeout=30).offset, flush=True)
"""


def test_a_process_is_told_that_the_owner_has_skipped_what_it_has_in_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on with the first message that is still there."""
    monkeypatch.setattr(retention, "start_thread", start_thread)
    monkeypatch.setattr(retention, "PASS_SECONDS", 0.2)
    path = tmp_path / "queue"
    with PersistentQueue(path, data_file_max_age=0.2, max_lag_age=0.5, lease_seconds=600) as owner:
        owner.put(b"in hand")
        assert owner.is_owner
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with client:
            assert client.stdin is not None
            assert client.stdout is not None
            assert client.stdout.readline() == "0\n"

            def has_skipped() -> bool:
                owner.put(b"more")
                return owner.stats().skipped > 0

            wait_until(has_skipped, 60)
            client.stdin.write("\n")
            client.stdin.flush()
            told = client.stdout.readline()
            assert "offset 0 was taken away and is finished: its group was moved by seek, or skipped it" in told
            assert int(client.stdout.readline()) > 0
        assert client.returncode == 0
        assert owner.stats().first_offset > 0
        assert owner.stats().lost == 0
