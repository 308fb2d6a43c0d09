"""Transactions in doubt while the queue that decides is missing, locked, moved, or gone for good."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import PersistentQueue, TransactionStateError, verify
from support.builders.transactions import waiting
from support.processes.children import Signal, child
from support.storages.simulated_storage import SimulatedStorage
from support.workloads.half_commits import BOTH, NEITHER, OUTCOMES

Bring = Callable[[Callable[[], SimulatedStorage]], Path]


def found(hub: PersistentQueue, aside: PersistentQueue) -> tuple[list[bytes], list[bytes]]:
    """Return what waits in the two, where nothing is in doubt."""
    assert [queue.prepared() for queue in (hub, aside)] == [[], []]
    return waiting(hub), waiting(aside)


@pytest.fixture
def trees(tmp_path: Path) -> Bring:
    """Bring a simulated disk onto the real one."""

    def bring(crash: Callable[[], SimulatedStorage]) -> Path:
        for path, content in sorted(crash().tree().items()):
            real = tmp_path / path.relative_to("/")
            if content is None:
                real.mkdir(exist_ok=True)
            else:
                real.write_bytes(content)
        return tmp_path

    return bring


def in_doubt(queue: PersistentQueue, hub: Path) -> str:
    """Check that one transaction is in doubt there, and return its id."""
    (only,) = queue.prepared()
    assert (only.put_count, only.ack_count, only.coordinator, only.damage) == (1, 1, hub, ())
    assert waiting(queue) == [b"two"]
    return only.id


@pytest.mark.parametrize("name", OUTCOMES)
def test_it_stays_in_doubt_while_the_other_queue_is_missing(trees: Bring, name: str) -> None:
    """And says whom it waits for; once that one is back it follows, also without a restart."""
    crash, outcome = OUTCOMES[name]
    root = trees(crash)
    (root / "hub").rename(root / "elsewhere")
    with PersistentQueue(root / "aside", mode="exclusive") as aside:
        transaction_id = in_doubt(aside, root / "hub")
        for call in (aside.commit_prepared, aside.abort_prepared):
            with pytest.raises(TransactionStateError, match=r"decided by the log of .*/hub.*force=True") as error:
                call(transaction_id)
            assert error.value.state == "prepared"
        assert verify(root / "aside").notes == ("1 transaction is prepared",)
        (root / "elsewhere").rename(root / "hub")
        assert aside.prepared() == []
        assert waiting(aside) == outcome[1]
    with (
        PersistentQueue(root / "hub", mode="exclusive") as hub,
        PersistentQueue(root / "aside", mode="exclusive") as aside,
    ):
        assert found(hub, aside) == outcome


@pytest.mark.parametrize("name", OUTCOMES)
def test_it_stays_in_doubt_while_another_process_has_the_other_queue(trees: Bring, name: str) -> None:
    """Its log is read under its lock only."""
    crash, outcome = OUTCOMES[name]
    root = trees(crash)
    opened, leave = Signal(), Signal()

    def own() -> None:
        with PersistentQueue(root / "hub", mode="exclusive"):
            opened.send()
            leave.wait()

    with child(own) as process:
        opened.wait()
        with PersistentQueue(root / "aside", mode="exclusive") as aside:
            in_doubt(aside, root / "hub")
            leave.send()
            assert process.wait() == 0
            assert aside.prepared() == []
            assert waiting(aside) == outcome[1]
    opened.close()
    leave.close()


@pytest.mark.parametrize("name", OUTCOMES)
def test_another_queue_in_the_place_of_the_other_one_decides_nothing(trees: Bring, name: str) -> None:
    """It is known by its id, not by its name."""
    root = trees(OUTCOMES[name][0])
    (root / "hub").rename(root / "elsewhere")
    with PersistentQueue(root / "hub", mode="exclusive"), PersistentQueue(root / "aside", mode="exclusive") as aside:
        in_doubt(aside, root / "hub")


@pytest.mark.parametrize("name", OUTCOMES)
def test_queues_that_are_moved_together_find_each_other(trees: Bring, name: str) -> None:
    """What they know of each other is how to get from one to the other."""
    crash, outcome = OUTCOMES[name]
    root = trees(crash)
    (root / "new" / "home").mkdir(parents=True)
    for queue in ("hub", "aside"):
        (root / queue).rename(root / "new" / "home" / queue)
    with PersistentQueue(root / "new" / "home" / "aside", mode="exclusive") as aside:
        assert (aside.prepared(), waiting(aside)) == ([], outcome[1])


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_link_to_a_queue_is_as_good_as_the_queue(trees: Bring, name: str) -> None:
    """Paths are those of the real directories."""
    crash, outcome = OUTCOMES[name]
    root = trees(crash)
    (root / "links").mkdir()
    (root / "links" / "parent").symlink_to(root)
    with PersistentQueue(root / "links" / "parent" / "aside", mode="exclusive") as aside:
        assert (aside.prepared(), waiting(aside)) == ([], outcome[1])


@pytest.mark.parametrize(("name", "commits"), [*itertools.product(OUTCOMES, [True, False])])
def test_force_decides_here_what_another_queue_should(trees: Bring, name: str, commits: bool) -> None:
    """For when that one is gone; when it comes back nothing is done twice."""
    root = trees(OUTCOMES[name][0])
    (root / "hub").rename(root / "elsewhere")
    with PersistentQueue(root / "aside", mode="exclusive") as aside:
        transaction_id = in_doubt(aside, root / "hub")
        if commits:
            assert aside.commit_prepared(transaction_id, force=True) == range(2, 3)
        else:
            aside.abort_prepared(transaction_id, force=True)
        assert aside.prepared() == []
        left = BOTH[1] if commits else NEITHER[1]
        assert waiting(aside) == left
    (root / "elsewhere").rename(root / "hub")
    with (
        PersistentQueue(root / "hub", mode="exclusive") as hub,
        PersistentQueue(root / "aside", mode="exclusive") as aside,
    ):
        assert found(hub, aside) == (OUTCOMES[name][1][0], left)
