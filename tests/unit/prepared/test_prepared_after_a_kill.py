"""Names in ``prepared/`` that were not synced when their process died: the next one makes them durable as it opens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import HoldfastError, PersistentQueue
from support.builders.jobs import Jobs
from support.storages.refusals import refusing

PART_OF = ("stream", 1)

ABORTS: dict[str, Callable[[PersistentQueue], object]] = {
    "by id": lambda queue: queue.abort_prepared("t"),
    "joint": lambda queue: queue.joint_commits.abort(*PART_OF),
    "collection": lambda queue: queue.joint_commits.collect(0),
}


def prepare(queue: PersistentQueue, *, is_part: bool) -> None:
    """Prepare a message in a file, as streams are; if it is no part of a joint commit, with an acknowledgement."""
    transaction = queue.begin()
    transaction.put_stream([b"new"])
    if not is_part:
        transaction.ack(transaction.receive(timeout=0))
    transaction.prepare("t", part_of=PART_OF if is_part else None)


def killed_at_the_sync(jobs: Jobs, call: Callable[[], object]) -> Jobs:
    """Make a call, and return what a kill leaves in front of its sync of ``prepared/``."""
    found: list[Jobs] = []

    def kill(verb: str, path: Path) -> None:
        if verb == "sync_directory" and path.name == "prepared":
            found.append(jobs.killed())
            raise OSError

    jobs.storage.before_verb = kill
    with suppress(HoldfastError):
        call()
    jobs.storage.before_verb = None
    return found[0]


@pytest.mark.parametrize("name", ABORTS)
def test_an_abort_that_is_asked_for_again_stays_over_a_loss_of_power(name: str) -> None:
    """The removal was cut off in front of its sync; for the next handle there is nothing left to abort."""
    jobs = Jobs()
    queue = jobs.open()
    queue.put(b"old")
    prepare(queue, is_part=name != "by id")
    killed = killed_at_the_sync(jobs, lambda: ABORTS[name](queue))
    with killed.open() as again:
        assert again.prepared() == []
        ABORTS[name](again)
        without_power = killed.without_power()
    with without_power.open() as last:
        assert last.prepared() == []
        assert [each.payload for each in last.peek(9)] == [b"old"]


def test_an_abort_by_id_stays_over_a_loss_of_power_if_its_removal_could_not_be_synced() -> None:
    """A later sync proves nothing of what an earlier one has lost, but the outcome is remembered: it is aborted."""
    jobs = Jobs()
    queue = jobs.open()
    queue.put(b"old")
    prepare(queue, is_part=False)
    with refusing(jobs.storage, "sync_directory", "prepared"):
        queue.abort_prepared("t")
    killed = jobs.killed()
    with killed.open() as again:
        again.abort_prepared("t")
        without_power = killed.without_power()
    with without_power.open() as last:
        assert last.prepared() == []
        assert [each.payload for each in last.peek(9)] == [b"old"]


def test_a_joint_abort_whose_sync_has_failed_can_be_asked_for_again_at_any_time() -> None:
    """A loss of power may bring the part back: it is in doubt, and can only be aborted by whoever commits jointly."""
    jobs = Jobs()
    queue = jobs.open()
    prepare(queue, is_part=True)
    with refusing(jobs.storage, "sync_directory", "prepared"), pytest.raises(HoldfastError):
        queue.joint_commits.abort(*PART_OF)
    with jobs.without_power().open() as last:
        assert [each.id for each in last.prepared()] == ["t"]
        last.joint_commits.abort(*PART_OF)
        assert last.prepared() == []


def test_what_the_next_handle_shows_as_prepared_stays_over_a_loss_of_power() -> None:
    """Its process has died behind the rename: whoever asks again is told that it is prepared."""
    jobs = Jobs()
    queue = jobs.open()
    prepare(queue, is_part=True)
    queue.joint_commits.abort(*PART_OF)  # what is made once is there
    killed = killed_at_the_sync(jobs, lambda: prepare(queue, is_part=True))
    with killed.open() as again:
        assert [each.id for each in again.prepared()] == ["t"]
        without_power = killed.without_power()
    with without_power.open() as last:
        assert [each.id for each in last.prepared()] == ["t"]
        last.joint_commits.commit(*PART_OF, ["t"])
        assert last.get(timeout=0) == b"new"
