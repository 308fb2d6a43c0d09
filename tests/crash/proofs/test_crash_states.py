"""A brief look at the crash states of short workloads and of some longer ones; ``make crash`` looks closely.

The explorer is in tests/proof/crash_states, the crash model in docs/reliability.md.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.persistence.filesystem.layout import QueueDirectory
from holdfast.persistence.filesystem.storage import File, Storage
from holdfast.persistence.format.file_header import DataFileHeader
from holdfast.persistence.groups import position_file_writer
from holdfast.persistence.log import next_data_file
from proof.crash_states import explorer, oracle
from proof.crash_states.opening import DATA_FILE_BYTES, POLICIES
from proof.crash_states.search import BRIEF, BRIEF_OF_DRAWN, BRIEF_OF_FAMILIES, Care, Search, Task, run
from proof.crash_states.workloads import BEGINNINGS, BEGINNINGS_OF, FAMILIES
from support.builders import small_steps

LIVES = [pytest.param(beginning, policy, id=f"{beginning}-{policy}") for beginning in BEGINNINGS for policy in POLICIES]
CORE_LIVES = [each for each in LIVES if each.values[0] in BEGINNINGS_OF["core"]]


@pytest.mark.parametrize(("beginning", "policy"), CORE_LIVES)
def test_short_workloads_recover_from_a_crash_at_any_instant(
    beginning: str, policy: str, record_property: Callable[[str, object], None]
) -> None:
    """All workloads of up to two actions, cut off at each of their instants, show a prefix of what was done."""
    tally = run(Task(beginning, policy, depth=2), BRIEF)
    record_property("explored", f"{tally.crashes} crashes, {len(tally.digests)} distinct states")


@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    ("family", "beginning", "policy"),
    [
        ("options", "waiting", "never"),
        ("holding", "used", "every_commit"),
        ("groups", "shared", "every_2_commits"),
        ("settings", "used", "never"),
        ("retention", "shared", "every_2_commits"),
        ("moving", "used", "never"),
        ("merging", "merged", "never"),
        ("giving", "owner", "never"),
        ("giving", "client", "every_2_commits"),
        ("several", "used", "every_2_commits"),
    ],
)
def test_short_workloads_of_what_not_every_queue_is_used_for_recover_too(
    family: str, beginning: str, policy: str
) -> None:
    """Options of puts, reservations, joint commits, groups, retention, merges, deliveries in transactions, two queues.

    ``make crash`` has all lives.
    """
    for first in FAMILIES[family]:
        run(Task(beginning, policy, (first,), depth=2, family=family), BRIEF_OF_FAMILIES)


@pytest.mark.timeout(360)
@pytest.mark.parametrize("first", ["request", "request_of_the_dead"])
def test_what_a_client_has_put_is_answered_by_each_later_owner(first: str) -> None:
    """Killed at any instant, over a roll, and over two recoveries: sent again it is put once, at the same offset."""
    run(Task("used", "never", (first,), depth=2, family="requests"), BRIEF_OF_FAMILIES)


def test_a_group_that_is_made_and_deleted_where_no_file_is_retired_is_gone() -> None:
    """Nothing else syncs its removal there."""
    run(Task("used", "never", ("create", "delete"), depth=2, family="groups"), BRIEF_OF_FAMILIES)


@pytest.mark.parametrize(("beginning", "race"), [("used", "get/create"), ("shared", "get/delete")])
def test_a_group_that_is_made_or_deleted_while_files_are_retired_loses_nothing(beginning: str, race: str) -> None:
    """At each storage call of the other actor; and a crash at any instant of both."""
    assert run(Task(beginning, "every_commit", race=race)).workloads > 10


@pytest.mark.parametrize(("beginning", "race"), [("sparse", "compact/create"), ("merged", "compact/delete")])
def test_a_group_that_is_made_or_deleted_while_files_are_merged_loses_nothing(beginning: str, race: str) -> None:
    """At each storage call of the other actor: while files are chosen, copied and replaced."""
    assert run(Task(beginning, "every_commit", race=race)).workloads > 100


@pytest.mark.parametrize(("beginning", "policy"), LIVES)
def test_drawn_workloads_recover_from_a_crash_at_any_instant(
    beginning: str, policy: str, record_property: Callable[[str, object], None]
) -> None:
    """Some of five to twelve actions, each cut off at twenty instants; ``make crash`` has others, and all instants."""
    tally = run(Task(beginning, policy, seed=-1, count=3), BRIEF_OF_DRAWN)
    record_property("explored", f"{tally.crashes} crashes, {len(tally.digests)} distinct states")


def test_drawn_workloads_go_from_small_files_into_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data files and position files of each step are made, spares are extended, and crashes strike all around."""
    data, positions = set[int](), set[int]()
    prepare, allocate = next_data_file.prepare, position_file_writer.allocate_what_fits

    def prepared(storage: Storage, directory: QueueDirectory, header: DataFileHeader, size: int, frames: bytes) -> File:
        data.add(size)
        return prepare(storage, directory, header, size, frames)

    def allocated(file: File, least: int, wanted: int) -> int:
        positions.add(wanted)
        return allocate(file, least, wanted)

    monkeypatch.setattr(next_data_file, "prepare", prepared)
    monkeypatch.setattr(position_file_writer, "allocate_what_fits", allocated)
    tally = run(Task("used", "every_commit", seed=-7, count=3))
    first = small_steps.FIRST_STEP_BYTES
    assert {first, 2 * first, DATA_FILE_BYTES} <= data
    assert small_steps.POSITION_FILE_BYTES_MIN in positions
    assert any(2 * size in positions for size in positions)  # one that began with a large checkpoint doubles too
    assert len(tally.digests) > 100


def test_recoveries_are_crashed_too_at_each_of_their_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left on the way differs from operation to operation, and each of it recovers."""
    monkeypatch.setattr(explorer, "RECOVERY_CRASHED_EVERY", 1)
    tally = run(Task("fresh", "every_commit", ("put",), depth=1), BRIEF)
    assert len(tally.digests) > 5 * tally.crashes > 0


@pytest.mark.parametrize(
    ("beginning", "policy", "workload"),
    [
        pytest.param(
            "used",
            "never",
            "take get_many roll get_many kill put two_queues two_queues begin_large prepare",
            id="an empty last file behind one that is retired",
        ),
        pytest.param(
            "used",
            "every_2_commits",
            "receive release receive get_many two_queues get kill two_queues flush put put",
            id="a retired file is back",
        ),
        pytest.param(
            "used",
            "never",
            "put roll get create_latest roll mortal get once_other flush roll reserve roll",
            id="a handle that does not put looks for new files now and then",
        ),
        pytest.param(
            "fresh",
            "every_commit",
            "kill urgent reopen reopen create urgent slow_get_many urgent put_many",
            id="the second group retires what the default group, which has not begun, was seen to show",
        ),
        pytest.param(
            "used",
            "never",
            "part get part hour flush flush part put_many abort_jointly",
            id="parts are let go of one by one",
        ),
        pytest.param(
            "used",
            "never",
            "once hour get kill mortal mortal mortal hour two_queues once",
            id="a recovery retires what the one before has found expired",
        ),
        pytest.param(
            "client",
            "every_commit",
            "receive take commit kill",
            id="a commit in the log finishes a message, and the count of another one is lost",
        ),
        pytest.param(
            "used",
            "every_commit",
            "part_of_both part abort_both",
            id="an abort over several queues aborts a part of one queue's own joint commit, too",
        ),
    ],
)
def test_a_workload_that_was_once_judged_wrongly(beginning: str, policy: str, workload: str) -> None:
    """By the model or the oracle, or answered wrongly by recovery: what exploring has found stays found."""
    search = Search(Task(beginning, policy))
    search.alone(tuple(workload.split()), 0, Care(1))
    assert len(search.tally.digests) > 50


def test_a_recovery_that_retires_what_a_group_shows_does_not_agree() -> None:
    """Nor one that retires what a transaction in doubt may hold, or what is there before any group has begun."""
    log = ((4, b"finished"), (5, b"shown"))
    shown = oracle.GroupSeen(((5, b"shown", 0),), (5,), exists=True)
    first = oracle.Seen(6, log, 6, frozenset({4, 5}), shown, oracle.GroupSeen(), frozenset(), None, ())
    assert first.agrees_with(replace(first, log=log[1:]))
    assert not first.agrees_with(replace(first, log=log[:1]))
    in_doubt = replace(first, in_doubt=frozenset({("t", 0, 1)}))
    assert in_doubt.agrees_with(in_doubt)
    assert not in_doubt.agrees_with(replace(in_doubt, log=log[1:]))
    unread = replace(first, group=oracle.GroupSeen())
    assert unread.agrees_with(unread)
    assert not unread.agrees_with(replace(unread, log=log[1:]))
