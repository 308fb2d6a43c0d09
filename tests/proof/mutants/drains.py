"""Bugs in drains: batches that are half there, or committed and not written; losses that are not told."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

DRAINS = (
    Mutation(
        "rows-of-a-batch-not-synced",
        "A batch has its name on the disk, and its rows are lost with the power.",
        "arrow/writing/batch_files.py",
        "            file.sync()\n",
        "",
        "drains",
    ),
    Mutation(
        "files-of-a-batch-without-names",
        "A batch has its name on the disk, and its files have not.",
        "arrow/writing/batch_files.py",
        "            self._storage.sync_directory(directory)\n",
        "            pass\n",
        "drains",
    ),
    Mutation(
        "name-of-a-batch-not-synced",
        "Messages are acknowledged, and the directory with their rows is lost with the power.",
        "arrow/writing/directory_writer.py",
        "            self._storage.sync_directory(self._base)\n",
        "",
        "drains",
    ),
    Mutation(
        "earlier-batch-removed-in-its-place",
        "Who reads while a batch is replaced finds half of the earlier attempt under its name.",
        "arrow/writing/directory_writer.py",
        "                self._storage.rename(place, old)\n",
        "                _remove_tree(self._storage, place)\n",
        "drains",
    ),
    Mutation(
        "failed-batch-committed",
        "A function raises, and the messages of its batch never come again.",
        "arrow/draining/queue_drain.py",
        "then it still runs\n                self._running.popleft()\n",
        "then it still runs\n                self.queue.reservations.commit(self._running.popleft().reservation)\n",
        "drains",
    ),
    Mutation(
        "notes-of-another-batch-removed",
        "Messages that a batch in flight has lost are in no report, since one before it was committed meanwhile.",
        "arrow/draining/queue_drain.py",
        "notes.remove([*(each.reservation.id for each in self._running), *(each.id for each in self._resumed)])\n",
        "notes.remove([each.id for each in self._resumed])\n",
        "drains",
    ),
    Mutation(
        "failed-queue-unsaid",
        "A drain of many queues ends as if all were well, and one of them was never drained.",
        "arrow/draining/many_drains.py",
        "        if self._errors:\n",
        "        if len(self._errors) == len(reports):\n",
        "drains",
    ),
    Mutation(
        "batches-write-behind-the-end-of-their-drain",
        "An interrupted drain ends, and the next one begins, while its batches still write.",
        "arrow/draining/queue_drain.py",
        "        for batch in (each for each in self._running if each.thread is not None):\n",
        "        for batch in ():\n",
        "drains",
    ),
    Mutation(
        "rows-end-with-their-function",
        "A reader that is kept ends early, and passes for a batch with fewer rows.",
        "arrow/draining/drainer.py",
        "        if self._is_closed:  # an end here would pass for the end of the batch\n            raise UsageError(",
        "        if self._is_closed:\n            raise StopIteration(",
        "drains",
    ),
    Mutation(
        "losses-not-told",
        "Damaged messages of a batch are left out, and acknowledged, and no report names them.",
        "arrow/draining/drainer.py",
        "            LossNotes(OsStorage(), plan.notes).write(plan.batch_id, damage)\n",
        "            del damage\n",
        "drains",
    ),
    Mutation(
        "jvm-of-a-killed-drain-not-waited-for",
        "A batch is written while the JVM of a killed drain moves its own files to the same place.",
        "arrow/draining/drainer.py",
        "            wait_for_driver(QueueDirectory(queue.path).group(queue.group))\n",
        "",
        "drains",
    ),
    Mutation(
        "filter-drops-the-rest",
        "A scan ends with the first record batch that the filter leaves empty.",
        "arrow/scanning.py",
        "        yield from (each for each in rows.to_batches() if each.num_rows)\n",
        "        if not rows.num_rows:\n            return\n        yield from rows.to_batches()\n",
        "drains",
    ),
)
"""In the order in which they are tried."""
