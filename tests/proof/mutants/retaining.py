"""Bugs of retention: what goes too early, what is skipped that must not be, and what is not counted or told."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

RETAINING = (
    Mutation(
        "skip-what-a-vote-holds",
        "A group that is too far behind skips the messages of a prepared batch, whose files go.",
        "persistence/groups/retention.py",
        "    kept += [(run.start, run.stop) for vote in progress.votes.values() for run in vote.offsets"
        " if run.start < end]\n",
        "",
        "retention",
    ),
    Mutation(
        "skip-what-a-transaction-has",
        "A message is skipped that an open transaction has taken and may commit.",
        "queue/consumer/read_side.py",
        "                in_use = [each.offset for each in self._leases.by_offset.values()"
        " if each.holder is not None]\n",
        "                in_use: list[int] = []\n",
        "retention",
    ),
    Mutation(
        "time-from-the-clock-alone",
        "A clock that jumps forward makes every file old.",
        "persistence/groups/retention.py",
        "        now_ns = min(self._clock_ns, self._newest_ns)\n",
        "        now_ns = self._clock_ns\n",
        "retention",
    ),
    Mutation(
        "skipped-uncounted",
        "Messages that a group has skipped are finished, and nothing counts them.",
        "persistence/groups/position_run.py",
        "        progress.skipped_count += progress.finish(change.first_offset, change.count, change.hint)\n",
        "        progress.finish(change.first_offset, change.count, change.hint)\n",
        "retention",
    ),
    Mutation(
        "skipped-count-forgotten",
        "The next generation of a position file begins without the number of skipped messages.",
        "persistence/groups/position_run.py",
        "    floor = floor_change(progress.floor, progress.lost_count, progress.skipped_count, progress.hint)\n",
        "    floor = floor_change(progress.floor, progress.lost_count, 0, progress.hint)\n",
        "retention",
    ),
    Mutation(
        "file-of-a-message-in-hand",
        "A pass removes a file whose last unfinished message is in hand.",
        "persistence/groups/reclaim.py",
        "if progress.unfinished_in(name.first_offset, end) == 0}",
        "if progress.unfinished_in(name.first_offset, end) <= len(progress.numbers or progress.deliveries)}",
        "retention",
    ),
    Mutation(
        "skipped-in-hand-untold",
        "The receiver of a message that is skipped acknowledges it, and hears nothing.",
        "queue/consumer/read_side.py",
        "                    self._follow(self._end_skipped)\n",
        "                    self._dispatcher.must_read_anew = True\n",
        "retention",
    ),
    Mutation(
        "session-untold",
        "The session that has a skipped message in hand is told that it is acknowledged.",
        "persistence/groups/retention.py",
        "            changes.append(_skipped(range(offset, offset + 1), number))\n",
        "            pass\n",
        "retention",
    ),
    Mutation(
        "outside-of-every-bound",
        "A finished file is kept while it is inside of any bound.",
        "persistence/groups/retention.py",
        "        return self._names[: max(counts)]\n",
        "        return self._names[: min(counts)]\n",
        "retention",
    ),
    Mutation(
        "unread-without-a-group",
        "Retention removes what no group has read, because there is none yet.",
        "persistence/groups/reclaim.py",
        "            finished = {name: end for name, end in finished.items() if name in unread}\n",
        "            finished = {name: end for name, end in finished.items() if name in unread or own_group is None}\n",
        "retention",
    ),
    Mutation(
        "expired-in-hand",
        "A message in hand is dropped because its time to live is over.",
        "queue/consumer/read_side.py",
        "                and record[0] not in self._leases.by_offset\n",
        "",
        "retention",
    ),
    Mutation(
        "progress-believed-unproven",
        "A data file goes by progress that its file does not prove, because the disk shows it.",
        "persistence/groups/position_file_reader.py",
        " and not in_checkpoint and is_known_floor(entry.change, self.progress):\n",
        " or not in_checkpoint:\n",
        "retention",
    ),
    Mutation(
        "large-put-unheard",
        "A put that finds no space below max_bytes asks for none.",
        "queue/producer/capacity.py",
        "        self.wanted_bytes = max(self.wanted_bytes, size_bytes)\n",
        "",
        "retention",
    ),
    Mutation(
        "another-life-not-looked-for",
        "Messages that come again by a seek do not expire again.",
        "queue/engine/retention.py",
        "        if not lives <= self._lives:",
        "        if False:",
        "retention",
    ),
)
