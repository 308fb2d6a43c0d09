"""Votes in a position file: held until an outcome, whole or not at all, over restarts and damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persistence.filesystem.layout import list_generations, position_file, queue_directory
from holdfast.persistence.format.commit_record import Participant, Run
from holdfast.persistence.format.constants import (
    ENTRY,
    ENTRY_DELIVERED,
    ENTRY_DONE,
    ENTRY_HELD,
    ENTRY_OUTCOME,
    ENTRY_TEXT,
    ENTRY_VOTE,
    FRAMES_START,
    NUMBER_MAX,
)
from holdfast.persistence.format.dead_letter import DeadMark
from holdfast.persistence.groups.position_entry import Change
from holdfast.persistence.groups.position_file_reader import PositionFileReader
from holdfast.persistence.groups.position_file_writer import PositionFileWriter
from holdfast.persistence.groups.position_run import apply_run, checkpoint
from holdfast.persistence.groups.progress import GroupProgress
from holdfast.persistence.groups.reach import Reach
from holdfast.persistence.groups.vote import Vote, outcome_changes, read_vote, vote_changes, vote_entry_count
from support.builders.clocks import FakeClock
from support.builders.known_progress import KnownProgress
from support.storages.simulated_storage import SimulatedStorage

GROUP = Path("/group")
QUEUE_ID, GROUP_ID = b"q" * 16, b"g" * 16
SLOTS = 40
FILE_BYTES = FRAMES_START + SLOTS * ENTRY.size
COORDINATOR = Participant("../orders", b"c" * 16, "workers")


def vote(*runs: range, number: int = 1, name: str = "transfer-1", coordinator: Participant | None = None) -> Vote:
    """Return a vote that holds these offsets."""
    placed = tuple((run.start, len(run), 1, 5000 + run.stop) for run in runs)
    return Vote(name, bytes((number,)) * 16, 10**18 + number, coordinator, placed)


VOTE = vote(range(2, 5), range(7, 8), coordinator=COORDINATOR)
OTHER = vote(range(10, 12), number=2, name="transfer-2")


def new_storage() -> SimulatedStorage:
    """Return a storage with the directory of a group, durable."""
    storage = SimulatedStorage()
    storage.make_directory(GROUP)
    storage.sync_directory(Path("/"))
    return storage.crash_dropping_unsynced()


def writer(storage: SimulatedStorage, progress: GroupProgress | None = None) -> PositionFileWriter:
    """Return a writer of small files."""
    return PositionFileWriter(storage, GROUP, FakeClock(), known(storage, progress), file_bytes=FILE_BYTES)


def known(storage: SimulatedStorage, progress: GroupProgress | None) -> KnownProgress:
    """Return a reader that says what the test says."""
    return KnownProgress(storage, GROUP, QUEUE_ID, GROUP_ID, progress or GroupProgress())


def read(storage: SimulatedStorage) -> PositionFileReader:
    """Return a reader that has read everything."""
    reader = PositionFileReader(
        storage, GROUP, QUEUE_ID, GROUP_ID, Reach(storage, queue_directory(GROUP.parent)), GroupProgress
    )
    reader.refresh()
    return reader


def done(first: int, count: int = 1) -> Change:
    """Return an entry that finishes messages."""
    return Change(ENTRY_DONE, first, count, (1, 5000 + first + count))


def damaged(storage: SimulatedStorage, *numbers: int, generation: int | None = None) -> PositionFileReader:
    """Return a reader of a copy whose entries of these numbers have a flipped byte."""
    broken = storage.crash_keeping_all()
    file = broken.open(position_file(GROUP, generation or list_generations(storage, GROUP)[-1]))
    for number in numbers:
        at = FRAMES_START + number * ENTRY.size + 20
        (byte,) = file.read_at(1, at)
        file.write_at((bytes((byte ^ 0xFF,)),), at)
    return read(broken)


def held(progress: GroupProgress) -> list[int]:
    """Return what is held."""
    return [offset for offset in range(20) if progress.is_held(offset)]


def finished(progress: GroupProgress) -> list[int]:
    """Return what is finished."""
    return [offset for offset in range(20) if progress.is_finished(offset)]


def is_known_damage(reader: PositionFileReader, number: int) -> bool:
    """Tell whether the reader has reported an entry by its place."""
    return any(damage.position == FRAMES_START + number * ENTRY.size for damage in reader.damage)


def lost_votes(reader: PositionFileReader) -> list[str]:
    """Return what the reader says of votes that are not whole."""
    return [damage.reason for damage in reader.damage if "is incomplete" in damage.reason]


# -- Entries and meaning ---------------------------------------------------------------------------------------------

U64 = st.integers(0, 2**64 - 1)


@given(
    st.text(max_size=100),
    st.binary(min_size=16, max_size=16),
    st.integers(0, NUMBER_MAX),
    st.none() | st.builds(Participant, st.text(max_size=50), st.binary(min_size=16, max_size=16), st.text(max_size=9)),
    st.lists(st.tuples(U64, U64, U64, st.integers(0, 2**32 - 1)), max_size=5),
)
def test_a_vote_comes_back_from_its_entries(
    name: str, nonce: bytes, timestamp_ns: int, coordinator: Participant | None, runs: list[Run]
) -> None:
    """Every field of it, whatever its values; and its first entry says how many there are."""
    before = Vote(name, nonce, timestamp_ns, coordinator, tuple(runs))
    changes = vote_changes(before)
    assert read_vote(changes) == before
    assert vote_entry_count(changes[0]) == len(changes)


def test_a_vote_takes_one_entry_for_the_nonce_some_for_the_text_and_one_for_each_run() -> None:
    """In this order."""
    kinds = [change.kind for change in vote_changes(OTHER)]
    assert kinds == [ENTRY_VOTE, *[ENTRY_TEXT] * (len(kinds) - 2), ENTRY_HELD]
    assert [change.kind for change in outcome_changes(VOTE, committed=True)] == [ENTRY_OUTCOME, ENTRY_DONE, ENTRY_DONE]
    assert [change.kind for change in outcome_changes(VOTE, committed=False)] == [ENTRY_OUTCOME]


def test_a_vote_knows_its_messages() -> None:
    """As ranges, and how many."""
    assert VOTE.offsets == (range(2, 5), range(7, 8))
    assert VOTE.count == 4


def without_an_entry(changes: list[Change]) -> list[Change]:
    """Return the entries without their last."""
    return changes[:-1]


def with_text(text: bytes) -> Callable[[list[Change]], list[Change]]:
    """Return what gives a vote of 24 bytes of text another one."""

    def replace(changes: list[Change]) -> list[Change]:
        words = [int.from_bytes(text.ljust(24, b" ")[at : at + 8], "little") for at in (0, 8, 16)]
        start = Change(ENTRY_VOTE, changes[0].first_offset, 24, (changes[0].hint[0], 1))
        return [start, Change(ENTRY_TEXT, words[1], words[2], (words[0], 0)), changes[-1]]

    return replace


@pytest.mark.parametrize(
    "break_it",
    [
        without_an_entry,
        lambda changes: [changes[0], *reversed(changes[1:])],
        lambda changes: [*changes[:-1], done(10, 2)],
        with_text(b"not JSON"),
        with_text(b"[]"),
        with_text(b"{}"),
        with_text(b'{"id":"a","at":[]}'),
        with_text(b"\xff\xfe\xfd"),
    ],
)
def test_entries_that_are_no_whole_vote_are_not_taken_for_one(break_it: Callable[[list[Change]], list[Change]]) -> None:
    """They are dropped and named, and nothing is held."""
    progress = GroupProgress()
    (reason,) = apply_run(break_it(vote_changes(OTHER)), progress)
    assert OTHER.nonce.hex() in reason
    assert not progress.votes
    assert progress.held_count == 0


def test_a_coordinator_that_makes_no_sense_is_not_guessed() -> None:
    """The vote does not count."""
    changes = with_text(b'{"id":"","at":1}')(vote_changes(OTHER))
    assert read_vote(changes) is not None
    text = b'{"id":"a","at":1,"coordinator":["..","zz"]}'
    pieces = [text[at : at + 24].ljust(24, b"\0") for at in range(0, len(text), 24)]
    words = [[int.from_bytes(piece[at : at + 8], "little") for at in (0, 8, 16)] for piece in pieces]
    start = Change(ENTRY_VOTE, 0, len(text), (0, 0))
    assert read_vote([start, *[Change(ENTRY_TEXT, b, c, (a, 0)) for a, b, c in words]]) is None


# -- Held and settled ------------------------------------------------------------------------------------------------


def test_a_vote_holds_its_messages_and_finishes_none() -> None:
    """Neighbours are free."""
    progress = GroupProgress()
    assert not progress.is_held(2)
    apply_run(vote_changes(VOTE), progress)
    assert held(progress) == [2, 3, 4, 7]
    assert progress.held_count == 4
    assert not finished(progress)


@pytest.mark.parametrize("committed", [True, False])
def test_doing_a_run_twice_changes_nothing(committed: bool) -> None:
    """An interrupted append does what it has written once more."""
    progress = GroupProgress()
    for _ in range(2):
        apply_run([*vote_changes(VOTE), *vote_changes(OTHER)], progress)
    assert list(progress.votes.values()) == [VOTE, OTHER]
    assert held(progress) == [2, 3, 4, 7, 10, 11]
    for _ in range(2):
        apply_run(outcome_changes(VOTE, committed=committed), progress)
    assert list(progress.votes.values()) == [OTHER]
    assert held(progress) == [10, 11]
    assert finished(progress) == ([2, 3, 4, 7] if committed else [])
    assert progress.finished_count == (4 if committed else 0)


def test_finishing_what_is_held_leaves_the_vote() -> None:
    """Its outcome is still due; only what is not finished counts as held."""
    progress = GroupProgress()
    apply_run(vote_changes(VOTE), progress)
    apply_run([done(3)], progress)
    assert list(progress.votes.values()) == [VOTE]
    assert held(progress) == [2, 4, 7]
    assert progress.held_count == 3
    apply_run(outcome_changes(VOTE, committed=False), progress)
    assert finished(progress) == [3]
    assert not held(progress)


def test_two_votes_that_touch_are_held_apart() -> None:
    """Settling one leaves the other, also where both hold the same message by mistake."""
    progress, next_to_it = GroupProgress(), vote(range(4, 7), number=3)
    apply_run([*vote_changes(VOTE), *vote_changes(next_to_it)], progress)
    assert held(progress) == [2, 3, 4, 5, 6, 7]
    assert progress.held_count == 6
    apply_run(outcome_changes(VOTE, committed=False), progress)
    assert held(progress) == [4, 5, 6]


def test_an_outcome_of_a_vote_that_nobody_knows_changes_nothing_but_what_it_finishes() -> None:
    """Committed, it still names its messages."""
    progress = GroupProgress()
    apply_run(outcome_changes(VOTE, committed=False), progress)
    assert not finished(progress)
    apply_run(outcome_changes(VOTE, committed=True), progress)
    assert finished(progress) == [2, 3, 4, 7]


def test_what_an_aborted_vote_held_is_in_nobodys_hand() -> None:
    """Dead letters stay dead, what the vote did not hold stays in hand, and a checkpoint says so."""
    progress, again = GroupProgress(), GroupProgress()
    progress.deliver(0, 4, 1)
    progress.bury(1, DeadMark("rejected", 1, 0, 0))
    progress.hold(vote(range(0, 3)))
    progress.settle(vote().nonce, committed=False)
    apply_run(checkpoint(progress), again)
    for each in (progress, again):
        assert [offset for offset in range(4) if each.is_out(offset)] == [3]
        assert (list(each.returned), list(each.dead)) == ([0, 2], [1])


def test_a_checkpoint_says_the_votes() -> None:
    """Between the floors, in their order."""
    progress, again = GroupProgress(1), GroupProgress()
    apply_run([*vote_changes(OTHER), *vote_changes(VOTE), done(6)], progress)
    changes = checkpoint(progress)
    assert changes[0] == changes[-1]
    assert not apply_run(changes, again)
    assert list(again.votes.values()) == [OTHER, VOTE]
    assert finished(again) == [0, 6]


# -- On the disk -----------------------------------------------------------------------------------------------------


def test_a_vote_survives_a_restart() -> None:
    """Whoever reads the file knows all of it, and so does the next writer's checkpoint."""
    storage = new_storage()
    writer(storage).append(vote_changes(VOTE))
    reader = read(storage)
    assert list(reader.progress.votes.values()) == [VOTE]
    again = writer(storage, reader.progress)
    assert list(read(storage).progress.votes.values()) == [VOTE]
    again.append(outcome_changes(VOTE, committed=True))
    found = read(storage)
    assert not found.progress.votes
    assert finished(found.progress) == [2, 3, 4, 7]
    assert not found.damage


def test_an_aborted_outcome_lets_go_over_a_restart() -> None:
    """The messages are as they were before, delivery counts included."""
    storage = new_storage()
    positions = writer(storage)
    positions.append([Change(ENTRY_DELIVERED, 2, 3, (1, 0), 2)])
    positions.append(vote_changes(VOTE))
    positions.append(outcome_changes(VOTE, committed=False))
    progress = read(storage).progress
    assert not progress.votes
    assert not finished(progress)
    assert progress.deliveries == {2: 2, 3: 2, 4: 2}


def test_new_generations_keep_open_votes() -> None:
    """However many files are filled, until the outcome."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    positions.append(vote_changes(VOTE))
    for offset in range(100, 100 + 5 * SLOTS, 2):
        positions.append([done(offset)])
        positions.append([done(offset + 1)])
        assert list(read(storage).progress.votes.values()) == [VOTE]
    assert list_generations(storage, GROUP)[-1] > 3
    positions.append(outcome_changes(VOTE, committed=True))
    positions.close()
    found = read(storage)
    assert finished(found.progress) == finished(progress) == [2, 3, 4, 7]
    assert not found.progress.votes
    assert not found.damage


def test_an_id_of_100_characters_survives() -> None:
    """So does a coordinator far away."""
    long = vote(range(3), name="x" * 100, coordinator=Participant("../" * 60 + "orders", b"\xff" * 16, "g" * 100))
    storage = new_storage()
    writer(storage, GroupProgress()).append(vote_changes(long))
    assert list(read(storage).progress.votes.values()) == [long]


def test_a_vote_may_hold_a_thousand_runs() -> None:
    """It gets a file that holds it, and keeps it over a restart."""
    large, storage = vote(*[range(2 * number, 2 * number + 1) for number in range(1000)]), new_storage()
    writer(storage).append(vote_changes(large))
    reader = read(storage)
    again = writer(storage, reader.progress)
    assert list(read(storage).progress.votes.values()) == [large]
    assert reader.progress.held_count == 1000
    assert reader.progress.is_held(1998)
    assert not reader.progress.is_held(1997)
    again.append(outcome_changes(large, committed=True))
    progress = read(storage).progress
    assert (progress.floor, progress.finished_count, progress.held_count) == (1, 1000, 0)


def test_votes_stand_among_other_entries() -> None:
    """Each is settled by its own outcome, in any order."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    positions.append([done(0), *vote_changes(VOTE), Change(ENTRY_DELIVERED, 15, 1, (1, 0), 1)])
    positions.append([done(1)])
    positions.append(vote_changes(OTHER))
    positions.append([done(6)])
    positions.append(outcome_changes(VOTE, committed=False))
    positions.append([done(8)])
    positions.append(outcome_changes(OTHER, committed=True))
    for found in (progress, read(storage).progress):
        assert not found.votes
        assert finished(found) == [0, 1, 6, 8, 10, 11]
        assert found.deliveries == {15: 1}


def test_a_crash_leaves_a_whole_vote_or_none() -> None:
    """And an outcome settles it wholly or not at all."""
    storage = new_storage()
    positions = writer(storage)
    positions.append(vote_changes(VOTE))
    voted = storage.mutation_count
    positions.sync()
    synced = storage.mutation_count
    positions.append(outcome_changes(VOTE, committed=True))
    positions.sync()
    for crash in storage.prefix_crashes():
        found = read(crash.storage)
        progress = found.progress
        assert (held(progress), finished(progress)) in (([], []), ([2, 3, 4, 7], []), ([], [2, 3, 4, 7]))
        assert not found.damage
        if crash.operation_count < voted:
            assert not progress.votes
        if crash.operation_count >= synced:
            assert progress.votes or progress.finished_count == 4


def test_a_vote_that_is_torn_counts_for_nothing() -> None:
    """Whichever of its last entries are missing; it was never acknowledged, so nothing is reported."""
    storage = new_storage()
    positions = writer(storage)
    positions.append(vote_changes(VOTE))
    count = len(vote_changes(VOTE))
    for kept in range(count):
        broken = storage.crash_keeping_all()
        file = broken.open(position_file(GROUP, 1))
        file.write_at((bytes((count - kept) * ENTRY.size),), FRAMES_START + (2 + kept) * ENTRY.size)
        reader = read(broken)
        assert not reader.progress.votes
        assert not reader.damage


# -- Damage ----------------------------------------------------------------------------------------------------------


def with_check(*runs: list[Change]) -> tuple[SimulatedStorage, GroupProgress]:
    """Return a group that was closed in order after these runs: every entry of theirs is known to be synced."""
    storage, progress = new_storage(), GroupProgress()
    positions = writer(storage, progress)
    for run in runs:
        positions.append(run)
    positions.close()
    return storage, progress


FIRST = 2  # number of the first entry behind the checkpoint of a new group


def test_each_damaged_entry_of_a_vote_is_reported_and_the_vote_is_dropped_whole() -> None:
    """Its neighbours count; the report says that its messages may be delivered again."""
    storage, _ = with_check([done(0)], vote_changes(VOTE), vote_changes(OTHER), [done(1)])
    start = FIRST + 1
    for number in range(start, start + len(vote_changes(VOTE))):
        reader = damaged(storage, number)
        assert list(reader.progress.votes.values()) == [OTHER]
        assert held(reader.progress) == [10, 11]
        assert finished(reader.progress) == [0, 1]
        assert is_known_damage(reader, number)
        (reason,) = lost_votes(reader)
        assert "may be delivered again" in reason
        assert "offsets 2.." in reason or "offsets 7..7" in reason
        assert (VOTE.nonce.hex() in reason) == (number > start)


def test_the_same_holds_inside_a_checkpoint() -> None:
    """All of a checkpoint was on the disk before it got its name."""
    storage, progress = with_check([done(0)], vote_changes(VOTE), vote_changes(OTHER), [done(13)])
    writer(storage, progress).append([done(1)])
    generation = list_generations(storage, GROUP)[-1]
    kinds = [change.kind for change in checkpoint(progress)]
    first = kinds.index(ENTRY_VOTE)
    for number in range(first, first + len(vote_changes(VOTE))):
        reader = damaged(storage, number, generation=generation)
        assert list(reader.progress.votes.values()) == [OTHER]
        assert finished(reader.progress) == [0, 1, 13]
        assert is_known_damage(reader, number)
        assert lost_votes(reader)


def test_damage_beside_a_vote_leaves_the_vote() -> None:
    """In a run and in a checkpoint."""
    storage, progress = with_check([done(9), *vote_changes(VOTE), done(13)], [done(15)])
    in_checkpoint = [change.kind for change in checkpoint(progress)].index(ENTRY_VOTE)
    for first in (FIRST + 1, in_checkpoint):
        for number in (first - 1, first + len(vote_changes(VOTE))):
            reader = damaged(storage, number)
            assert list(reader.progress.votes.values()) == [VOTE]
            assert not lost_votes(reader)
            assert is_known_damage(reader, number)
        writer(storage, progress).append([done(17)])


def test_two_damaged_entries_never_make_one_vote_of_two() -> None:
    """The end of one and the start of the next are gone: what is left is neither."""
    small, next_to_it = vote(range(2, 3), range(4, 5)), vote(range(6, 7), range(8, 9), number=3)
    run = [*vote_changes(small), *vote_changes(next_to_it)]
    size = len(vote_changes(small))
    storage, progress = with_check(run)
    writer(storage, progress).append([done(1)])
    for first in range(1, len(run) + 1):
        for second in range(first + 1, len(run) + 1):
            reader = damaged(storage, first, second)
            hit = {(number - 1) // size for number in (first, second)}
            whole = [each for at, each in enumerate((small, next_to_it)) if at not in hit]
            assert list(reader.progress.votes.values()) == whole
            assert lost_votes(reader)


def test_the_whole_text_and_start_of_the_next_vote_may_be_gone_and_its_messages_go_to_nobody() -> None:
    """A vote ends where its first entry says."""
    small, next_to_it = vote(range(2, 3), range(4, 5)), vote(range(6, 7), range(8, 9), number=3)
    size = len(vote_changes(small))
    storage, progress = with_check(vote_changes(small), vote_changes(next_to_it))
    writer(storage, progress).append([done(1)])
    reader = damaged(storage, *range(size, 2 * size - 1))  # from the last of one to the last text of the other
    assert not reader.progress.votes
    assert not held(reader.progress)
    reader = damaged(storage, *range(size + 1, 2 * size - 1))
    assert list(reader.progress.votes.values()) == [small]


def test_a_committed_outcome_with_a_damaged_entry_finishes_all_that_the_vote_held() -> None:
    """The vote's own runs are the truth, whether the bad entry is in the middle or the last of its run."""
    storage, _ = with_check(vote_changes(VOTE), outcome_changes(VOTE, committed=True), [done(12)])
    start = FIRST + len(vote_changes(VOTE))
    for number in (start + 1, start + 2):
        reader = damaged(storage, number)
        assert finished(reader.progress) == [2, 3, 4, 7, 12]
        assert not reader.progress.votes
        assert is_known_damage(reader, number)
        assert len(reader.damage) == 1
    reader = damaged(storage, start + 1, start + 2)
    assert finished(reader.progress) == [2, 3, 4, 7, 12]


@pytest.mark.parametrize("committed", [True, False])
def test_a_damaged_outcome_leaves_the_vote_open(committed: bool) -> None:
    """It is reported, and the vote can be settled again; what was finished stays finished."""
    storage, _ = with_check(vote_changes(VOTE), outcome_changes(VOTE, committed=committed), [done(12)])
    number = FIRST + len(vote_changes(VOTE))
    reader = damaged(storage, number)
    assert list(reader.progress.votes.values()) == [VOTE]
    assert finished(reader.progress) == ([2, 3, 4, 7, 12] if committed else [12])
    assert reader.progress.held_count == (0 if committed else 4)
    assert is_known_damage(reader, number)


def test_a_damaged_vote_whose_commit_stands_costs_nothing() -> None:
    """The outcome names the messages once more."""
    storage, _ = with_check(vote_changes(VOTE), outcome_changes(VOTE, committed=True))
    for number in range(FIRST, FIRST + len(vote_changes(VOTE))):
        assert finished(damaged(storage, number).progress) == [2, 3, 4, 7]


def test_a_reader_that_looks_in_the_middle_of_a_vote_waits_for_the_rest() -> None:
    """Reading continues where it stopped, and the vote counts once it is whole."""
    storage = new_storage()
    positions = writer(storage)
    whole = storage.crash_keeping_all()
    size = len(vote_changes(VOTE))
    positions.append(vote_changes(VOTE))
    content = storage.open(position_file(GROUP, 1)).read_at(size * ENTRY.size, FRAMES_START + FIRST * ENTRY.size)
    reader = read(whole)
    file = whole.open(position_file(GROUP, 1))
    for number in range(size):
        assert not reader.refresh().votes
        at = number * ENTRY.size
        file.write_at((content[at : at + ENTRY.size],), FRAMES_START + FIRST * ENTRY.size + at)
    assert list(reader.refresh().votes.values()) == [VOTE]
    assert not reader.damage


def test_settling_that_was_interrupted_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between letting go of a long run and of a single message; the next attempt lets go of the rest."""
    long = range(100_000, 500_000)
    both = vote(long, range(2, 3))
    progress = GroupProgress()
    progress.hold(both)
    assert progress.is_held(2)
    assert progress.is_held(long.start)

    class Interrupted(dict[int, int]):
        """Is interrupted when something is taken out."""

        def pop(self, *_: object) -> int:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(progress, "_held", Interrupted(progress._held))
        with pytest.raises(KeyboardInterrupt):
            progress.settle(both.nonce, committed=False)
        assert list(progress.votes) == [both.nonce]
        held = dict(progress._held)
    progress._held = held
    progress.settle(both.nonce, committed=False)
    assert not progress.votes
    assert (progress.held_count, progress.held_offsets(1000)) == (0, [])
    assert not progress.is_finished(2)
