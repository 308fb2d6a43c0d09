"""The process that runs the Spark job: it is killed while it writes a batch, and runs to its end the next time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from examples.spark.events import Stream
from holdfast.cli.demo.journal import JournalReader
from holdfast.cli.demo.victim import POLL_SECONDS, ChildFailedError, end

STALL_SECONDS = 120.0
"""A job that notes nothing for so long hangs. Starting Spark takes a few seconds, on a busy machine some more."""

LOG_LINES_SHOWN = 15


class Job:
    """One run of ``processes/job.py``, with all that it starts.

    Parameters
    ----------
    directory : Path
        Holds queues and tables, the journal of this run, and what Spark has to say.
    arguments
        What the script is given behind the directory.

    Attributes
    ----------
    first_batches : dict of str to str
        By queue the id of the batch that it began with.
    committed : Counter of str
        By queue how many batches were committed.
    failure : str
        What the job found to be wrong; empty where nothing.
    """

    def __init__(self, directory: Path, *arguments: object) -> None:
        self.first_batches: dict[str, str] = {}
        self.committed: Counter[str] = Counter()
        self.failure = ""
        self._directory = directory
        self._log = directory / "spark.log"
        self._writing = ("", "")
        self._spark_files = directory / "spark"
        self._spark_files.mkdir()
        journal = directory / "job.journal"
        journal.unlink(missing_ok=True)
        self._journal = JournalReader(journal)
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C reaches the example alone, and a kill reaches Python and Java at once.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.spark.processes.job", str(directory), *map(str, arguments)],
                env=os.environ | {"TMPDIR": str(self._spark_files)},
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def kill_while_writing(self, stream: Stream, committed_count: int) -> str:
        """Kill it while it writes a batch, behind so many committed ones of that queue; return the batch's id."""
        self._wait(lambda: self.committed[stream.name] >= committed_count and self._hold_while_writing(stream))
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return self._writing[1]

    def finish(self) -> None:
        """Wait until it has done its work."""
        self._wait(lambda: self._process.poll() is not None)
        self._read_journal()
        if self._process.returncode and not self.failure:
            raise self._failed(f"ended with exit status {self._process.returncode}")

    def close(self) -> None:
        """End it, whatever it does, and remove what Spark has left."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # Java outlives its Python by a moment
        end(self._process)
        self._journal.close()
        shutil.rmtree(self._spark_files, ignore_errors=True)

    def _hold_while_writing(self, stream: Stream) -> bool:
        """Stop the job in the middle of a batch; return whether it worked: it may be faster than who looks at it."""
        name, batch_id = self._writing
        folder = stream.table(self._directory) / f"batch_id={batch_id}"
        if name != stream.name or not has_rows(folder) or is_whole(folder):
            return False
        os.killpg(self._process.pid, signal.SIGSTOP)
        if not is_whole(folder):
            return True
        os.killpg(self._process.pid, signal.SIGCONT)
        return False

    def _wait(self, is_over: Callable[[], bool]) -> None:
        last_progress = time.monotonic()
        while not is_over():
            if self._read_journal():
                last_progress = time.monotonic()
            if self._process.poll() is not None and not is_over():
                raise self._failed("ended before it was killed")
            if time.monotonic() - last_progress > STALL_SECONDS:
                raise self._failed(f"did nothing for {STALL_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def _read_journal(self) -> bool:
        lines = self._journal.read_new()
        for words in lines:
            match words:
                case ["writing", name, batch_id]:
                    self._writing = (name, batch_id)
                    self.first_batches.setdefault(name, batch_id)
                case ["committed", name, _]:
                    self.committed[name] += 1
                case ["failed", *failure]:
                    self.failure = " ".join(failure)
        return bool(lines)

    def _failed(self, what: str) -> ChildFailedError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return ChildFailedError(
            "\n".join([f"the Spark job {what}; the end of {self._log}:", *lines[-LOG_LINES_SHOWN:]])
        )


def has_rows(folder: Path) -> bool:
    """Tell whether a task has begun to write into the directory of a batch."""
    return any(name.startswith("part-") for _, _, names in os.walk(folder) for name in names)


def is_whole(folder: Path) -> bool:
    """Tell whether Spark has said that nothing of a batch is missing."""
    return (folder / "_SUCCESS").exists()
