"""Runs one history under the judge's eyes."""

from __future__ import annotations

from dataclasses import dataclass
from unittest.mock import patch

from holdfast import Full
from holdfast.queue.producer.capacity import Capacity
from proof.second_model.facts import DisagreementError
from proof.second_model.histories import Player
from proof.second_model.witness import watching
from support.builders.small_steps import small_steps
from support.owners.machine_link import machine_links


@dataclass(frozen=True)
class Run:
    """What came of one history; ``trace`` is None where all of it was allowed."""

    call_count: int
    crash_count: int
    trace: str | None

    @property
    def verdict(self) -> str:
        """The first lines of the trace: the call, and what would have been allowed."""
        return "\n".join((self.trace or "").splitlines()[:2])


def judged_history(seed: int, step_count: int) -> Run:
    """Play one history to its end, or to the first answer that is not allowed."""
    full = patch.object(Capacity, "wait", side_effect=Full)  # nobody else could make room meanwhile
    with watching() as watch, full, small_steps(), machine_links():
        player = Player(seed)
        try:
            player.play(step_count)
        except DisagreementError:
            return Run(watch.call_count, player.crash_count, watch.disagreements[0])
        finally:
            player.queue.close()
        return Run(watch.call_count, player.crash_count, None)
