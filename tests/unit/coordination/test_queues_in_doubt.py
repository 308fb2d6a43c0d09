"""What a crash leaves of a transaction over two queues: whoever prepared asks whoever decides, in any order."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from holdfast import HoldfastError, PersistentQueue, TransactionStateError, verify
from support.processes import Signal, child
from support.simulated_storage import SimulatedStorage
from support.transactions import cut_power, kill, open_queue, waiting

HUB = Path("/hub")
"""The queue whose log decides: it is named first, and puts."""

ASIDE = Path("/aside")
"""The queue that prepares."""

NEITHER = ([b"one", b"two"], [b"one", b"two"])
BOTH = ([b"one", b"two", b"new"], [b"two", b"new"])


class Killed(BaseException):
    """The process dies here."""


def crash_in_commit(when: Callable[[str, Path], bool]) -> SimulatedStorage:
    """Return what a kill leaves at the first storage call of a commit for which ``when`` holds."""
    storage = SimulatedStorage()
    left: list[SimulatedStorage] = []
    with open_queue(storage, HUB) as hub, open_queue(storage, ASIDE) as aside:
        for queue in (hub, aside):
            queue.put_many([b"one", b"two"])
        tx = holdfast.transaction(hub, aside)
        tx.put(hub, b"new")
        tx.put(aside, b"new")
        tx.ack(aside, tx.receive(aside, timeout=0))

        def watch(verb: str, path: Path) -> None:
            if not left and when(verb, path):
                left.append(storage.crash_keeping_all())

        storage.before_verb = watch
        tx.commit()
        storage.before_verb = None
    assert left, "the commit never came there"
    return left[0]


def writes_log(queue: Path, verb: str, path: Path) -> bool:
    """Whether a storage call appends to a queue's log; a file goes by the name that it was made under."""
    return verb == "write_at" and path.parent in (queue / "data", queue / "spare")


def voted() -> SimulatedStorage:
    """Return a disk where the one has prepared and the other has not decided."""
    return crash_in_commit(lambda verb, path: writes_log(HUB, verb, path))


def decided() -> SimulatedStorage:
    """Return a disk where the other has decided and the one does not know it."""
    return crash_in_commit(lambda verb, path: writes_log(ASIDE, verb, path))


OUTCOMES = {"voted": (voted, NEITHER), "decided": (decided, BOTH)}


def found(hub: PersistentQueue, aside: PersistentQueue) -> tuple[list[bytes], list[bytes]]:
    """Return what waits in the two, where nothing is in doubt."""
    assert [queue.prepared() for queue in (hub, aside)] == [[], []]
    return waiting(hub), waiting(aside)


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("order", ["hub first", "aside first", "one by one", "aside alone"])
def test_they_agree_in_whatever_order_they_are_opened(name: str, order: str) -> None:
    """Who asks first finds the other one closed, open, or recovers it himself."""
    crash, outcome = OUTCOMES[name]
    storage = crash()
    if order == "aside alone":
        with open_queue(storage, ASIDE) as aside:
            assert (aside.prepared(), waiting(aside)) == ([], outcome[1])
        storage = storage.crash_dropping_unsynced()
    if order == "one by one":
        for path, left in zip((HUB, ASIDE), outcome, strict=True):
            with open_queue(storage, path) as queue:
                assert (queue.prepared(), waiting(queue)) == ([], left)
    with ExitStack() as stack:
        paths = [ASIDE, HUB] if order == "aside first" else [HUB, ASIDE]
        opened = {path: stack.enter_context(open_queue(storage, path)) for path in paths}
        assert found(opened[HUB], opened[ASIDE]) == outcome
        assert opened[HUB].put(b"after") == len(outcome[0])


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("modes", [("produce", "consume"), ("consume", "produce")])
def test_each_side_settles_what_is_its_own(name: str, modes: tuple[str, str]) -> None:
    """The puts are the producer's, the votes are the consumer's; which comes first does not matter."""
    crash, outcome = OUTCOMES[name]
    storage = crash()
    for mode in modes:
        with open_queue(storage, ASIDE, mode=mode) as queue:
            assert len(queue.prepared()) <= 1
    with open_queue(storage, HUB) as hub, open_queue(storage, ASIDE) as aside:
        assert found(hub, aside) == outcome


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_decision_outlives_the_file_it_stands_in(name: str) -> None:
    """It is carried from file to file until everybody has followed, over restarts and losses of power."""
    crash, outcome = OUTCOMES[name]
    storage = crash()
    for _ in range(3):
        hub = open_queue(storage, HUB)
        hub.put_many([bytes(1000)] * 150)
        hub.get_many(1000)
        storage = cut_power(storage, hub)
    with open_queue(storage, ASIDE) as aside:
        assert (aside.prepared(), waiting(aside)) == ([], outcome[1])


def test_a_decision_ends_once_everybody_has_followed() -> None:
    """Then nothing of it is carried any more."""
    storage = decided()
    with open_queue(storage, HUB) as hub:
        assert hub.sides.write_side is not None
        assert len(hub.sides.write_side.open_decisions) == 1
        with open_queue(storage, ASIDE):
            pass
        hub.sides.write_side.end_decisions()
        assert len(hub.sides.write_side.open_decisions) == 0


# -- While nobody answers --------------------------------------------------------------------------------------------


@pytest.fixture
def trees(tmp_path: Path) -> Iterator[Callable[[Callable[[], SimulatedStorage]], Path]]:
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


Bring = Callable[[Callable[[], SimulatedStorage]], Path]


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
    with PersistentQueue(root / "aside") as aside:
        transaction_id = in_doubt(aside, root / "hub")
        for call in (aside.commit_prepared, aside.abort_prepared):
            with pytest.raises(TransactionStateError, match=r"decided by the log of .*/hub.*force=True") as error:
                call(transaction_id)
            assert error.value.state == "prepared"
        assert verify(root / "aside").notes == ("1 transaction is prepared",)
        (root / "elsewhere").rename(root / "hub")
        assert aside.prepared() == []
        assert waiting(aside) == outcome[1]
    with PersistentQueue(root / "hub") as hub, PersistentQueue(root / "aside") as aside:
        assert found(hub, aside) == outcome


@pytest.mark.parametrize("name", OUTCOMES)
def test_it_stays_in_doubt_while_another_process_has_the_other_queue(trees: Bring, name: str) -> None:
    """Its log is read under its lock only."""
    crash, outcome = OUTCOMES[name]
    root = trees(crash)
    opened, leave = Signal(), Signal()

    def own() -> None:
        with PersistentQueue(root / "hub", mode="produce"):
            opened.send()
            leave.wait()

    with child(own) as process:
        opened.wait()
        with PersistentQueue(root / "aside") as aside:
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
    with PersistentQueue(root / "hub"), PersistentQueue(root / "aside") as aside:
        in_doubt(aside, root / "hub")


@pytest.mark.parametrize("name", OUTCOMES)
def test_queues_that_are_moved_together_find_each_other(trees: Bring, name: str) -> None:
    """What they know of each other is how to get from one to the other."""
    crash, outcome = OUTCOMES[name]
    root = trees(crash)
    (root / "new" / "home").mkdir(parents=True)
    for queue in ("hub", "aside"):
        (root / queue).rename(root / "new" / "home" / queue)
    with PersistentQueue(root / "new" / "home" / "aside") as aside:
        assert (aside.prepared(), waiting(aside)) == ([], outcome[1])


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_link_to_a_queue_is_as_good_as_the_queue(trees: Bring, name: str) -> None:
    """Paths are those of the real directories."""
    crash, outcome = OUTCOMES[name]
    root = trees(crash)
    (root / "links").mkdir()
    (root / "links" / "parent").symlink_to(root)
    with PersistentQueue(root / "links" / "parent" / "aside") as aside:
        assert (aside.prepared(), waiting(aside)) == ([], outcome[1])


@pytest.mark.parametrize(("name", "commits"), [*itertools.product(OUTCOMES, [True, False])])
def test_force_decides_here_what_another_queue_should(trees: Bring, name: str, commits: bool) -> None:
    """For when that one is gone; when it comes back nothing is done twice."""
    root = trees(OUTCOMES[name][0])
    (root / "hub").rename(root / "elsewhere")
    with PersistentQueue(root / "aside") as aside:
        transaction_id = in_doubt(aside, root / "hub")
        if commits:
            assert aside.commit_prepared(transaction_id, force=True) == range(2, 3)
        else:
            aside.abort_prepared(transaction_id, force=True)
        assert aside.prepared() == []
        left = BOTH[1] if commits else NEITHER[1]
        assert waiting(aside) == left
    (root / "elsewhere").rename(root / "hub")
    with PersistentQueue(root / "hub") as hub, PersistentQueue(root / "aside") as aside:
        assert found(hub, aside) == (OUTCOMES[name][1][0], left)


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_group_that_was_deleted_waits_for_nothing(name: str) -> None:
    """Its votes have gone with it; the puts beside them follow all the same, and the decision can end."""
    crash, outcome = OUTCOMES[name]
    storage = crash()
    with open_queue(storage, ASIDE, mode="produce") as aside:
        aside.groups.create("b")
        aside.groups.delete("default")
    with open_queue(storage, HUB) as hub, open_queue(storage, ASIDE, group="b") as aside:
        assert found(hub, aside) == (outcome[0], [b"one", b"two", *outcome[1][-1:]][: 2 + (name == "decided")])
        assert hub.sides.write_side is not None
        hub.sides.write_side.end_decisions()
        assert len(hub.sides.write_side.open_decisions) == 0


def test_while_a_commit_is_under_way_nobody_takes_it_for_aborted() -> None:
    """Looking at the queue that has prepared, in the middle of the commit, settles nothing."""
    storage = SimulatedStorage()
    with open_queue(storage, HUB) as hub, open_queue(storage, ASIDE) as aside:
        aside.put(b"one")
        tx = holdfast.transaction(hub, aside)
        tx.put(hub, b"new")
        tx.put(aside, b"new")
        tx.ack(aside, tx.receive(aside, timeout=0))
        seen: list[int] = []

        def look(verb: str, path: Path) -> None:
            if writes_log(HUB, verb, path):
                storage.before_verb = None
                seen.append(len(aside.prepared()))

        storage.before_verb = look
        tx.commit()
        assert seen == [1]
        assert found(hub, aside) == ([b"new"], [b"new"])


def test_a_participant_that_cannot_follow_now_follows_later() -> None:
    """The commit stands, and returns; the other queue is in step once it is opened again."""
    storage = SimulatedStorage()
    hub, aside = open_queue(storage, HUB), open_queue(storage, ASIDE)
    tx = holdfast.transaction(hub, aside)
    tx.put(hub, b"new")
    tx.put(aside, b"new")

    def fail(verb: str, path: Path) -> None:
        if writes_log(ASIDE, verb, path):
            raise OSError(5, "I/O error")

    storage.before_verb = fail
    assert tx.commit()[hub] == range(1)
    storage.before_verb = None
    assert waiting(hub) == [b"new"]
    try:
        aside.close()
    except HoldfastError:
        pass
    storage = kill(storage, hub)
    with open_queue(storage, ASIDE) as aside, open_queue(storage, HUB) as hub:
        assert found(hub, aside) == ([b"new"], [b"new"])
