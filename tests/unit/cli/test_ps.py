"""``holdfast ps``."""

import os
import socket
from pathlib import Path

from holdfast import PersistentQueue
from support.processes.cli import done


def test_ps_lists_owner_and_clients_with_what_they_have_in_hand(tmp_path: Path) -> None:
    """One line for each handle, the longest first."""
    path = tmp_path / "mail"
    with PersistentQueue(path, mode="shared") as owner, PersistentQueue(path, mode="shared") as client:
        owner.put_many([b"a", b"b", b"c"])
        held = client.receive_many(2, timeout=5)
        first, second = done("ps", path, "--json").document
        assert [first["role"], second["role"]] == ["owner", "owner"], "both are handles of the process that owns"
        assert {first["pid"], second["pid"]} == {os.getpid()}
        assert first["host"] == socket.gethostname()
        assert first["started_ns"] < second["started_ns"]
        assert [first["in_hand"], second["in_hand"]] == [{}, {"default": 2}]
        lines = done("ps", path).text.splitlines()
        assert lines[0].split() == ["SESSION", "ROLE", "PROCESS", "HOST", "OPEN", "FOR", "IN", "HAND"]
        assert lines[2].split()[0] == second["session"]
        assert lines[2].endswith("default: 2")
        held.ack()


def test_ps_says_if_no_process_shares_the_queue(tmp_path: Path) -> None:
    """A queue that is closed, or that one process owns alone."""
    path = tmp_path / "mail"
    with PersistentQueue(path, mode="exclusive"):
        assert done("ps", path).text == f"no process shares {path}\n"
        assert done("ps", path, "--json").document == []


def test_ps_lists_a_session_whose_note_is_missing(tmp_path: Path) -> None:
    """It was written on a full disk."""
    path = tmp_path / "mail"
    with PersistentQueue(path, mode="shared"):
        [lock] = (path / ".owner" / "sessions").glob("*.lock")
        lock.write_bytes(b"")
        [row] = done("ps", path, "--json").document
        assert (row["session"], row["role"], row["pid"], row["started_ns"]) == (lock.stem, "client", None, None)
        assert done("ps", path).text.splitlines()[1].split()[1:5] == ["client", "?", "?", "-"]
