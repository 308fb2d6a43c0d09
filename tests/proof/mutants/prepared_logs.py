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
        "            outcome = OUTCOME_MOVED\n",
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
        "            storage.remove(path)\n    storage.sync_directory(directory.prepared)\n",
        "            storage.remove(path)\n",
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
        "            self.prepared.removals.set(error)",
        "            pass\n        except BaseException as error:\n            self.prepared.removals.set(error)",
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
        "file.allocate(self._limit + reserve_bytes)",
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
        "            return give_back(file, path, self._earlier[sequence], size)\n",
        "            return give_back(file, path, FRAMES_START, 2**30)\n",
        SUITE,
    ),
    Mutation(
        "reserve-for-anybody",
        "A put takes what a commit on a full disk has left of the data file that it was given space for.",
        "queue/producer/reserved_appends.py",
        "            writer.keep_room(is_kept=is_used or (is_kept and is_same))\n",
        "            pass\n",
        SUITE,
    ),
    Mutation(
        "reserve-spent-on-puts",
        "A put begins the next data file with space that was reserved for what is prepared.",
        "queue/producer/write_side.py",
        "        self._reserved.leave()\n        self._prepare_to_leave()\n",
        "        self._prepare_to_leave()\n",
        SUITE,
    ),
    Mutation(
        "closed-before-its-sync",
        "A close that is interrupted lets a prepare return that nothing has synced.",
        "persistence/prepared_log/prepared_log.py",
        "                self._writer.close()\n                self._earlier[self._last] = self._writer.end\n"
        "                self._writer = None\n",
        "                writer, self._writer = self._writer, None\n                writer.close()\n"
        "                self._earlier[self._last] = writer.end\n",
        SUITE,
    ),
    Mutation(
        "reserve-moves-out",
        "An opening on a full disk gives the reserve back, and moved entries take more than it has.",
        "persistence/prepared_log/emptying.py",
        "    return False  # what is reserved in its segment is for committing it\n",
        "    with storage.open(entry.path) as file:\n"
        "        file.truncate(entry.end)\n"
        "    with suppress(DiskFullError):\n"
        "        move_entry(storage, directory, queue_id, entry, entry_messages(storage, entry))\n"
        "        return True\n"
        "    return False\n",
        SUITE,
    ),
    Mutation(
        "another-of-the-same-id",
        "Who has listed an entry that is committed meanwhile removes what has its id now.",
        "queue/prepared/prepared_transactions.py",
        "    return batch is not None and batch.commit_record.nonce == found.nonce\n",
        "    return batch is not None\n",
        SUITE,
    ),
    Mutation(
        "prepared-beside-a-lost-name",
        "A transaction is prepared though a sync of its directory has failed before.",
        "queue/producer/waiting_batches.py",
        "            self.prepared.removals.check()\n            self._check_new(commit_record.id)\n            entry",
        "            self._check_new(commit_record.id)\n            entry",
        SUITE,
    ),
    Mutation(
        "prepared-under-an-id-that-was-chosen",
        "A transaction is prepared under its own id, which another one has chosen: that one is never decided.",
        "queue/prepared/prepared_resolver.py",
        "(waits_here if is_new else is_in_doubt)(handle, transaction_id)\n",
        "not is_new and is_in_doubt(handle, transaction_id)\n",
        "chosen ids",
    ),
    Mutation(
        "prepare-without-memory-aborted",
        "A prepare runs out of memory behind its write: it is said to be aborted, and waits for its outcome.",
        "queue/transactions/transaction.py",
        "        except (HoldfastError, ShutDown) as error:\n"
        "            if isinstance(error, TransactionStateError) and self._handle.producer",
        "        except Exception as error:\n"
        "            if isinstance(error, TransactionStateError) and self._handle.producer",
        "interrupted transactions",
    ),
    Mutation(
        "damage-of-any-vote",
        "A transaction that is just being prepared counts as damaged, and is aborted as such.",
        "persistence/prepared_log/waiting_entries.py",
        "if self.without_puts is None or nonce in self.without_puts else ()",
        "",
        SUITE,
    ),
    Mutation(
        "votes-of-a-damaged-segment",
        "A vote whose puts are among lost bytes counts as aborted.",
        "queue/prepared/prepared_transactions.py",
        "    damage = waiting.lost_of(vote.nonce) if left_to_log else ()\n",
        "    damage = ()\n",
        SUITE,
    ),
)
