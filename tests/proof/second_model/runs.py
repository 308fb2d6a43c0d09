"""Runs one history under the judge's eyes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from holdfast import Full
from holdfast.errors import NO_ROOM
from holdfast.queue.client.staging import Staging
from holdfast.queue.engine import consumer_lag
from holdfast.queue.owner.machine import Machine
from holdfast.queue.owner.parked import is_space
from holdfast.queue.producer.capacity import Capacity
from proof.second_model.facts import DisagreementError, TooManyStatesError
from proof.second_model.histories import Player
from proof.second_model.witness import watching
from support.builders.handles import no_passes
from support.builders.small_steps import small_steps
from support.owners.machine_link import machine_links


@dataclass(frozen=True)
class Run:
    """What came of one history; ``trace`` is None where all of it was allowed."""

    call_count: int
    crash_count: int
    trace: str | None
    was_cut: bool = False  # ended early, as the judge gave up

    @property
    def verdict(self) -> str:
        """The first lines of the trace: the call, and what would have been allowed."""
        return "\n".join((self.trace or "").splitlines()[:2])


@contextmanager
def full_at_once() -> Iterator[None]:
    """Have a full queue refuse without a wait, in each mode: the only thread is the one that could make room."""
    wait_for_space, park = Staging.wait_for_space, Machine._park

    def look_once(staging: Staging, count: int, size: int, timeout: float | None) -> None:
        wait_for_space(staging, count, size, 0)

    def refuse(machine: Machine, connection: int, frame: Any, request: Any, resource: str, *others: Any) -> None:
        if is_space(resource):
            raise Full(NO_ROOM)
        park(machine, connection, frame, request, resource, *others)

    with (
        patch.object(consumer_lag, "_LOOK_SECONDS", -1),  # at each call: else what it knows depends on the machine
        patch.object(Capacity, "wait", side_effect=Full),
        patch.object(Staging, "wait_for_space", look_once),
        patch.object(Machine, "_park", refuse),
    ):
        yield


def judged_history(seed: int, step_count: int) -> Run:
    """Play one history, without passes of retention.

    It goes to its end, or to the first answer that is not allowed, or until too many states are possible.
    """
    with watching() as watch, full_at_once(), small_steps(), machine_links() as machines, no_passes():
        player = Player(seed, machines)
        try:
            player.play(step_count)
        except DisagreementError:
            return Run(watch.call_count, player.crash_count, watch.disagreements[0])
        except TooManyStatesError:
            return Run(watch.call_count, player.crash_count, None, was_cut=True)
        finally:
            player.queue.close()
        return Run(watch.call_count, player.crash_count, None)
