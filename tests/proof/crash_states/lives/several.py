"""Commits over several queues of a life: a document beside them decides, and each queue follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from holdfast import StorageError
from proof.crash_states.history import Part, Side, State
from proof.crash_states.lives.books import PREPARED, A, B, Books, Held
from proof.crash_states.lives.retaining import Retaining
from proof.crash_states.opening import APPLICATION, CLOCK
from support.builders.joint import file_part, stuck
from support.owners.open_queues import OpenQueues

BESIDE = "beside"
BOTH = (A, B)
ONCE_BYTES = 50
PARTS_OF_BOTH_MAX = 2
"""In each queue."""


class Several(Retaining):
    """Stages parts in both queues, as the tasks of a write do, and commits them as one."""

    version_beside: int | None = None
    _once_count = _part_count = 0

    def past_of(self, other: Books) -> None:
        """As for every life."""
        assert isinstance(other, Several)
        self.version_beside = other.version_beside
        self._once_count, self._part_count = other._once_count, other._part_count
        super().past_of(other)

    @property
    def next_beside(self) -> int:
        """The version that parts in both queues are prepared for."""
        return 0 if self.version_beside is None else self.version_beside + 1

    def parts_beside(self, application: str = APPLICATION) -> list[str]:
        """Return the ids of what waits for a commit over both queues."""
        return sorted(key for key, each in self.held.items() if each.beside == application)

    def part_of_both(self, *sizes: int) -> None:
        """Prepare a part in each queue for the next version."""
        self._open_both()
        for name in BOTH:
            self._stage(name, APPLICATION, self.next_beside, sizes)
            self._return(f"part_of_both({name})")

    def commit_both(self) -> None:
        """Commit all parts as one, the last one first; of two in a queue the first one is left out."""
        chosen = self._chosen()
        self._beside().commit(APPLICATION, self.next_beside, self._named(chosen))
        self._decided(chosen)
        self._return("commit_both")

    def commit_both_again(self) -> None:
        """Commit a version that was committed, by a writer that does not know: nothing happens."""
        assert self.version_beside is not None
        self._open_both()
        self._beside().commit(APPLICATION, self.version_beside, ["a/who-knows"])
        self._return("commit_both_again")

    def abort_both(self) -> None:
        """Abort all parts, one by one; a queue that has any aborts those of its own joint commit before them."""
        self._open_both()
        self._beside().abort(APPLICATION, self.next_beside, id_prefix=BESIDE)
        beside = self.parts_beside()
        has_any = any(self.held[key].queue == A for key in beside)
        for key in [*(self.parts if has_any and self.next_version <= self.next_beside else []), *beside]:
            name = self.held.pop(key).queue
            self._happened({(name, Part.PREPARED): self._in_doubt(name)})
        for name in BOTH:
            self._all_durable(name, Part.PREPARED)
        self._return("abort_both")

    def abort_jointly(self) -> None:
        """Let go of all parts of one queue, one by one; those that wait for a commit over both queues come last."""
        self.queue.joint_commits.abort(APPLICATION, self.next_version)
        beside = [key for key in self.parts_beside() if self.held[key].queue == A]
        for key in [*self.parts, *(beside if self.next_beside <= self.next_version else [])]:
            del self.held[key]
            self._happened({PREPARED: self._in_doubt()})
        self._all_durable(A, Part.PREPARED)
        self._return("abort_jointly")

    def commit_once(self) -> None:
        """Stage a part in each queue and commit both, by an application that commits nothing else."""
        self._open_both()
        self._once_count += 1
        application = f"once-{self._once_count}"
        for name in BOTH:
            self._stage(name, application, 1, [ONCE_BYTES])
        self._return("parts of one commit")
        chosen = self.parts_beside(application)
        self._beside().commit(application, 1, self._named(chosen), is_remembered=False)
        self._decided(chosen, application)
        self._return("commit_once")

    # -- A queue does not follow at once -----------------------------------------------------------------------------

    def decide_and_die(self) -> None:
        """Decide, and be killed before any queue has followed: the next openings do."""
        self._decide(BOTH)
        self.kill()

    def decide_and_leave(self) -> None:
        """Decide, and never come back: another application finishes it with a commit of its own."""
        self._decide(BOTH)
        self.commit_once()

    def carry(self) -> None:
        """Commit the next version while a queue is away that has not followed; then it is back, and follows."""
        self._decide((B,))
        chosen = [self._stage(A, APPLICATION, self.next_beside, [ONCE_BYTES])]
        self._return("part beside one that is away")
        self._beside(away=(B,)).commit(APPLICATION, self.next_beside, self._named(chosen))
        self._decided(chosen)
        self._return("commit beside one that is away")
        assert self.version_beside is not None
        self._beside().commit(APPLICATION, self.version_beside, [])
        self._return("carry")

    def _decide(self, names: Collection[str]) -> None:
        """Commit, and have these queues not follow."""
        self._open_both()
        chosen = self._chosen()
        with stuck(names), pytest.raises(StorageError, match="is decided, and"):
            self._beside().commit(APPLICATION, self.next_beside, self._named(chosen))
        self._decided(chosen)
        self._return("decide")

    # -- What each of them needs -------------------------------------------------------------------------------------

    def _open_both(self) -> None:
        if B not in self.queues:
            self.open(B)
        self._beside().create()

    def _beside(self, away: Collection[str] = ()) -> OpenQueues:
        return OpenQueues(self.storage, CLOCK, self.queues.values(), away)

    def _stage(self, name: str, application: str, version: int, sizes: Sequence[int]) -> str:
        payloads = self._payloads(name, sizes)
        self._part_count += 1
        transaction_id = f"{BESIDE}-{name}-{self._part_count}"  # tasks choose ids like no other
        part_of = self._beside().part_of(application, version)
        file_part(self.storage, self.queues[name].path, transaction_id, part_of, payloads)
        self.held[transaction_id] = Held(payloads, queue=name, beside=application)
        self._happened({(name, Part.PREPARED): self._in_doubt(name)}, durable=True)
        return transaction_id

    def _chosen(self) -> list[str]:
        chosen: list[str] = []
        for name in BOTH:
            of_queue = [key for key in self.parts_beside() if self.held[key].queue == name]
            chosen += reversed(of_queue[1:] if len(of_queue) == PARTS_OF_BOTH_MAX else of_queue)
        return chosen

    def _named(self, keys: Sequence[str]) -> list[str]:
        return [f"{self.held[key].queue}/{key}" for key in keys]

    def _decided(self, chosen: Sequence[str], application: str = APPLICATION) -> None:
        """Note that these parts are in the logs, all at once, and that no other of the application waits any more."""
        states: dict[Side, State] = {}
        for key in chosen:
            name = self.held[key].queue
            self._in_log(name, self.held[key].puts)
            states[name, Part.LOG] = len(self.history.payloads[name])
        for key in self.parts_beside(application):
            del self.held[key]
        states |= {(name, Part.PREPARED): self._in_doubt(name) for name in BOTH}
        if application == APPLICATION:
            self.version_beside = self.next_beside
            states[A, Part.BESIDE] = self.version_beside
        self._happened(states, durable=True)
