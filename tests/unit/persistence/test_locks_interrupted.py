"""KeyboardInterrupt while a lock is taken or let go of: it does not stay locked in a process that lives."""

from pathlib import Path

from holdfast import PersistentQueue
from holdfast.persistence.group_files import groups_locked
from support.interruptions import interrupt


def test_the_list_of_groups_is_free_wherever_somebody_who_holds_it_is_interrupted(tmp_path: Path) -> None:
    """The first receive takes it; else every later one would wait for it, and fail."""
    with PersistentQueue(tmp_path / "queue") as queue:
        storage, directory, clock = queue._storage, queue.sides.directory, queue._clock

        def hold() -> None:
            with groups_locked(storage, directory, clock):
                pass

        at = 1
        while interrupt(hold, at):
            with groups_locked(storage, directory, clock):
                at += 1
        assert at > 10
