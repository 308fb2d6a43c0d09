"""Looking at a queue whose files do not say where its log ends."""

from pathlib import Path

import pytest

from holdfast.persistence.report import UNSYNCED_OR_DAMAGED
from support.simulated_storage import SimulatedStorage
from support.small_queues import SmallQueue
from support.transactions import ORDERS, open_queue, waiting

MARK = ORDERS / "write.mark"


@pytest.fixture
def damaged() -> SimulatedStorage:
    """A queue with a message, whose write.mark does not verify."""
    storage = SimulatedStorage()
    with open_queue(storage) as queue:
        queue.put(b"one")
    small = SmallQueue(ORDERS, storage, 1)
    small.write(MARK, b"\1" * len(small.read(MARK)))
    return storage


def test_a_look_that_cannot_know_the_end_shows_nothing_and_says_why(damaged: SimulatedStorage) -> None:
    """Once, however often it looks; whoever opens the queue to consume finds the end, and then it is shown."""
    with open_queue(damaged, mode="look") as look:
        assert waiting(look) == waiting(look) == []
        (damage,) = look.recovery.damage
        assert (damage.path, damage.verdict) == (MARK, UNSYNCED_OR_DAMAGED)
    open_queue(damaged).close()
    with open_queue(damaged, mode="look") as look:
        assert waiting(look) == [b"one"]
        assert look.recovery.damage == ()


def test_a_mark_that_is_whole_at_the_second_look_is_no_damage(damaged: SimulatedStorage) -> None:
    """Its owner overwrites it in place."""
    small = SmallQueue(ORDERS, damaged, 1)
    broken = small.read(MARK)
    open_queue(damaged).close()
    whole = small.read(MARK)
    small.write(MARK, broken)
    with open_queue(damaged, mode="look") as look:
        reads: list[Path] = []

        def mend(verb: str, path: Path) -> None:
            if verb == "read_at" and path == MARK:
                reads.append(path)
                if len(reads) == 3:
                    small.write(MARK, whole)

        damaged.before_verb = mend
        assert waiting(look) == []
        damaged.before_verb = None
        assert len(reads) == 3
        assert waiting(look) == [b"one"]
        assert look.recovery.damage == ()
