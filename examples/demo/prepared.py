"""Kills a process that has prepared a transaction, and decides that transaction afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from holdfast import PersistentQueue
from holdfast.cli.demo.journal import JournalReader
from holdfast.cli.demo.victim import POLL_SECONDS, STALL_SECONDS, ChildFailedError, end

QUESTION = b"how strong was it?"
ANSWER = b"answer to " + QUESTION


class UndecidedError(Exception):
    """What was prepared is not what the next process finds."""


def kill_and_decide(directory: Path) -> tuple[str, str]:
    """Return how many transactions were decided after the kill, with a remark; raises where one is not as it was."""
    path, journal = directory / "questions", directory / "preparer.journal"
    with PersistentQueue(path) as queue:
        queue.put(QUESTION)
    kill_once_prepared(path, journal)
    with PersistentQueue(path) as queue:
        in_doubt = queue.prepared()
        if not in_doubt or not queue.empty():  # its message stays taken, and its answer invisible
            raise UndecidedError("a transaction that was prepared when its process died is not in doubt")
        for each in in_doubt:
            queue.commit_prepared(each.id)
        if queue.get_many(2, timeout=0) != [ANSWER]:
            raise UndecidedError("a transaction that was committed after a kill did not happen as a whole")
    sizes = ", ".join(f"{each.put_count} put and {each.ack_count} ack" for each in in_doubt)
    return f"{len(in_doubt)}", f"{sizes}: prepared, kill -9, committed by the next process"


def kill_once_prepared(queue: Path, journal: Path) -> None:
    """Start the process, and kill it as soon as its transaction is prepared."""
    command = [sys.executable, "-m", "examples.demo.processes.preparer", str(queue), str(journal)]
    deadline = time.monotonic() + STALL_SECONDS
    with (
        closing(JournalReader(journal)) as reader,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as process,
    ):
        try:
            while not any(words[0] == "prepared" for words in reader.read_new()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ChildFailedError("the preparer prepared nothing")
                time.sleep(POLL_SECONDS)
        finally:
            end(process)
