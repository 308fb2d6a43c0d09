"""Asks the second reader of the prepared log what a crash has left, before a recovery empties it, and compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from proof.crash_states.oracle import Seen
from support.models.prepared_log_model import ModelEntry, ModelLog, read_log
from support.storages.simulated_storage import SimulatedStorage

KEPT_MAX = 128
"""What so many prepared logs say is kept: the same ones come from many crashes."""


class LeftPrepared:
    """What waits in ``prepared/`` of each queue of a disk, read before anybody opens them.

    Parameters
    ----------
    storage : SimulatedStorage
        What a crash has left.
    names : sequence of str
        The queues.
    """

    def __init__(self, storage: SimulatedStorage, names: Sequence[str]) -> None:
        files = {path: content for path, content in storage.tree().items() if content is not None}
        self._logs = {name: _log_of(files, name) for name in names}
        self._batches = {
            name: {path.name.partition(".batch")[0] for path in files if path.parent == Path("/", name, "prepared")}
            for name in names
        }
        self._decided = {
            name: b"".join(content for path, content in files.items() if _may_decide(path, name))
            for name, log in self._logs.items()
            if log.segments
        }

    def compare(self, seen: Mapping[str, Seen]) -> None:
        """Raise AssertionError if a recovery has found anything else in doubt than is in the files."""
        for name, log in self._logs.items():
            if not log.segments:
                continue
            assert not log.is_damaged, f"damage where there was a crash: {log}"
            in_doubt = {(transaction_id, puts) for transaction_id, puts, _ in seen[name].in_doubt}
            waiting = {entry.id for entry in log.not_ended} | self._batches[name]
            unknown = {transaction_id for transaction_id, puts in in_doubt if puts} - waiting
            assert not unknown, f"{unknown} of {name} are in doubt, and no file says so"
            for entry in log.not_ended:
                self._check(name, entry, in_doubt)

    def _check(self, name: str, entry: ModelEntry, in_doubt: set[tuple[str, int]]) -> None:
        assert entry.waiting_file == f"prepared/{entry.segment}", f"{entry} is elsewhere"
        assert entry.puts is not None
        if (entry.id, len(entry.puts)) in in_doubt:
            return
        is_decided = entry.nonce.hex().encode() in self._decided[name] or entry.nonce in self._decided[name]
        assert is_decided, f"{entry} of {name} is undecided, and not in doubt"


def _log_of(files: Mapping[Path, bytes], name: str) -> ModelLog:
    found = {path.name: content for path, content in files.items() if path.parent == Path("/", name, "prepared")}
    return _read(tuple(sorted((file, content) for file, content in found.items() if file.endswith(".log"))))


@lru_cache(maxsize=KEPT_MAX)
def _read(files: tuple[tuple[str, bytes], ...]) -> ModelLog:
    return read_log(dict(files))


def _may_decide(path: Path, name: str) -> bool:
    """Whether a file may hold the nonce of a transaction that was decided: the log's, and the memory of outcomes."""
    return path.parent == Path("/", name, "data") or path == Path("/", name, "prepared", "decided")
