"""The suites that have to catch what is planted, in order of cheapness, and how each says what it found."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SUITE_SECONDS_MAX = 900.0
"""A suite that takes longer than this hangs; the slowest takes a few minutes if two run at once on two cores."""

MEMORY_BYTES_MAX = 4 * 2**30
"""Code that believes any size takes all there is; with a bound it ends in a MemoryError, which a test reports."""

_PYTEST_FAILED = 1
_COUNTS = re.compile(r"(\d+) (passed|failed|error)")
_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - (.*))?$", re.MULTILINE)
_TEST_TIMED_OUT = re.compile(r"Failed: Timeout \(?>")
_VIOLATION = re.compile(r"violation after ([\d,]+) states: (?:\w+: )?(.{0,120})")
_TOLD_CHARACTERS_MAX = 600


class Ending(Enum):
    """How a suite ended. Only a test that failed, or a violation that the explorer reported, is a catch."""

    PASSED = "passes"
    CAUGHT = "caught"
    TIMED_OUT = "timed out"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a suite said of a copy of the tree.

    Attributes
    ----------
    ending : Ending
        How it ended.
    count : int
        Cases, or states, up to and with the one that failed.
    where : str
        The first case that failed; of a broken suite, the end of what it printed.
    """

    ending: Ending
    count: int = 0
    where: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests that are run together until one fails.

    Attributes
    ----------
    name, unit : str
        As they are printed: what it is, and what it counts.
    arguments : tuple of str
        Behind ``python -m``.
    """

    name: str
    unit: str
    arguments: tuple[str, ...]

    def run(self, root: Path) -> Verdict:
        """Run it in the copy at ``root``."""
        arguments = [sys.executable, "-m", *self.arguments]
        with subprocess.Popen(
            arguments,
            cwd=root,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that processes it has started end with it
        ) as process:
            if hasattr(resource, "prlimit"):
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
            try:
                output, errors = process.communicate(timeout=SUITE_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return Verdict(Ending.TIMED_OUT, where=f"not done after {SUITE_SECONDS_MAX:.0f} s")
        return self.read(output, errors, process.returncode)

    def read(self, output: str, errors: str, status: int) -> Verdict:
        """Return what pytest or the explorer said, and how it ended: ``status`` is negative for a signal."""
        told = f"exit status {status}: {(output + errors).strip()[-_TOLD_CHARACTERS_MAX:]}"
        if status not in (0, _PYTEST_FAILED):
            return Verdict(Ending.BROKEN, where=told)  # a signal, no test collected, an import that fails
        violation = _VIOLATION.search(output)
        if violation is not None:
            return Verdict(Ending.CAUGHT, int(violation[1].replace(",", "")), violation[2])
        summary = output.rstrip().rsplit("\n", 1)[-1]
        count = sum(int(number) for number, _ in _COUNTS.findall(summary))
        if status == 0:
            return Verdict(Ending.PASSED, count)
        first = _FIRST_FAILURE.search(output)
        if first is None:
            return Verdict(Ending.BROKEN, count, told)
        timed_out = _TEST_TIMED_OUT.match(first[2] or "")
        return Verdict(Ending.TIMED_OUT if timed_out else Ending.CAUGHT, count, first[1])


def environment(root: Path) -> dict[str, str]:
    """Return the environment in which the package and the tests are those of the copy.

    Bugs are planted in Python, so Python alone serves there.
    """
    paths = os.pathsep.join([str(root / "src"), str(root / "tests")])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "HOLDFAST_PURE": "1"}


def _tests(name: str, *paths: str) -> Suite:
    return Suite(name, "tests", ("pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", *paths))


EXPLORER = ("proof.crash_states", "--depth", "1", "--states", "2000", "--seed", "1", "--processes", "1")
"""A few minutes of it at the most: what is planted here it finds in seconds, or needs other workloads for."""

SUITES = (
    _tests("steps", "tests/unit/log/test_file_steps.py", "tests/unit/groups/test_position_file_writer.py"),
    _tests("between processes", "tests/unit/protocol", "tests/unit/transport"),
    _tests(
        "owners",
        "tests/unit/owner/test_requests_sent_again.py",
        "tests/unit/owner/test_machine.py",
        "tests/unit/owner/test_owner.py",
        "tests/unit/owner/test_reserving.py",
        "tests/unit/owner/test_long_verbs.py",
        "tests/unit/owner/test_prepared_verbs.py",
        "tests/unit/owner/test_coordinating.py",
    ),
    _tests("fast lane", "tests/property/test_fast_lane.py"),
    _tests(
        "runs of frames",
        "tests/property/test_runs_of_frames.py",
        "tests/unit/recovery",
        "tests/corruption/test_seals.py",
    ),
    _tests("deliveries of the owner", "tests/unit/client/test_deliveries_of_the_owner.py"),
    _tests("leases of clients", "tests/unit/client/test_shared_consumer.py"),
    _tests("owners that die", "tests/unit/client/test_owners_that_die.py"),
    _tests("two owners", "tests/property/test_deaths_over_two_queues.py"),
    _tests("giving", "tests/crash/proofs/test_crash_states.py", "-k", "giving"),
    _tests(
        "handing over",
        "tests/unit/owner/test_owned_queue.py",
        "tests/unit/owner/test_closed_owner.py",
        "tests/unit/threads/test_open_calls.py",
        "tests/unit/client/test_standing_owner.py",
        "tests/unit/client/test_forked_copies.py",
    ),
    _tests(
        "loops",
        "tests/unit/consumer/test_consuming.py",
        "tests/contract/test_engine_contract.py",
        "-k",
        "loop or consuming",
    ),
    _tests("looks", "tests/unit/consumer/test_look_side.py"),
    _tests(
        "retention",
        "tests/unit/groups/test_retention.py",
        "tests/unit/groups/test_reclaim.py",
        "tests/unit/engine/test_space.py",
        "tests/unit/engine/test_retention.py",
    ),
    _tests(
        "replay",
        "tests/unit/groups/test_next_life.py",
        "tests/unit/log/test_log_times.py",
        "tests/unit/inspect/test_seek.py",
        "tests/unit/inspect/test_log_reading.py",
    ),
    _tests(
        "merges",
        "tests/unit/compaction/test_compactor.py",
        "tests/unit/engine/test_compacting.py",
        "tests/unit/compaction/test_crashes_of_a_merge.py",
    ),
    _tests(
        "prepared log",
        "tests/unit/prepared_log",
        "tests/unit/prepared/test_prepared_ids.py",
        "tests/unit/prepared/test_votes_beside_damage.py",
        "tests/unit/outcomes/test_waiting_puts.py",
        "tests/unit/producer/test_waiting_batches.py",
        "tests/unit/producer/test_entries_of_the_prepared_log.py",
        "tests/crash/once_broke/test_prepared_logs_that_once_broke.py",
        "tests/crash/prefixes/test_prepared_logs.py",
        "tests/crash/faults/test_disk_full_transactions.py",
        "tests/corruption/test_bits_of_a_prepared_log.py",
    ),
    _tests("range server", "tests/spark/test_range_server.py"),
    _tests("unseen writes", "tests/spark/test_unseen_writes.py"),
    _tests(
        "many queues",
        "tests/spark/test_many_queues_without_java.py",
        "tests/unit/arrow/test_decoding.py",
        "tests/unit/arrow/test_many_queues.py",
    ),
    _tests(
        "queues as one",
        "tests/unit/prepared/test_queues_joint_commits.py",
        "tests/crash/prefixes/test_queues_joint_commits_every_storage_call.py",
    ),
    _tests("blocked queues", "tests/unit/prepared/test_queues_joint_commits_blocked.py"),
    _tests(
        "drains",
        "tests/unit/arrow/test_directory_writer.py",
        "tests/unit/arrow/test_drain.py",
        "tests/unit/arrow/test_scanning.py",
        "tests/contract/test_drain_contract.py",
        "tests/contract/test_drain_of_many_queues.py",
        "tests/spark/test_drain_faults.py",
        "tests/spark/test_drain_in_flight.py",
        "-k",
        "arrow or in_flight",
    ),
    _tests(
        "filters",
        "tests/unit/options/test_message_filter.py",
        "tests/unit/dispatch/test_filtered_groups.py",
        "tests/corruption/test_filtered_groups.py",
    ),
    _tests("log files", "tests/unit/log/test_log_files.py"),
    _tests("log handlers", "tests/unit/engine/test_log_handlers.py"),
    _tests("forks", "tests/unit/test_forks.py"),
    _tests("copies of handles", "tests/unit/client/test_forked_copies.py", "tests/unit/threads/test_forgetting.py"),
    _tests("one put", "tests/unit/transactions/test_one_put.py"),
    _tests("interrupted transactions", "tests/unit/transactions/test_interrupted_transactions.py"),
    _tests("chosen ids", "tests/contract/test_engine_contract.py", "-k", "chosen"),
    _tests(
        "without memory",
        "tests/unit/threads/test_log_later.py",
        "tests/unit/service/workers/test_intake.py",
        "tests/unit/service/aio/test_async_takes.py",
    ),
    _tests("owner deaths", "tests/property/test_owner_deaths.py"),
    _tests("who owns", "tests/unit/ownership", "tests/unit/transport/test_endpoint.py"),
    _tests("queues deleted", "tests/unit/service/test_delete_queue.py"),
    _tests(
        "in doubt",
        "tests/crash/once_broke/test_ids_used_again.py",
        "tests/crash/once_broke/test_transactions_that_once_broke.py",
        "tests/unit/prepared/test_queues_in_doubt.py",
    ),
    _tests("several groups", "tests/crash/prefixes/test_several_groups.py"),
    _tests("votes of other groups", "tests/crash/prefixes/test_votes_of_other_groups.py"),
    _tests("features", "tests/crash/once_broke/test_features_beside_each_other.py"),
    _tests(
        "families",
        "tests/crash/once_broke/test_crashes_that_once_lost_something.py",
        "tests/crash/proofs/test_crash_states.py",
        "-k",
        "lost_something or not_every or made_or_deleted or made_and_deleted",
    ),
    _tests(
        "killed names",
        "tests/crash/once_broke/test_names_of_killed_processes.py",
        "tests/crash/proofs/test_successors_of_killed_processes.py",
    ),
    _tests(
        "settings",
        "tests/unit/engine/test_configuring.py",
        "tests/unit/engine/test_handle_settings.py",
        "tests/crash/returned/test_returned_means_durable.py",
        "-k",
        "configur or refused_for_its_group",
    ),
    _tests(
        "requests",
        "tests/unit/log/test_pending_commit_records.py",
        "tests/unit/producer/test_requests_sent_again.py",
        "tests/crash/proofs/test_crash_states.py",
        "-k",
        "request or each_later_owner",
    ),
    _tests("refused calls", "tests/crash/returned/test_behind_refused_calls.py"),
    _tests("durable", "tests/crash/returned/test_durable_beside_the_table.py"),
    _tests("joint commits", "tests/crash/prefixes/test_joint_commits_every_storage_call.py"),
    _tests("two owners", "tests/unit/engine/test_two_owners.py"),
    _tests("successions", "tests/unit/client", "tests/crash/proofs/test_successions.py"),
    _tests("corruption", "tests/corruption"),
    Suite("crash states", "states", EXPLORER),
    _tests("every prefix", "tests/crash/prefixes/test_every_prefix_recovers.py"),
    _tests(
        "options",
        "tests/crash/prefixes/test_options_every_prefix.py",
        "tests/crash/prefixes/test_deduplication_survives.py",
    ),
    _tests(
        "shared syncs",
        "tests/unit/threads/test_group_commit.py",
        "tests/unit/threads/test_flusher.py",
        "tests/unit/threads/test_deadlines.py",
        "tests/unit/producer/test_counted_commits.py",
    ),
    _tests("deduplication", "tests/unit/producer/test_deduplication.py"),
    _tests("sessions", "tests/crash/prefixes/test_deliveries_of_sessions_every_prefix.py"),
    _tests("held syncs", "tests/crash/prefixes/test_two_threads_on_one_file.py"),
    _tests(
        "storage faults",
        "tests/crash/proofs/test_fault_loop.py",
        "tests/crash/faults/test_every_storage_call_may_fail.py",
        "tests/crash/faults/test_transactions_every_storage_call_may_fail.py",
    ),
    _tests("interrupted", "tests/crash/interruptions/test_interruptions.py"),
    _tests("returned", "tests/crash/returned/test_returned_means_durable.py"),
    _tests("against the model", "tests/property"),
    _tests("transactions", "tests/crash/prefixes/test_transactions_every_storage_call.py"),
)
"""In order of cheapness, which is that in which they are run."""
