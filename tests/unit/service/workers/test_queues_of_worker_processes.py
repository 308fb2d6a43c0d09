"""The queues of a service as a worker process opens them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import ConfigError, PersistentQueue, QueueLockedError
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.service import queue_opener
from holdfast.service.queue_service import QueueService
from support.processes.children import child
from support.processes.threads import wait_until


@pytest.fixture(autouse=True)
def _in_a_worker_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_opener, "is_worker_process", lambda: True)


def owner(path: Path, ready: Path) -> Callable[[], None]:
    """Return what shares a queue, and owns it, until its process is killed."""

    def own() -> None:
        with PersistentQueue(path, mode="shared"):
            ready.touch()
            signal.pause()

    return own


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_it_is_a_client_whatever_the_mode_of_its_service(tmp_path: Path, mode: str) -> None:
    """The process that has started it owns the queue."""
    with PersistentQueue(tmp_path / "orders", mode="shared") as owned:
        with QueueService(tmp_path, mode=mode, catalog=False) as service:
            orders = service.queue("orders", type=int)
            assert orders.put(1) == 0
            assert (orders.raw.mode, orders.raw.is_owner) == ("shared", False)
        assert owned.get(timeout=5) == b"1"


def test_a_queue_that_is_not_shared_is_refused_with_the_name_of_its_process(tmp_path: Path) -> None:
    """At the first put."""
    with (
        PersistentQueue(tmp_path / "orders", mode="exclusive"),
        QueueService(tmp_path, mode="exclusive", catalog=False) as service,
        pytest.raises(
            QueueLockedError, match=f"process {os.getpid()} on .* open the service with mode='shared'"
        ) as caught,
    ):
        service.queue("orders", type=int).put(1)
    assert caught.value.pid == os.getpid()


def test_an_owner_that_does_not_answer_is_told_of_as_to_any_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares the queue, and is stopped: to open the service in another mode is no help."""
    monkeypatch.setattr("holdfast.queue.client.membership.OWNER_SECONDS", 0.2)
    ready = tmp_path / "ready"
    with child(owner(tmp_path / "orders", ready)) as process, QueueService(tmp_path, catalog=False) as service:
        wait_until(ready.exists)
        process.stop()
        try:
            with pytest.raises(QueueLockedError, match=f"process {process.pid} on .* does not answer"):
                service.queue("orders", type=int).put(1)
        finally:
            os.kill(process.pid, signal.SIGCONT)


def test_what_the_service_allows_is_allowed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that others may share."""
    monkeypatch.setattr(OsStorage, "file_system", lambda self, path: "nfs4")
    with QueueService(tmp_path, catalog=False) as service:
        assert service.queue("orders", type=int, any_file_system=True).put(1) == 0
        with pytest.raises(ConfigError, match="nfs4"):
            service.queue("mail", type=int).put(1)
