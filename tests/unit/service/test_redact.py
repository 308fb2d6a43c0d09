"""Secrets in what handlers raise: a service's hook takes them out for all of its queues, wherever they would go."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from holdfast import AsyncQueueService, QueueService
from holdfast.cli.work import _TextLines
from support.consumers import running
from support.threads import wait_until

SECRET = "token=s3cret"


def without_secrets(said: str) -> str:
    """Take the secret out."""
    return said.replace(SECRET, "token=***")


def test_a_handlers_secret_reaches_neither_log_nor_catalogue_nor_any_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a retry, and of the failure that was the last; the message is not lost."""
    with (
        caplog.at_level(logging.DEBUG, "holdfast"),
        QueueService(tmp_path / "service", redact=without_secrets) as service,
    ):
        orders = service.queue("orders", max_deliveries=2, backoff=[])

        @service.consumer(orders)
        def handle(order: object) -> None:
            raise ValueError(f"refused: {SECRET}")

        orders.put({"number": 1})
        with running(service):
            wait_until(lambda: len(orders.dead.list()) == 1)
        assert orders.dead.list()[0].detail == "refused: token=***"
    retries = [record for record in caplog.records if "failed at delivery" in record.getMessage()]
    dead = [record for record in caplog.records if "is a dead letter at delivery 2" in record.getMessage()]
    assert [record.levelno for record in retries] == [logging.WARNING]
    assert [record.levelno for record in dead] == [logging.ERROR]
    assert dead[0].exc_info is not None
    assert "token=***" in retries[0].getMessage()
    assert not any(SECRET in str(record.__dict__) for record in caplog.records)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "catalog.db" for path in files)
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_service_for_tasks_takes_the_same_hook(tmp_path: Path) -> None:
    """It is one of the options of the service below."""
    service = AsyncQueueService(tmp_path / "service", redact=without_secrets)
    with service.sync:
        orders = service.sync.queue("orders", max_deliveries=1)
        orders.put({"number": 1})
        with pytest.raises(ValueError, match="refused"), orders.receive(timeout=0):
            raise ValueError(f"refused: {SECRET}")
        assert orders.dead.list()[0].detail == "refused: token=***"


def test_the_command_writes_records_of_all_loggers_in_lines_that_cannot_be_forged() -> None:
    """Those of the program's own loggers too, and their tracebacks."""
    try:
        raise ValueError("a\nERROR forged")
    except ValueError:
        info = sys.exc_info()
    record = logging.LogRecord("program", logging.ERROR, "", 0, "failed: %s", ("a\nERROR forged",), info)
    lines = _TextLines("%(levelname)s %(message)s").format(record).splitlines()
    assert lines[0] == "ERROR failed: a\\nERROR forged"
    assert all(line.startswith("    ") for line in lines[1:])
    assert lines[-1].strip() == "ERROR forged"
