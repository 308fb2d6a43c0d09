"""Commits over several queues that are open in this process, as by their owner."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from holdfast import PersistentQueue, QueueNotFoundError
from holdfast.clock import Clock
from holdfast.queue.queues_joint_commits import QueuesJointCommits
from support.storages.simulated_storage import SimulatedStorage

DATA = Path("/")
"""The directory of these queues."""


class OpenQueues(QueuesJointCommits):
    """Commits over these queues, and leaves them open.

    Parameters
    ----------
    storage, clock
        Where they are.
    queues : collection of PersistentQueue
        All of them.
    away : collection of str
        Names of queues that are not found.
    """

    def __init__(
        self,
        storage: SimulatedStorage,
        clock: Clock,
        queues: Collection[PersistentQueue],
        away: Collection[str] = (),
    ) -> None:
        super().__init__(DATA, storage, clock, mode="exclusive")
        self._queues: Mapping[str, PersistentQueue] = {queue.path.name: queue for queue in queues}
        self._away = away

    def _opened(self, name: str) -> Any:
        if name in self._away:
            raise QueueNotFoundError(f"no queue at {DATA / name}", path=str(DATA / name))
        return nullcontext(self._queues[name])
