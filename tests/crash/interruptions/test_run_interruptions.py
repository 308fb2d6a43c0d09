"""KeyboardInterrupt wherever it can hit ``run`` of a service: its consumers can be run again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast import QueueService
from proof.interruptions.locks import locked
from proof.interruptions.sweep import promised
from support.processes.interruptions import guarded, interrupted, points_of, without_hanging


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
        points = [
            each for each in promised(points_of(lambda: run_stopped(service))) if each.where.startswith("Workers.run:")
        ]
        assert len(points) > 10
        for point in points:
            with guarded():
                error = interrupted(lambda: run_stopped(service), point)
            assert error is not None, f"{point}: it was not interrupted"
            del error
            assert not locked(service.workers), f"{point}: a lock was left locked"
            without_hanging(lambda: run_stopped(service))
