"""The bugs that are planted, one at a time: each is one that queues have had, or that a tired hand would make."""

from __future__ import annotations

from proof.mutants.between_processes import BETWEEN_PROCESSES
from proof.mutants.blind_spots import BLIND_SPOTS
from proof.mutants.drains import DRAINS, FAR_AWAY
from proof.mutants.filters import FILTERS
from proof.mutants.killed_names import KILLED_NAMES
from proof.mutants.many_queues import MANY_QUEUES
from proof.mutants.merges import MERGES
from proof.mutants.mutation import Mutation
from proof.mutants.own_deliveries import OWN_DELIVERIES
from proof.mutants.prepared_logs import PREPARED_LOGS
from proof.mutants.replays import REPLAYS
from proof.mutants.retaining import RETAINING

MUTATIONS = (
    # -- Durability --------------------------------------------------------------------------------------------------
    Mutation(
        "no-sync",
        "A commit is called durable, and nothing has put it on the disk.",
        "persistence/log/segment_writer.py",
        "                self._file.sync()\n                self._compare_locked()",
        "                self._compare_locked()",
        "crash states",
    ),
    Mutation(
        "ack-before-sync",
        "An acknowledgement returns when the one before it is on the disk.",
        "queue/dispatch/progress_store.py",
        "            self._commits.wait(ticket)\n        if self._flusher is not None",
        "            self._commits.wait(ticket - 1)\n        if self._flusher is not None",
        "crash states",
    ),
    Mutation(
        "no-directory-sync",
        "A new data file is used before its name is on the disk.",
        "persistence/log/next_data_file.py",
        "    storage.sync_directory(directory.data)\n    return name",
        "    return name",
        "corruption",
    ),
    Mutation(
        "roll-without-sync",
        "A data file is sealed and left for the next one, and what was appended last is not on the disk.",
        "persistence/log/log_writer.py",
        "                    old.truncate(self._position)\n                    self._sync_locked()\n",
        "                    old.truncate(self._position)\n                    self.synced = self.end\n",
        "every prefix",
    ),
    Mutation(
        "policy-counts-one-short",
        "A policy that syncs every n commits syncs every n + 1.",
        "queue/producer/write_side.py",
        "due = self._unsynced_commits >= commits_max",
        "due = self._unsynced_commits > commits_max",
        "every prefix",
    ),
    Mutation(
        "failed-sync-goes-on",
        "A sync that failed is tried again, and succeeds over lost data.",
        "persistence/log/segment_writer.py",
        "            except BaseException as error:\n"
        "                self.poison(error)\n"
        "                if isinstance(error, OSError | FencedError):\n"
        '                    raise commit_unknown("a sync"',
        "            except BaseException as error:\n                if isinstance(error, OSError | FencedError):\n"
        '                    raise commit_unknown("a sync"',
        "storage faults",
    ),
    # -- Two owners --------------------------------------------------------------------------------------------------
    Mutation(
        "token-not-put",
        "A second owner opens where locks do not hold, and leaves no token for the first.",
        "persistence/recovery/log_recovery.py",
        "        fence.put(mark_file)  #",
        "        pass  #",
        "two owners",
    ),
    Mutation(
        "token-not-compared",
        "A put returns though another owner has opened the queue since.",
        "persistence/log/segment_writer.py",
        "                self._compare_locked()\n                self._synced_position",
        "                self._synced_position",
        "two owners",
    ),
    Mutation(
        "progress-token-not-compared",
        "An acknowledgement returns though another owner has opened the group since.",
        "persistence/groups/position_file_writer.py",
        "                    self._compare(self._file)\n                    self._synced_end",
        "                    self._synced_end",
        "two owners",
    ),
    Mutation(
        "progress-claimed-once",
        "A second owner looks once which position file is the latest, while the first begins another one.",
        "persistence/groups/position_file_writer.py",
        "            generations = list_generations(self._storage, self._directory)\n"
        "        return claimed, generations",
        "            break\n        return claimed, generations",
        "two owners",
    ),
    # -- Who owns, who lives, who asks ---------------------------------------------------------------------------------
    Mutation(
        "locked-file-without-name",
        "The owner lock is taken of a file that was removed before it was locked: two processes own the directory.",
        "persistence/ownership/owner_lock.py",
        "                if names(storage, lock.path, lock.file):\n",
        "                if lock.file:\n",
        "who owns",
    ),
    Mutation(
        "session-without-name",
        "A session locks a file that the owner has just swept away, and is dead from its beginning.",
        "persistence/ownership/sessions.py",
        "            if lock.file.try_lock() and names(storage, path, lock.file):\n",
        "            if lock.file.try_lock():\n",
        "who owns",
    ),
    Mutation(
        "test-taken-for-a-session",
        "A test takes the lock alone, so another test finds a dead session alive.",
        "persistence/ownership/sessions.py",
        "            return not lock.file.try_lock(shared=True) and",
        "            return not lock.file.try_lock() and",
        "who owns",
    ),
    Mutation(
        "dead-lives-again",
        "A session that was found dead lives again when its file is back, and others have what it had in hand.",
        "persistence/ownership/sessions.py",
        "            if number in self._dead:\n                return False\n",
        "",
        "who owns",
    ),
    Mutation(
        "credentials-not-checked",
        "A process of another user may take and put messages.",
        "queue/transport/peer.py",
        "    if peer != user:\n",
        "    if peer < 0:\n",
        "who owns",
    ),
    Mutation(
        "owner-not-checked",
        "A client trusts an owner of another user.",
        "queue/transport/endpoint.py",
        "        check_peer(connection)\n",
        "",
        "who owns",
    ),
    # -- Two threads on one file -------------------------------------------------------------------------------------
    Mutation(
        "end-read-after-sync",
        "What was appended while a sync was under way counts as covered by it.",
        "persistence/log/segment_writer.py",
        "                self._file.sync()\n                self._compare_locked()\n",
        "                self._file.sync()\n                end = self.end\n                self._compare_locked()\n",
        "held syncs",
    ),
    Mutation(
        "position-end-read-after-sync",
        "What was noted of a group while a sync was under way counts as covered by it.",
        "persistence/groups/position_file_writer.py",
        "                    self._file.sync()\n                    self._compare(self._file)",
        "                    self._file.sync()\n                    end, slot = self.end, self._slot\n"
        "                    self._compare(self._file)",
        "held syncs",
    ),
    Mutation(
        "followers-covered-unseen",
        "Who waits when a sync is done is told that it was done for him, also if he came while it was under way.",
        "queue/threads/group_commit.py",
        "            self._durable = max(self._durable, self._sync())\n",
        "            synced = self._sync()\n"
        "            self._durable = max(self._durable, synced, *(each.ticket for each in self._waiters))\n",
        "held syncs",
    ),
    Mutation(
        "woken-and-not-asked",
        "Who is woken to lead the next sync takes it for done.",
        "queue/threads/group_commit.py",
        "                    waiter.wake.acquire()\n",
        "                    waiter.wake.acquire()\n                    if waiter.leads:\n"
        "                        self._durable = max(self._durable, ticket)\n",
        "held syncs",
    ),
    Mutation(
        "id-known-is-enough",
        "A second put of an id returns at once, while the first one waits for its sync.",
        "queue/producer/write_side.py",
        "                self.confirm(known + count)\n",
        "",
        "held syncs",
    ),
    # -- Recovery ----------------------------------------------------------------------------------------------------
    Mutation(
        "no-crc",
        "Frames are believed whatever their checksum says.",
        "persistence/format/framing.py",
        "    if crc32c(salt ^ size, body) != crc:\n",
        "    if not body:\n",
        "corruption",
    ),
    Mutation(
        "marks-of-a-run-unseen",
        "Recovery looks at the durable mark of the first frame of a run alone: acknowledged bytes count as torn.",
        "persistence/recovery/tail_scan.py",
        "        found.witness = max(found.witness, run.durable_mark)\n",
        "        found.witness = max(found.witness, frame.durable_mark)\n",
        "runs of frames",
    ),
    Mutation(
        "begun-batch-passed-as-commits",
        "Messages that are commits of their own are passed in the middle of a batch, which never ended.",
        "persistence/segment/frame_scanner.py",
        "            self._window, start, self._salt, self.position, self.expected, alike, ends\n",
        "            self._window, start, self._salt, self.position, self.expected, FLAGS_SINGLE, ends\n",
        "runs of frames",
    ),
    Mutation(
        "run-behind-a-run-again",
        "What was passed is expected again, and reported as lost.",
        "persistence/segment/frame_scanner.py",
        "        at, self.expected, highest, earliest, latest = pass_messages(\n",
        "        at, _, highest, earliest, latest = pass_messages(\n",
        "runs of frames",
    ),
    Mutation(
        "positions-of-ends",
        "verify takes the end of a message for its place, and says that a good seal names other frames.",
        "persistence/segment/file_walk.py",
        "        self._positions.extend(run.ends[:-1])  # each message starts behind the one before it\n",
        "        self._positions.extend(run.ends[1:])\n",
        "runs of frames",
    ),
    Mutation(
        "youngest-of-a-run-unseen",
        "Recovery takes the timestamp of a run from its first frame: what comes next may be older than what is there.",
        "persistence/recovery/tail_scan.py",
        "        found.timestamp_ns = max(found.timestamp_ns, run.latest)\n",
        "        found.timestamp_ns = max(found.timestamp_ns, frame.timestamp_ns)\n",
        "runs of frames",
    ),
    Mutation(
        "wrong-mark-passed",
        "A frame whose durable mark is above it is passed with the others: the witness is where nothing was synced.",
        "persistence/format/frame_runs.py",
        "        if headers_size > size - RECORD_SIZE_MIN or mark > shift + at:\n            break\n        at = end\n",
        "        if headers_size > size - RECORD_SIZE_MIN:\n            break\n        at = end\n",
        "runs of frames",
    ),
    Mutation(
        "batch-split",
        "A batch whose end was torn off counts as far as it came.",
        "persistence/recovery/tail_scan.py",
        "        counting = bisect_right(run.ends, found.witness) if self._in_batch else len(run.ends)\n",
        "        counting = len(run.ends)\n",
        "crash states",
    ),
    Mutation(
        "tail-not-cut",
        "Recovery leaves the torn tail in the file, and continues to write in front of it.",
        "persistence/recovery/log_recovery.py",
        "        if not scan.clean:\n"
        "            _make_durable(file, scan)\n"
        "        elif mark is None or mark.synced < scan.end:"
        "  # the closing process was killed, or the sync of the end failed\n"
        "            durable = scan.end if scan.is_sealed else FRAMES_START if mark is None else"
        " max(FRAMES_START, mark.synced)\n"
        "            _make_durable(file, replace(scan, witness=durable))\n"
        "        commit_records = find_commit_records(file, header, scan)\n"
        "        appendable = file if scan.clean and not scan.is_sealed else None\n",
        "        commit_records = find_commit_records(file, header, scan)\n"
        "        appendable = file if not scan.is_sealed else None\n",
        "every prefix",
    ),
    Mutation(
        "hole-passed-over",
        "Recovery continues behind a hole that was never written, with whatever stands there.",
        "persistence/recovery/tail_scan.py",
        "            if each.position >= self._found.witness:\n"
        "                self._scanner.position = each.position\n"
        "                return\n",
        "            if each.position >= self._found.witness:\n                continue\n",
        "every prefix",
    ),
    Mutation(
        "recovery-not-finished",
        "What a recovery that was cut off has left between two names stays under the wrong one.",
        "persistence/recovery/log_recovery.py",
        "        finish_naming(storage, directory.data)\n",
        "",
        "crash states",
    ),
    Mutation(
        "tail-not-written-again",
        "Recovery syncs what a process has left and does not write it again, though a failed sync may have dropped it.",
        "persistence/recovery/log_recovery.py",
        "    while at < scan.end:\n        data = file.read_at",
        "    while at < scan.witness:\n        data = file.read_at",
        "storage faults",
    ),
    Mutation(
        "offsets-given-twice",
        "Offsets that a group has seen, and whose messages are lost, are given to other messages.",
        "persistence/recovery/log_recovery.py",
        "    missing = range(tail.next_offset, next_offset)\n",
        "    missing = range(0)\n",
        "every prefix",
    ),
    Mutation(
        "stale-frames-verify",
        "A data file that is used again has the salt of its former life, so the frames that were in it verify.",
        "persistence/format/file_header.py",
        "    return secrets.randbits(32)",
        "    return 0",
        "every prefix",
    ),
    Mutation(
        "seal-not-checked",
        "What looks like a seal is taken for one, its checksum unread.",
        "persistence/segment/frame_trailer.py",
        "    frame = frame_before(file, header.salt, file.size(), KIND_SEAL)\n"
        "    try:\n"
        "        return None if frame is None else Seal.decode(frame.payload)\n",
        "    size = file.size()\n"
        "    frame_size = int.from_bytes(file.read_at(SEAL_TRAILER.size, max(0, size - SEAL_TRAILER.size)), 'little')\n"
        "    if not FRAME_HEADER_BYTES < frame_size <= size - FRAMES_START:\n"
        "        return None\n"
        "    try:\n"
        "        return Seal.decode(file.read_at(frame_size, size - frame_size)[FRAME_HEADER_BYTES:])\n",
        "corruption",
    ),
    Mutation(
        "ids-of-the-tail-forgotten",
        "Opening after a crash remembers the deduplication ids of the ring, and none of the last data file.",
        "persistence/recovery/dedup_scan.py",
        "    return kept + found\n",
        "    return kept\n",
        "options",
    ),
    Mutation(
        "id-of-what-was-not-appended",
        "A put that was cut short leaves its id to the next message that is put without one.",
        "queue/producer/write_side.py",
        "            if self._lifecycle.refusal is not None or self.deduplication.begun is not None:\n",
        "            if self._lifecycle.refusal is not None:\n",
        "deduplication",
    ),
    Mutation(
        "id-of-what-was-not-appended-to-a-batch",
        "A put that was cut short leaves its id to the next batch.",
        "queue/producer/write_side.py",
        "        self._lifecycle.check()\n        self.deduplication.forget_unappended()\n",
        "        self._lifecycle.check()\n",
        "deduplication",
    ),
    Mutation(
        "id-of-what-was-not-appended-to-a-file",
        "A put that was cut short leaves its id to the batch file that is adopted next.",
        "queue/producer/write_side.py",
        "            self._begin_append()\n            if batch.commit_record.session:\n",
        "            self._lifecycle.check()\n            if batch.commit_record.session:\n",
        "deduplication",
    ),
    Mutation(
        "id-of-what-was-not-appended-to-a-decision",
        "A put that was cut short leaves its id to the transaction that is decided next.",
        "queue/producer/write_side.py",
        "            self._begin_append()\n            if commit_record.session:\n",
        "            self._lifecycle.check()\n            if commit_record.session:\n",
        "deduplication",
    ),
    Mutation(
        "space-made-twice",
        "A put that was interrupted while its id was remembered makes space twice: another id is forgotten.",
        "queue/producer/deduplication.py",
        "        if order and order[-1] is begun:  #",
        "        if order is begun:  #",
        "deduplication",
    ),
    Mutation(
        "waking-forgotten",
        "A thread that is interrupted between taking the next one from its list and waking it wakes it never.",
        "queue/threads/group_commit.py",
        "        if waiter.owed[-1].wake.locked():\n"
        "            waiter.owed[-1].wake.release()\n"
        "        waiter.owed.pop()\n",
        "        waiter.owed.pop().wake.release()\n",
        "shared syncs",
    ),
    Mutation(
        "leader-without-memory",
        "A thread that leads a shared sync, and has no memory to hand over, leaves the others waiting.",
        "queue/threads/group_commit.py",
        "except BaseException as error:",
        "except KeyboardInterrupt as error:",
        "shared syncs",
    ),
    Mutation(
        "flusher-ended-by-the-disk",
        "The thread that syncs in time ends with the first error of the disk, and nothing starts another.",
        "queue/threads/flusher.py",
        "            except (PoisonedError, CommitUnknownError):\n                raise\n",
        "            except HoldfastError as error:\n                raise PoisonedError(str(error)) from error\n",
        "shared syncs",
    ),
    Mutation(
        "count-forgotten",
        "A commit whose turn it was to sync is interrupted, and the count begins anew without a sync.",
        "queue/producer/write_side.py",
        "            self._unsynced_commits = commits_max  # the next commit syncs for these\n            raise\n",
        "            raise\n",
        "shared syncs",
    ),
    Mutation(
        "expiry-forgotten",
        "A transaction whose time is over is taken from the list before it is ended: an interruption loses it.",
        "queue/threads/deadlines.py",
        "                self.pending[expire] = now + _BUSY_SECONDS"
        "  # first: if this is interrupted, it is called again\n"
        "                if expire():\n"
        "                    self.discard(expire)\n",
        "                del self.pending[expire]\n"
        "                if not expire():\n"
        "                    self.pending[expire] = now + _BUSY_SECONDS\n",
        "shared syncs",
    ),
    # -- Progress ----------------------------------------------------------------------------------------------------
    Mutation(
        "reclaim-before-progress",
        "A finished data file goes before it is on the disk that its messages are finished.",
        "persistence/groups/reclaim.py",
        "    for sync in syncs:\n        sync()\n",
        "",
        "every prefix",
    ),
    Mutation(
        "logged-under-a-lock",
        "A record that is made under a lock is handled there, by a handler that calls the queue.",
        "threads.py",
        '        start_thread(log.say_noted, "holdfast-log", _no_end)\n',
        "        log.say_noted()\n",
        "log handlers",
    ),
    Mutation(
        "delivery-not-written",
        "A delivery counts in memory, and not for whoever comes after a crash.",
        "queue/dispatch/progress_store.py",
        "        self._positions.append_one(ENTRY_DELIVERED, record, min(count, DELIVERY_COUNT_MAX), number)\n",
        "        self.progress.deliver(record[0], 1, count, number)\n",
        "every prefix",
    ),
    Mutation(
        "fast-lane-before-priorities",
        "The fast lane hands out the next message of the log although one of a priority is behind it.",
        "queue/dispatch/dispatcher.py",
        "            or self._source.prioritized_end() > self._ahead_end\n"
        "        ):\n            records = self._take_deferred(1",
        "        ):\n            records = self._take_deferred(1",
        "fast lane",
    ),
    Mutation(
        "fast-lane-keeps-a-turn",
        "An acknowledgement in the fast lane leaves the next message of its order key waiting for ever.",
        "queue/consumer/read_side.py",
        "                if self._active_keys:\n                    has_moved = self._leave((record,))\n",
        "",
        "fast lane",
    ),
    Mutation(
        "checkpoint-not-synced",
        "The next position file replaces the one before while its checkpoint is not on the disk.",
        "persistence/groups/position_file_writer.py",
        "            is_written = True\n            file.sync()\n",
        "            is_written = True\n",
        "every prefix",
    ),
    Mutation(
        "stale-receipt-counts",
        "Whoever held a message before its lease ran out can acknowledge the delivery of somebody else.",
        "queue/dispatch/delivery.py",
        "            if find(delivery.offset) is not delivery:\n",
        "            if find(delivery.offset) is None:\n",
        "against the model",
    ),
    Mutation(
        "known-priorities-found-anew",
        "A search for priorities from the start of the log finds those that were finished, and hands them out again.",
        "queue/dispatch/dispatcher.py",
        "self.deferred.admit_new if self._is_new(records[0][0]) else self.deferred.admit_deferred",
        "self.deferred.admit_new",
        "against the model",
    ),
    Mutation(
        "ends-of-deferred-not-noted",
        "A message of a priority, or one that was handed out before, is delivered though its time to live is over.",
        "queue/dispatch/deferred_messages.py",
        "        if options.expires_ns:\n            self._has_ends = True\n",
        "",
        "against the model",
    ),
    Mutation(
        "purge-forgets-deferred",
        "A purge leaves what was given back, and what waited for its time or for its order key.",
        "queue/dispatch/dispatcher.py",
        "                if not taken.add(record):\n",
        "                if record[0] < self._cursor.next_offset or not taken.add(record):\n",
        "against the model",
    ),
    Mutation(
        "number-not-checkpointed",
        "A new position file says that a message was handed out, and not to whom: it comes again beside its session.",
        "persistence/groups/position_run.py",
        "        number = numbers.get(offset, 0)\n",
        "        number = 0\n",
        "sessions",
    ),
    Mutation(
        "taken-away-not-noted",
        "A lease ends, and the next owner tells its session that it has settled the message itself.",
        "queue/consumer/redelivery.py",
        "            taken_away_from = delivery.number if by_owner else 0\n",
        "            taken_away_from = 0\n",
        "sessions",
    ),
    Mutation(
        "taken-away-not-checkpointed",
        "A new position file forgets what was taken away from a session.",
        "persistence/groups/position_run.py",
        "*dead, *taken_away, *votes",
        "*dead, *votes",
        "sessions",
    ),
    Mutation(
        "taken-over-by-nobody",
        "A successor hands out what a living session has in hand.",
        "queue/consumer/read_side.py",
        "            if deliveries:\n                self._grant(deliveries, self._lease_seconds)\n",
        "            if deliveries:\n",
        "sessions",
    ),
    # -- Transactions ------------------------------------------------------------------------------------------------
    Mutation(
        "prepared-file-gone-early",
        "The file of a prepared batch is removed before the batch is in the log.",
        "queue/producer/waiting_batches.py",
        "        try:\n            offsets = self._write_side.decide(*_divided(content), summary",
        "        try:\n            self._storage.remove(summary.path)\n"
        "            offsets = self._write_side.decide(*_divided(content), summary",
        "transactions",
    ),
    Mutation(
        "decision-not-looked-up",
        "Recovery does not look for decisions, so what was acknowledged by one comes again.",
        "persistence/recovery/commit_record_scan.py",
        "            found.add(placed, frame.position, is_durable=True)\n",
        "            placed.count  # noqa: B018\n",
        "transactions",
    ),
    Mutation(
        "decision-not-carried",
        "Decisions whose consequences are not on the disk are not carried into the next data file.",
        "persistence/log/log_writer.py",
        "        frames, positions, at = [], {}, FRAMES_START\n"
        "        for commit_record in self.pending_commit_records:\n",
        "        frames, positions, at = [], {}, FRAMES_START\n"
        "        for commit_record in list(self.pending_commit_records)[:0]:\n",
        "in doubt",
    ),
    Mutation(
        "other-batch-removed",
        "Recovery removes whatever waits under the id of a decision, though its id was used again since.",
        "persistence/outcomes/redo.py",
        "        if read_summary(storage, path, queue_id).commit_record.nonce == commit_record.nonce:\n"
        "            storage.remove(path)\n",
        "        storage.remove(path)\n",
        "in doubt",
    ),
    Mutation(
        "vote-not-synced",
        "A transaction is called prepared, and what it will acknowledge is not held on the disk.",
        "queue/consumer/read_side.py",
        "        self._require_progress_store().sync(ticket)\n\n    def resolve",
        "\n    def resolve",
        "in doubt",
    ),
    *BLIND_SPOTS,
    *BETWEEN_PROCESSES,
    *OWN_DELIVERIES,
    *FAR_AWAY,
    *DRAINS,
    *RETAINING,
    *KILLED_NAMES,
    *MERGES,
    *PREPARED_LOGS,
    *REPLAYS,
    *FILTERS,
    *MANY_QUEUES,
    # -- What not every queue is used for ------------------------------------------------------------------------------
    Mutation(
        "ids-not-kept-at-adoption",
        "A batch is adopted as a data file, and the ids of the file before it are not kept: nobody looks there again.",
        "queue/producer/write_side.py",
        "            self._prepare_to_leave()\n            offsets = self._reserved.adopt(",
        "            self._record_ends.end_own()\n            offsets = self._reserved.adopt(",
        "families",
    ),
    Mutation(
        "other-groups-not-asked",
        "A data file is retired once the group that takes has finished it, whatever other groups have not.",
        "persistence/groups/reclaim.py",
        "            finished = _finished_by(reader.refresh(), finished)\n",
        "            reader.refresh()\n",
        "families",
    ),
    Mutation(
        "group-made-while-files-go",
        "A group is made without the lock under which files are retired, and starts at a file that goes.",
        "queue/inspect/groups.py",
        "            with self._handle.groups_locked():\n"
        "                group = find_group(self._storage, self._directory, name)\n"
        "                if group is None:\n",
        "            if True:\n"
        "                group = find_group(self._storage, self._directory, name)\n"
        "                if group is None:\n",
        "families",
    ),
    Mutation(
        "deletion-not-synced",
        "A group is called deleted, and its removal is not on the disk.",
        "persistence/groups/group_files.py",
        "        is_lost = True\n    try:\n        storage.sync_directory(path)\n",
        "        is_lost = True\n    try:\n        storage.list(path)\n",
        "families",
    ),
    Mutation(
        "joint-commit-of-one-part",
        "A joint commit puts the first of its parts into the log, and calls all of them done.",
        "queue/prepared/joint_resolver.py",
        "        for transaction_id, nonce in commit.parts:\n            if transaction_id in waiting:",
        "        for transaction_id, nonce in commit.parts[:1]:\n            if transaction_id in waiting:",
        "joint commits",
    ),
    Mutation(
        "delay-forgotten-by-opening",
        "A message that waits after a failure comes at once after a restart.",
        "persistence/groups/progress.py",
        "                self.returned[offset] = (until_ns, first_failure_s)",
        "                self.returned[offset] = (0, first_failure_s)",
        "families",
    ),
    Mutation(
        "cut-off-deletion-comes-back",
        "An opening shows a group as deleted whose removal is not on the disk, and leaves it so.",
        "queue/engine/recovering.py",
        "    sync_deletions(storage, directory, groups)  # what",
        "    storage.list(directory.groups)  # what",
        "families",
    ),
    Mutation(
        "joint-commit-before-puts",
        "A joint commit is decided while what was put before it is not on the disk.",
        "queue/prepared/joint_resolver.py",
        "                self._handle.require_write_side().flush()  # else",
        "                # else",
        "families",
    ),
    Mutation(
        "vote-before-puts",
        "A queue votes for a transaction that another log decides while what was put before it is not on the disk.",
        "queue/producer/waiting_batches.py",
        "            self._write_side.flush()\n        path",
        "            pass\n        path",
        "families",
    ),
    Mutation(
        "turn-given-to-who-waits-for-time",
        "A message that is delayed does not hold its order key: the one behind it comes first.",
        "queue/dispatch/deferred_messages.py",
        "        if options.order_key and not self._keys.enter(",
        "        is_late = progress.due_ns(offset, options.not_before_ns) > self._time_ns()\n"
        "        if options.order_key and not is_late and not self._keys.enter(",
        "families",
    ),
    Mutation(
        "queue-removed-before-it-is-away",
        "A deleted queue's files go while its new name is not on the disk: a loss of power leaves a queue with holes.",
        "persistence/filesystem/removal.py",
        "        sync_name(storage, root)\n",
        "        storage.list(root.parent)\n",
        "queues deleted",
    ),
    Mutation(
        "queue-json-removed-among-the-rest",
        "A deletion that is killed leaves files without queue.json, which no start takes for remains.",
        "persistence/filesystem/removal.py",
        "                if name != identity.name:\n",
        "                if name:\n",
        "queues deleted",
    ),
    Mutation(
        "removals-not-synced-before-queue-json",
        "A loss of power brings a deleted queue's files back, and queue.json not: no start takes them for remains.",
        "persistence/filesystem/removal.py",
        "            storage.sync_directory(remains)  # or",
        "            # or",
        "queues deleted",
    ),
    Mutation(
        "any-directory-is-remains",
        "A start deletes a user's directory because of its name.",
        "persistence/filesystem/removal.py",
        "    except HoldfastError:\n        return False\n",
        "    except HoldfastError:\n        return True\n",
        "queues deleted",
    ),
    Mutation(
        "queue-json-of-remains-not-durable",
        "A queue is deleted whose queue.json a loss of power takes: no start takes what is left for remains.",
        "queue/engine/deletion.py",
        "        storage.sync_directory(root)\n",
        "",
        "queues deleted",
    ),
    # -- Settings ----------------------------------------------------------------------------------------------------
    Mutation(
        "changed-document-not-synced",
        "A setting is changed, and a loss of power brings the old one back.",
        "persistence/filesystem/document.py",
        "    with undone(storage, path) if is_first else nullcontext():\n        storage.sync_directory(path.parent)\n",
        "    with undone(storage, path) if is_first else nullcontext():\n"
        "        if is_first:\n            storage.sync_directory(path.parent)\n",
        "settings",
    ),
    Mutation(
        "setting-not-stored",
        "A setting is changed in the handle that is open, and nowhere else.",
        "queue/engine/configuring.py",
        "        write_settings(storage, directory, changed)\n        handle.settings",
        "        handle.settings",
        "settings",
    ),
    Mutation(
        "group-keeps-its-old-settings",
        "A change of a group's settings writes those that it had.",
        "persistence/groups/group_files.py",
        "_fields(group), _fields(changed), LARGE_DOCUMENT_BYTES_MAX)",
        "_fields(group), _fields(group), LARGE_DOCUMENT_BYTES_MAX)",
        "settings",
    ),
    Mutation(
        "refused-for-its-group-and-half-stored",
        "An opening is refused for a setting of its group, and those of the queue are changed all the same.",
        "queue/engine/handle_settings.py",
        "        if group is not None and group.settings is not None:  # lost",
        "        if is_owner:\n            write_settings(storage, directory, changed)\n"
        "        if group is not None and group.settings is not None:  # lost",
        "settings",
    ),
    Mutation(
        "waiting-settings-dropped",
        "A handle of another group removes the settings that wait for the default group.",
        "queue/engine/handle_settings.py",
        "    if GROUP_SETTINGS.isdisjoint(of_queue) or find_group(storage, directory, DEFAULT_GROUP) is None:\n",
        "    if GROUP_SETTINGS.isdisjoint(of_queue):\n",
        "settings",
    ),
    Mutation(
        "failed-change-not-put-back",
        "A change of settings whose name is not synced stays; the next opening takes it for durable.",
        "persistence/filesystem/document.py",
        "            if read_document(storage, path, bytes_max) != old:\n",
        "            if not path:\n",
        "settings",
    ),
    Mutation(
        "rebuilt-with-the-defaults",
        "A damaged queue.json is rebuilt with the defaults, which drop what the settings keep.",
        "persistence/filesystem/layout.py",
        "        _write_identity(storage, directory, queue_id, None)\n",
        "        _write_identity(storage, directory, queue_id, {})\n",
        "corruption",
    ),
    Mutation(
        "group-rebuilt-with-the-defaults",
        "A damaged group.json is rebuilt with the defaults, which bury what the settings keep.",
        "persistence/groups/group_files.py",
        "    repaired = replace(group, start_offset",
        "    repaired = replace(group, settings={}, start_offset",
        "corruption",
    ),
    Mutation(
        "first-of-two-puts",
        "The first put of a transaction is forgotten when a second one follows.",
        "queue/transactions/transaction.py",
        "                branch.put(self._only, None)\n",
        "                pass\n",
        "one put",
    ),
    Mutation(
        "only-put-without-headers",
        "The headers of the only put of a transaction are forgotten.",
        "queue/transactions/transaction.py",
        "            and headers is None\n            and type(payload)",
        "            and type(payload)",
        "one put",
    ),
    Mutation(
        "second-put-in-place-of-the-first",
        "A second put of a transaction takes the place of the first one.",
        "queue/transactions/transaction.py",
        "            self._only is None\n            and headers",
        "            headers",
        "one put",
    ),
    Mutation(
        "settings-read-before-the-lock",
        "Who waits for the queue goes by the settings that it had before the owner changed them.",
        "queue/engine/queue_handle.py",
        "            lock = next(steps)\n            self._adopt_settings(is_owner=True)\n",
        "            self._adopt_settings(is_owner=True)\n            lock = next(steps)\n",
        "features",
    ),
)
"""In the order in which they are tried."""
