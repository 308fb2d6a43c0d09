"""Bugs where the suites once varied nothing: each class here had one that was planted from outside and survived.

Two threads on one file, what each verb has made durable when it returns, a second and slower group, ids of an adopted
batch, priorities, order keys of a retried dead letter, what a piece that was kept does behind a refused call, and the
sizes of files.
"""

from __future__ import annotations

from proof.mutants.mutation import Mutation

BLIND_SPOTS = (
    # -- Two threads on one file -------------------------------------------------------------------------------------
    Mutation(
        "taken-before-synced",
        "A consumer in the same process is given a message whose put still waits for its sync.",
        "queue/producer/write_side.py",
        'attrgetter("synced" if self._synced_only else "end")',
        'attrgetter("end")',
        "durable",
    ),
    Mutation(
        "lock-taken-before-its-block",
        "Ctrl-C between taking the sync lock and the block that releases it: every later put waits for ever.",
        "persistence/log/segment_writer.py",
        "        if not self._sync_lock.locked():\n            self.check_fence()\n",
        "        if self._sync_lock.acquire(blocking=False):\n"
        "            try:\n                self._check_fence_locked()\n"
        "            finally:\n                self._sync_lock.release()\n",
        "interrupted",
    ),
    # -- Returned means durable --------------------------------------------------------------------------------------
    Mutation(
        "dead-retry-not-synced",
        "Retrying or discarding dead letters returns, and a loss of power takes it back.",
        "queue/consumer/read_side.py",
        "            ticket = progress_store.end\n        self._settle(ticket)\n        self._source.wake()\n",
        "        self._source.wake()\n",
        "returned",
    ),
    Mutation(
        "purge-not-synced",
        "A purge returns, and its messages come again after a loss of power.",
        "queue/consumer/read_side.py",
        "            self._settle(ticket)\n            self._source.wake()\n            purged_count",
        "            self._source.wake()\n            purged_count",
        "returned",
    ),
    Mutation(
        "dead-letter-not-synced",
        "A rejected message is a dead letter in memory, and comes again after a loss of power.",
        "queue/consumer/read_side.py",
        "            self._settle(ticket)\n\n    def _in_step",
        "            self._space_available.notify()\n\n    def _in_step",
        "returned",
    ),
    Mutation(
        "group-without-a-name",
        "A group is made, and its directory has no name that a loss of power would leave.",
        "persistence/groups/group_files.py",
        "    try:\n        storage.sync_directory(directory.groups)\n    except OSError:  # a second",
        "    try:\n        storage.list(directory.groups)\n    except OSError:  # a second",
        "returned",
    ),
    Mutation(
        "deleted-group-comes-back",
        "A deleted group is there again after a loss of power.",
        "persistence/groups/group_files.py",
        "    try:\n        storage.sync_directory(path)\n    except OSError:  # a second",
        "    try:\n        storage.list(path)\n    except OSError:  # a second",
        "returned",
    ),
    Mutation(
        "pause-without-a-name",
        "The pause of a group that has not begun is lost with the name of its directory.",
        "persistence/groups/pause_file.py",
        "        storage.sync_directory(directory.parent)  # may be unsynced",
        "        storage.list(directory.parent)  # may be unsynced",
        "durable",
    ),
    Mutation(
        "resume-not-synced",
        "A group that was resumed is paused again after a loss of power.",
        "persistence/groups/pause_file.py",
        "    except MISSING:\n        return\n    storage.sync_directory(directory)\n",
        "    except MISSING:\n        return\n",
        "returned",
    ),
    Mutation(
        "decision-without-puts-not-synced",
        "A transaction that only acknowledges waits for the sync of the last put, which was done long ago.",
        "queue/producer/write_side.py",
        "            self._commits.wait(offsets.stop)\n        else:  # no offset tells a sync that covers it "
        "from one that does not\n            self._writer.sync()\n",
        "            self._commits.wait(offsets.stop)\n        else:\n            self._commits.wait(offsets.stop)\n",
        "durable",
    ),
    Mutation(
        "decision-ends-early",
        "A decision ends while the acknowledgements that follow from it are in no position file yet.",
        "queue/transactions/branch.py",
        "            self.needs |= {OwnFile.GROUP}\n            return\n        for each in acked:",
        "            return\n        for each in acked:",
        "durable",
    ),
    Mutation(
        "reservation-not-synced",
        "A reservation is handed out, and a loss of power hands its messages to somebody else.",
        "queue/consumer/read_side.py",
        "        self._require_progress_store().sync(ticket)\n        return vote\n",
        "        return vote\n",
        "returned",
    ),
    Mutation(
        "adopted-batch-without-a-name",
        "A large transaction becomes a data file as it is, and the file has no name that a loss of power would leave.",
        "persistence/log/log_writer.py",
        "            self._storage.sync_directory(self._directory.data)\n            self._files.add(name, size)\n",
        "            self._files.add(name, size)\n",
        "families",
    ),
    Mutation(
        "bounded-put-not-synced",
        "A put into a queue with a bound waits for the sync of the message before its own.",
        "queue/producer/write_side.py",
        "        self._commit(offset + count)\n        if self._flusher.idle",
        "        self._commit(offset)\n        if self._flusher.idle",
        "durable",
    ),
    Mutation(
        "close-leaves-progress-unsynced",
        "Closing under a policy that does not sync lets go of the position file as it is.",
        "persistence/groups/position_file_writer.py",
        "                self.sync()\n                self._leave_witness()\n",
        "                self._leave_witness()\n",
        "returned",
    ),
    # -- More than one group -----------------------------------------------------------------------------------------
    Mutation(
        "slowest-group-not-asked",
        "Of several other groups only the first is asked whether a data file may go.",
        "persistence/groups/reclaim.py",
        "for reader in readers:\n        if finished:",
        "for reader in readers[:1]:\n        if finished:",
        "several groups",
    ),
    Mutation(
        "other-groups-not-synced",
        "A data file goes while it is not on the disk yet that another group has finished it.",
        "persistence/groups/reclaim.py",
        "        finished = _finished_by(make_durable(storage, directory, clock, group, reader), finished)\n",
        "        finished = _finished_by(reader.refresh(), finished)\n",
        "several groups",
    ),
    Mutation(
        "group-starts-where-files-were",
        "A new group chooses its start before it holds the lock, so files in front of it may go meanwhile.",
        "queue/inspect/groups.py",
        "            with self._handle.groups_locked():\n"
        "                group = find_group(self._storage, self._directory, name)\n"
        "                if group is None:\n"
        "                    first = find_start(self._handle, start).offset\n",
        "            first = find_start(self._handle, start).offset\n"
        "            with self._handle.groups_locked():\n"
        "                group = find_group(self._storage, self._directory, name)\n"
        "                if group is None:\n",
        "several groups",
    ),
    Mutation(
        "retiring-does-not-lock",
        "Files are retired without the lock under which groups are made.",
        "persistence/groups/reclaim.py",
        "    return groups_locked(files.storage, directory, clock).run(retire)",
        "    return retire()",
        "several groups",
    ),
    # -- Deduplication, priorities, order keys -----------------------------------------------------------------------
    Mutation(
        "ids-before-an-adopted-batch-forgotten",
        "Adopting a large batch leaves a data file, and keeps none of the ids that only this file says.",
        "queue/producer/write_side.py",
        "            self._writer.check_fence()\n            self._prepare_to_leave()\n            offsets",
        "            self._writer.check_fence()\n            offsets",
        "features",
    ),
    Mutation(
        "adopted-priorities-overlooked",
        "Prioritized messages of an adopted batch are not looked for ahead.",
        "persistence/log/log_writer.py",
        "                self.prioritized_end = first + batch.message_count\n",
        "                self.prioritized_end = max(self.prioritized_end, first)\n",
        "features",
    ),
    Mutation(
        "priorities-without-a-name",
        "That there are priorities is forgotten with a loss of power, so prioritized messages come in their order.",
        "persistence/index/priorities.py",
        "                self._storage.sync_directory(self._path.parent)\n",
        "",
        "features",
    ),
    Mutation(
        "retried-letter-jumps-its-key",
        "A retried dead letter is handed out beside another message of its order key.",
        "queue/dispatch/dispatcher.py",
        "            self.deferred.admit_deferred(record, options)\n\n    def read_anew",
        "            self.deferred.put_back([record])\n\n    def read_anew",
        "features",
    ),
    Mutation(
        "turns-forgotten-at-reading-anew",
        "Reading the log anew forgets which messages in flight have the turn of their order key.",
        "queue/dispatch/deferred_messages.py",
        "            if key := decode_options(delivery.record[2]).order_key:\n                self._keys.enter(key, "
        "delivery.offset, 0)\n",
        "            decode_options(delivery.record[2])\n",
        "features",
    ),
    # -- Behind a refused call ---------------------------------------------------------------------------------------
    Mutation(
        "refused-group-made-over-a-lost-name",
        "Making a group again syncs a name that the failed sync before may have lost.",
        "persistence/groups/group_files.py",
        "            for each in _unsynced(storage, directory, name):\n",
        "            for each in _unsynced(storage, directory, name) - {name}:\n",
        "refused calls",
    ),
    Mutation(
        "refused-resume-stays-removed",
        "Resuming again finds no pause, and calls the removal durable whose sync has failed.",
        "queue/consumer/pausing.py",
        "                self._put_back(error)\n                raise\n",
        "                raise\n",
        "refused calls",
    ),
    Mutation(
        "refused-prepare-over-a-lost-name",
        "Preparing again syncs the name of a directory that the failed sync before may have lost.",
        "persistence/segment/staged_file.py",
        "        with suppress(OSError):\n            storage.remove_directory(directory.prepared)\n        raise\n",
        "        raise\n",
        "refused calls",
    ),
    Mutation(
        "refused-generation-is-read",
        "If a new position file is refused, the old one takes more entries, though the new one may be what is read.",
        "persistence/groups/position_file_writer.py",
        "            self._slots = self._slot  # if this fails",
        "            # if this fails",
        "refused calls",
    ),
    # -- Steps -------------------------------------------------------------------------------------------------------
    Mutation(
        "step-not-allocated",
        "A data file has the size of its step and not the space: the disk gets full in the middle of a commit.",
        "persistence/log/next_data_file.py",
        "        file.allocate(size_bytes)\n",
        "        file.truncate(max(size_bytes, file.size()))\n",
        "steps",
    ),
    Mutation(
        "step-forgotten-by-a-restart",
        "A file that was closed cleanly is never continued once it is larger than the first step.",
        "persistence/log/segment_writer.py",
        "step_holding(tail.position, file_bytes)",
        "step_holding(0, file_bytes)",
        "steps",
    ),
    Mutation(
        "step-of-the-option",
        "The file behind an unclean close has the largest size: a queue that is killed takes 64 MiB more each time.",
        "persistence/log/log_writer.py",
        "        return step_holding(min(self._position, self._file_bytes), self._file_bytes)\n",
        "        return self._file_bytes\n",
        "steps",
    ),
    Mutation(
        "large-step-on-a-full-disk",
        "A put fails for want of 64 MiB, though there is space for a smaller file that holds it.",
        "persistence/log/log_writer.py",
        "directory, header, least_bytes, carried)",
        "directory, header, step_bytes, carried)",
        "steps",
    ),
    Mutation(
        "slots-that-were-not-allocated",
        "On a full disk a position file counts on space that it did not get, and an acknowledgement fails.",
        "persistence/filesystem/reserve.py",
        "                return space\n        size = max",
        "                return wanted\n        size = max",
        "steps",
    ),
)
