"""Secrets in what handlers raise: a service's hook takes them out for all of its queues, wherever they would go."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest

from holdfast import AsyncQueueService, QueueService
from holdfast.cli.log_lines import _TextLines
from support.processes.threads import wait_until
from support.service.consumers import running

SECRET = "token=s3cret"


def without_secrets(said: str) -> str:
    """Take the secret out."""
    return said.replace(SECRET, "token=***")


@pytest.mark.extra("catalog")
def test_a_handlers_secret_reaches_neither_log_nor_catalogue_nor_any_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a retry, and of the failure that was the last; the message is not lost."""
    with (
        caplog.at_level(logging.DEBUG, "holdfast"),
        QueueService(tmp_path / "service", mode="exclusive", redact=without_secrets) as service,
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


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"BEGIN KEY.*?END KEY", "BEGIN KEY\n" + "s3cret line\n" * 500 + "END KEY"),
        (r"AKIA(s3cret){300}", "x " * 1950 + "AKIA" + "s3cret" * 300 + " x"),
        (r"token=\S+", "x " * 3000 + "token=" + "s3cret" * 20 + " x" * 1980),
    ],
    ids=["longer than what is kept", "at the end of what is kept", "where a long line of the traceback is cut"],
)
def test_a_secret_that_is_longer_than_what_is_kept_is_no_secret_cut_in_two(
    tmp_path: Path, pattern: str, said: str
) -> None:
    """The hook sees the text before it is cut; half a secret would not be known for one."""
    with QueueService(
        tmp_path / "service", mode="exclusive", redact=lambda text: re.sub(pattern, "***", text, flags=re.DOTALL)
    ) as service:
        orders = service.queue("orders", max_deliveries=1)
        orders.put({"number": 1})
        with pytest.raises(ValueError, match="s3cret"), orders.receive(timeout=0):
            raise ValueError(said)
        assert len(orders.dead.list()) == 1
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cret" in path.read_bytes()]


def test_a_service_for_tasks_takes_the_same_hook(tmp_path: Path) -> None:
    """It is one of the options of the service below."""
    service = AsyncQueueService(tmp_path / "service", mode="exclusive", redact=without_secrets)
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
