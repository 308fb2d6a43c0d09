"""The file that says whether messages of a queue may have a priority, and the headers that say it of one message."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import DiskFullError, StorageError
from holdfast.persistence.filesystem.storage import OsStorage, Storage
from holdfast.persistence.format.constants import PRIORITY_MAX
from holdfast.persistence.format.message_headers import encode_headers
from holdfast.persistence.format.message_options import MessageOptions, has_priority
from holdfast.persistence.index.priorities import Priorities
from support.builders.log_parts import LogParts, with_options
from support.storages.faults import FaultPlan

PLAIN = encode_headers({"origin": "test"})
PRIORITIZED = with_options(MessageOptions(priority=5), PLAIN)

NAME = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
OPTIONS = st.builds(
    MessageOptions,
    not_before_ns=st.integers(0, 2**63 - 1),
    priority=st.integers(0, PRIORITY_MAX),
    expires_ns=st.integers(0, 2**63 - 1),
    dedup_id=NAME,
    order_key=NAME,
)


def file_in(storage: Storage, parts: LogParts) -> bool:
    """Tell whether the file is there."""
    return "priorities" in storage.list(parts.directory.root)


# -- One message -------------------------------------------------------------------------------------------------------


@given(OPTIONS, st.dictionaries(NAME, NAME, max_size=3))
def test_headers_say_whether_a_message_asks_for_a_priority(options: MessageOptions, headers: dict[str, str]) -> None:
    """Whatever else it asks for, and whatever headers it has."""
    assert has_priority(with_options(options, encode_headers(headers))) == bool(options.priority)


@given(st.binary(max_size=60))
def test_headers_that_are_not_ours_are_looked_at_without_an_error(headers: bytes) -> None:
    """What another process asks for is not trusted."""
    assert has_priority(headers) in (True, False)


# -- The file ----------------------------------------------------------------------------------------------------------


def test_a_queue_without_priorities_has_no_file(parts: LogParts) -> None:
    """Looking makes none, nor do messages without a priority."""
    priorities = Priorities(parts.storage, parts.directory)
    priorities.note_for([b"", PLAIN])
    assert not priorities.look()
    assert not priorities.is_used
    assert not file_in(parts.storage, parts)


def test_the_first_priority_makes_an_empty_file_that_a_loss_of_power_leaves(parts: LogParts) -> None:
    """And every later handle finds it."""
    priorities = Priorities(parts.storage, parts.directory)
    priorities.note_for([PLAIN, PRIORITIZED])
    assert priorities.is_used
    crashed = parts.storage.crash_dropping_unsynced()
    assert crashed.tree()[parts.directory.priorities] == b""
    assert Priorities(crashed, parts.directory).is_used


def test_noting_again_costs_nothing(parts: LogParts) -> None:
    """Not even a call that changes nothing."""
    priorities = Priorities(parts.storage, parts.directory)
    priorities.note()
    count = parts.storage.verb_count
    priorities.note()
    priorities.note_for([PRIORITIZED])
    assert priorities.look()
    assert parts.storage.verb_count == count


def test_what_another_handle_notes_is_seen_by_looking(parts: LogParts) -> None:
    """It is looked at again as long as it is not there."""
    priorities = Priorities(parts.storage, parts.directory)
    Priorities(parts.storage, parts.directory).note()
    assert not priorities.is_used
    assert priorities.look()
    assert priorities.is_used


@pytest.mark.parametrize("is_killed", [False, True], ids=["same process", "next process"])
def test_a_file_whose_sync_has_failed_is_made_anew(parts: LogParts, is_killed: bool) -> None:
    """A second sync could succeed over the lost name: only a new name is worth one."""
    storage, priorities = parts.storage, Priorities(parts.storage, parts.directory)
    storage.faults = FaultPlan(1, verbs=frozenset({"sync_directory"}))
    with pytest.raises(StorageError):
        priorities.note()
    if is_killed:
        storage = storage.crash_keeping_all()
        priorities = Priorities(storage, parts.directory)
        assert priorities.is_used, "it is there, if only in memory"
    priorities.note()
    for crashed in storage.crash_states():
        assert file_in(crashed, parts)


def test_a_file_that_is_there_is_there_at_every_moment_of_noting_it_again(parts: LogParts) -> None:
    """Messages of earlier processes rely on it."""
    Priorities(parts.storage, parts.directory).note()
    begun = len(parts.storage.log)
    Priorities(parts.storage, parts.directory).note()
    for count, storage in enumerate(parts.storage.replay()):
        if count >= begun:
            assert all(file_in(crashed, parts) for crashed in storage.crash_states())


@pytest.mark.parametrize("verb", ["open", "rename", "sync_directory"])
def test_a_full_disk_is_told_and_the_next_attempt_is_free(parts: LogParts, verb: str) -> None:
    """Whoever wanted to put has put nothing."""
    priorities = Priorities(parts.storage, parts.directory)
    parts.storage.faults = FaultPlan(1, errno.ENOSPC, verbs=frozenset({verb}))
    with pytest.raises(DiskFullError):
        priorities.note()
    assert not priorities.is_used
    priorities.note()
    assert file_in(parts.storage.crash_dropping_unsynced(), parts)


def test_a_handle_that_loses_the_race_for_the_name_tries_again(parts: LogParts) -> None:
    """Another process renames what both have made, just before this one does."""
    mine, other = (Priorities(parts.storage, parts.directory) for _ in range(2))

    def overtake(verb: str, path: Path) -> None:
        if verb == "rename":
            parts.storage.before_verb = None
            other.note()

    parts.storage.before_verb = overtake
    mine.note()
    assert parts.storage.before_verb is None, "it was overtaken"
    assert sorted(parts.storage.list(parts.directory.root))[-3:] == ["priorities", "queue.json", "spare"]


def test_a_symbolic_link_in_its_place_is_not_followed(tmp_path: Path, parts: LogParts) -> None:
    """Whoever can place one decides nothing."""
    directory = type(parts.directory)(tmp_path)
    directory.priorities.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        Priorities(OsStorage(), directory)


def test_of_two_threads_that_note_the_first_priority_one_does_it(
    parts: LogParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has waited for the lock, and finds it done."""
    priorities = Priorities(parts.storage, parts.directory)
    counts: list[int] = []

    class Overtaken:
        """A lock that is got once another thread has let go of it."""

        def __enter__(self) -> None:
            if not counts:
                counts.append(0)
                priorities.note()
                counts.append(parts.storage.mutation_count)

        def __exit__(self, *_: object) -> None:
            """Nobody else waits."""

    monkeypatch.setattr(priorities, "_lock", Overtaken())
    priorities.note()
    assert priorities.is_used
    assert parts.storage.mutation_count == counts[1]
