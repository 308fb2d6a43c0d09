"""Bugs of groups that are moved, and of readers without a group."""

from __future__ import annotations

from proof.mutants.mutation import Mutation

REPLAYS = (
    Mutation(
        "seek-reuses-the-life",
        "A batch of a drain has the id of an earlier one, and a sink that knows it passes over the messages.",
        "persistence/groups/group_files.py",
        "replace(group, group_id=random_id(), start_offset",
        "replace(group, start_offset",
        "replay",
    ),
    Mutation(
        "seek-keeps-delivery-counts",
        "A message that comes again after a seek is a dead letter at once, as it had failed before.",
        "persistence/groups/group_files.py",
        "    life.lost_count, life.skipped_count = progress.lost_count, progress.skipped_count\n",
        "    life.deliveries.update(progress.deliveries)\n",
        "replay",
    ),
    Mutation(
        "position-file-of-another-life-counts",
        "After a crash a group has the progress of a life that did not begin, or of the one before.",
        "persistence/groups/position_file_reader.py",
        "        if (header.queue_id, header.group_id) != self.ids or header.generation",
        "        if header.queue_id != self.ids[0] or header.generation",
        "replay",
    ),
    Mutation(
        "opening-uses-the-file-that-counts",
        "An opening behind a seek that was cut off writes its next position file over the progress.",
        "persistence/groups/position_file_writer.py",
        "        self._generation = reader.generation or max(generations, default=0)\n",
        "        self._generation = max(generations, default=0)\n",
        "replay",
    ),
    Mutation(
        "seek-loses-dead-letters",
        "A group that is moved has no dead letters any more, and their messages come again.",
        "persistence/groups/group_files.py",
        "        life.bury(offset, mark)\n",
        "        pass\n",
        "replay",
    ),
    Mutation(
        "deliveries-survive-a-seek",
        "A delivery of before a seek is acknowledged, and finishes the message that was to come again.",
        "queue/consumer/read_side.py",
        "                    self._leases.take_all_away()\n",
        "",
        "replay",
    ),
    Mutation(
        "commit-finishes-in-another-life",
        "A commit that a seek comes into finishes messages of the new life.",
        "queue/consumer/read_side.py",
        "                deliveries = [each for each in deliveries if not each.has_expired]\n",
        "",
        "replay",
    ),
    Mutation(
        "reader-does-not-look-whether-its-file-was-reused",
        "A reader without a group returns messages of the file that took the place of the one that it reads.",
        "queue/inspect/log_reading.py",
        "self._losses.append, recheck=True)",
        "self._losses.append)",
        "replay",
    ),
    Mutation(
        "offset-of-a-time-is-one-file-late",
        "A group that is moved to a time misses the messages at the end of a data file.",
        "persistence/log/log_times.py",
        "files.path, timestamp_ns) - 1)",
        "files.path, timestamp_ns))",
        "replay",
    ),
)
"""In the order in which they are tried."""
