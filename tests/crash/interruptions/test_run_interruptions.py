"""KeyboardInterrupt wherever it can hit ``run`` of a service: its consumers can be run again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast import QueueService
from proof.interruptions.locks import locked
from proof.interruptions.sweep import promised
from support.processes.interruptions import guarded, interrupted, points_of, without_hanging

TRIES = 5
"""Whether a thread that ends leaves a word behind is a matter of time, and so is whether a run comes to some points."""


def run_stopped(service: QueueService) -> None:
    """Run the consumers, which were told to stop."""
    service.stop()
    service.run()


def test_an_interrupted_run_can_be_begun_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is left locked, before its block, in it and behind it."""
    caplog.set_level(logging.CRITICAL, "holdfast")
    with QueueService(tmp_path, catalog=False) as service:
        service.consumer("orders")(lambda order: None)
        run_stopped(service)
        recorded = [promised(points_of(lambda: run_stopped(service))) for _ in range(3)]
        always = set(recorded[0]).intersection(*recorded[1:])  # a thread that ends may leave a word behind, or not
        points = [each for each in recorded[0] if each in always and each.where.startswith("Workers.run:")]
        assert len(points) > 10
        for point in points:
            error = None
            for _ in range(TRIES):
                with guarded():
                    error = interrupted(lambda: run_stopped(service), point)
                if error is not None:
                    break
            assert error is not None, f"{point}: it was not interrupted"
            del error
            assert not locked(service.workers), f"{point}: a lock was left locked"
            without_hanging(lambda: run_stopped(service))
