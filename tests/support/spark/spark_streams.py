"""Does to the reader of a stream what Spark does, without a JVM: asks, keeps a checkpoint of its own kind, commits.

Offsets go through JSON text and are compared as such; the reader goes through a pickle, and a restart makes a new one.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any


def sent(value: Any) -> Any:
    """Return what another process would get."""
    return pickle.loads(pickle.dumps(value))


class StreamRun:
    """One streaming query over its life, restarts included.

    Parameters
    ----------
    path, checkpoint
        The queue, and the directory of the checkpoint.
    options
        Of the stream.

    Attributes
    ----------
    rows : dict of int to list
        What each batch gave that was run to its end: offsets and payloads.
    queues : list of str
        The queues of the rows that were run last, for a stream of many.
    """

    def __init__(self, path: Path, checkpoint: Path, **options: Any) -> None:
        self._path = path
        self._checkpoint = checkpoint
        self.options = options
        self.rows: dict[int, list[tuple[int, bytes]]] = {}
        self.queues: list[str] = []
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        self.restart()

    def restart(self, *, available_now: bool = False) -> None:
        """Go on in another process."""
        self.reader = self.new_reader()
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def new_reader(self) -> Any:
        """Return a reader as every process of Spark makes one."""
        from pyspark.sql.types import StructType

        from holdfast.spark.data_source import HoldfastDataSource

        texts = {name.lower(): str(value) for name, value in self.options.items()}
        source = sent(HoldfastDataSource({"path": str(self._path), **texts}))
        schema = source.schema()
        names = [name for name in ("queue", "offset", "payload") if name in schema.names]
        return source.streamReader(StructType([schema[name] for name in names]))

    # -- The checkpoint ----------------------------------------------------------------------------------------------

    def numbers(self, kind: str) -> list[int]:
        """Return the batches in ``offsets`` or ``commits``, ascending."""
        return sorted(int(entry.name) for entry in (self._checkpoint / kind).iterdir() if entry.name.isdecimal())

    def text(self, number: int) -> str:
        """Return where a batch ends, as it stands in the checkpoint."""
        return (self._checkpoint / "offsets" / str(number)).read_text().splitlines()[2]

    def offset(self, number: int) -> int:
        """Return the offset behind a batch."""
        return int(json.loads(self.text(number))["offset"])

    def forget(self, count: int) -> None:
        """Lose the latest batches of the checkpoint, as a power failure may."""
        for number in self.numbers("offsets")[-count:] if count else ():
            for kind in ("offsets", "commits"):
                (self._checkpoint / kind / str(number)).unlink(missing_ok=True)
            self.rows.pop(number, None)

    # -- What Spark does ---------------------------------------------------------------------------------------------

    def plan(self) -> int | None:
        """Return the batch that comes next, its offsets noted; None where there is nothing new."""
        known = self.numbers("offsets")
        number = len(known)
        if known != self.numbers("commits"):  # it was noted, and what came of it is not known
            return known[-1]
        start = self.text(number - 1) if known else json.dumps(self.reader.initialOffset())
        if not known:  # Spark keeps it until the first batch
            (self._checkpoint / "initial").write_text(start)
        end = json.dumps(self.reader.latestOffset(json.loads(start), self.reader.getDefaultReadLimit()))
        if end == start:
            return None
        (self._checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{end}")
        if known:
            self.reader.commit(json.loads(start))
        return number

    def run(self, number: int) -> list[tuple[int, bytes]]:
        """Return what a batch gives."""
        start = self.text(number - 1) if number else (self._checkpoint / "initial").read_text()
        tasks = sent(list(self.reader.partitions(json.loads(start), json.loads(self.text(number)))))
        reader = sent(self.new_reader())
        batches = [batch for task in tasks for batch in reader.read(task)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        self.queues = [row["queue"] for row in rows if "queue" in row]
        return [(row["offset"], row["payload"]) for row in rows]

    def finish(self, number: int, rows: list[tuple[int, bytes]]) -> None:
        """Note that a batch is done."""
        self.rows[number] = rows
        (self._checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def batch(self) -> list[int] | None:
        """Run the next batch to its end; return its offsets, or None where there is none."""
        number = self.plan()
        if number is None:
            return None
        self.finish(number, self.run(number))
        return [offset for offset, _ in self.rows[number]]

    def all(self) -> list[list[int]]:
        """Run batches until there is nothing new; return the offsets of each."""
        found = []
        while (batch := self.batch()) is not None:
            found.append(batch)
        return found
