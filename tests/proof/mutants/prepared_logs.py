"""Bugs of the prepared log: what waits there and goes too early, or comes back."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

SUITE = "prepared log"

PREPARED_LOGS = (
    Mutation(
        "ended-not-synced",
        "A commit record ends before the frame that makes its entry void is on the disk.",
        "persistence/prepared_log/prepared_log.py",
        "        self.sync()\n        return not self._unwritten\n",
        "        return not self._unwritten\n",
        SUITE,
    ),
    Mutation(
        "ends-stay-missing",
        "What ended without a frame never gets one, and comes back when the outcome log forgets it.",
        "persistence/prepared_log/prepared_log.py",
        "            if self._unwritten and not self._is_closed:\n",
        "            if self._unwritten and self._writer is not None:\n",
        SUITE,
    ),
    Mutation(
        "moved-without-an-end",
        "What an opening finds moved is forgotten, so its commit record ends before its segment goes.",
        "persistence/prepared_log/emptying.py",
        "        if outcome is None and _is_moved(storage, directory, queue_id, entry, contents[entry.sequence].end):\n"
        "            outcome = OUTCOME_MOVED\n",
        "        if outcome is None and _is_moved(storage, directory, queue_id, entry, contents[entry.sequence].end):\n"
        "            continue\n",
        SUITE,
    ),
    Mutation(
        "newer-segment-first",
        "Opening removes the newest segment first, whose frames end entries of earlier ones.",
        "persistence/prepared_log/emptying.py",
        "    for sequence, content in contents.items():\n        if sequence < first_kept:\n",
        "    for sequence, content in reversed(contents.items()):\n        if sequence < first_kept:\n",
        SUITE,
    ),
    Mutation(
        "segment-removed-without-a-sync",
        "A segment may be back, when later ones with the ends of its entries are gone.",
        "persistence/prepared_log/emptying.py",
        "        storage.remove(directory.segment(sequence))\n    storage.sync_directory(directory.prepared)\n",
        "        storage.remove(directory.segment(sequence))\n",
        SUITE,
    ),
    Mutation(
        "torn-tail-counts",
        "What follows bytes that were never synced counts.",
        "persistence/prepared_log/segment_reader.py",
        "                break  # a torn tail: nothing behind it counts\n",
        "                continue\n",
        SUITE,
    ),
    Mutation(
        "no-witness",
        "Damage below what was synced is a torn tail, and what it takes goes without a word.",
        "persistence/prepared_log/segment_reader.py",
        "            if part.position >= content.witness:\n",
        "            if part.position >= content.end:\n",
        SUITE,
    ),
    Mutation(
        "damage-hides-nothing",
        "Bad bytes before an entry's last frame count as that entry alone, whatever ended in them.",
        "persistence/prepared_log/segment_reader.py",
        "hides_more=not begins_here",
        "hides_more=False",
        SUITE,
    ),
    Mutation(
        "move-without-a-durable-name",
        "The frame that says so is on the disk before the name of the batch file.",
        "queue/producer/waiting_batches.py",
        "            self._storage.sync_directory(self._directory.prepared)\n"
        "        except BaseException as error:\n"
        "            self.prepared.note_failure(error)",
        "            pass\n        except BaseException as error:\n            self.prepared.note_failure(error)",
        SUITE,
    ),
    Mutation(
        "half-a-move-is-forgotten",
        "The file of a move that was interrupted stays when its entry is decided, and is in doubt later.",
        "queue/producer/waiting_batches.py",
        "        leftovers.add(path)  # first",
        "        # first",
        SUITE,
    ),
    Mutation(
        "entry-without-a-reserve",
        "No space is kept to commit on a full disk what is prepared.",
        "persistence/prepared_log/segment_writer.py",
        "file.allocate(self._limit + capacity_bytes + _RESERVE_SLACK_BYTES)",
        "file.allocate(self._limit)",
        SUITE,
    ),
    Mutation(
        "prepared-without-the-token",
        "An owner that was replaced says that it has prepared.",
        "persistence/prepared_log/segment_writer.py",
        "                self.file.sync()\n                self._check_fence()\n",
        "                self.file.sync()\n",
        SUITE,
    ),
    Mutation(
        "another-waiting-file",
        "The commit record names a batch file, so it ends as soon as there is none.",
        "persistence/prepared_log/prepared_log.py",
        "            record = commit_record.waiting_in(writer.path)\n",
        "            record = commit_record.waiting_in(self._directory.batch_file(commit_record.id))\n",
        SUITE,
    ),
    Mutation(
        "entry-before-the-file",
        "An entry that has moved counts, and not its batch file.",
        "persistence/outcomes/waiting_puts.py",
        "        if each.batch is not None or each.id not in found:",
        "        if each.id not in found:",
        SUITE,
    ),
    Mutation(
        "space-back-with-entries",
        "A commit on a full disk cuts its segment behind itself, and takes the entries there.",
        "persistence/prepared_log/prepared_log.py",
        "            end = self._earlier[entry.sequence]\n",
        "            end = entry.end\n",
        SUITE,
    ),
    Mutation(
        "votes-of-a-damaged-segment",
        "A vote whose puts are among lost bytes counts as aborted.",
        "queue/prepared/prepared_transactions.py",
        "    damage = tuple(waiting.lost) if left_to_log else ()\n",
        "    damage = ()\n",
        SUITE,
    ),
)
