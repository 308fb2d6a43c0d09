"""Settings in a service: the file counts for every process, variables and arguments have to agree with the queue."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from holdfast import AsyncQueueService, ConfigError, FlushPolicy, PersistentQueue, QueueService
from support.processes.log_handlers import text_said


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a service, which is there."""
    path = tmp_path / "data"
    path.mkdir()
    return path


def configure(data: Path, text: str) -> None:
    """Write the operator's file."""
    (data / "holdfast.toml").write_text(text)


def test_the_file_counts_for_every_process_and_every_queue_that_is_there(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner changes the queue to it; a program that opens the queue by its path finds the same."""
    with QueueService(data, mode="exclusive", catalog=False) as service:
        service.queue("orders").put("one")
    configure(data, '[defaults]\nmaxsize = 5\n[queues.orders]\nmax_deliveries = "none"\n')
    with QueueService(data, mode="exclusive", catalog=False) as service, caplog.at_level(logging.INFO):
        orders = service.queue("orders")
        assert (orders.settings["maxsize"], orders.settings["max_deliveries"]) == (5, None)
        assert orders.get() == "one"
    assert text_said(caplog).count("from now on") == 1  # the group had not begun, and is made with its own
    with PersistentQueue(data / "orders", mode="exclusive") as raw:
        assert (raw.maxsize, raw.settings["max_deliveries"]) == (5, None)
    configure(data, "[queues.orders]\nmaxsize = 6\n")
    with QueueService(data, mode="exclusive", catalog=False) as service:
        settings = service.queue("orders").settings
        assert (settings["maxsize"], settings["max_deliveries"]) == (6, None)  # a line that goes leaves what it has set


def test_what_the_file_sets_is_changed_there(data: Path) -> None:
    """Else the next opening would change it back."""
    configure(data, "[defaults]\nlease_seconds = 60\n")
    with QueueService(data, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders")
        with pytest.raises(ConfigError, match=r"lease_seconds of .* is set in the configuration: change it there"):
            orders.configure(lease_seconds=5)
        orders.configure(maxsize=5)
        orders.configure(reset=["maxsize"], max_deliveries=3)
        assert (orders.settings["maxsize"], orders.settings["max_deliveries"]) == (0, 3)


def test_arguments_and_variables_have_to_agree_with_the_file(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of two programs would change the queue back. The error names the place of what counts; none is made."""
    configure(data, "[defaults]\nlease_seconds = 60\n")
    with QueueService(data, mode="exclusive", catalog=False) as service:
        with pytest.raises(ConfigError) as caught:
            service.queue("orders", lease_seconds=5)
        assert str(caught.value).startswith(f"{data}/holdfast.toml, line 2: defaults.lease_seconds: ")
        assert f"{data}/orders has lease_seconds=60 (in the configuration), not 5" in str(caught.value)
        assert not (data / "orders").exists()
        orders = service.queue("orders", lease_seconds=60)
        with pytest.raises(ConfigError, match="change it there"):
            orders.configure(lease_seconds=5)
    monkeypatch.setenv("HOLDFAST_LEASE_SECONDS", "5")
    with (
        QueueService(data, mode="exclusive", catalog=False) as service,
        pytest.raises(ConfigError, match="HOLDFAST_LEASE_SECONDS in"),
    ):
        service.queue("orders")


def test_a_variable_that_does_not_agree_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the queue's value and its own."""
    with QueueService(data, mode="exclusive", catalog=False) as service:
        service.queue("orders", maxsize=5)
    monkeypatch.setenv("HOLDFAST_ORDERS__MAXSIZE", "7")
    with QueueService(data, mode="exclusive", catalog=False) as service, pytest.raises(ConfigError) as caught:
        service.queue("orders")
    assert str(caught.value).startswith("HOLDFAST_ORDERS__MAXSIZE in the environment: ")
    assert "has maxsize=5 (as it was set), not 7" in str(caught.value)
    monkeypatch.setenv("HOLDFAST_ORDERS__MAXSIZE", "5")
    with QueueService(data, mode="exclusive", catalog=False) as service:
        assert service.queue("orders").settings["maxsize"] == 5


def test_a_second_opening_is_compared_with_what_counts(data: Path) -> None:
    """Not with what the first one has said, which may be nothing."""
    with QueueService(data, mode="exclusive", catalog=False) as service:
        service.queue("orders", maxsize=5, lease_seconds=9).put("one")
    with QueueService(data, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders")
        assert service.queue("orders", maxsize=5) is orders
        with pytest.raises(ConfigError, match=r"is open with maxsize=5 .*, not with maxsize=6"):
            service.queue("orders", maxsize=6)
        orders.configure(maxsize=6)
        assert service.queue("orders", maxsize=6, flush=FlushPolicy.every_commit()) is orders
        jobs = service.queue("jobs", maxsize=1)
        jobs.configure(maxsize=2)
        assert service.queue("jobs", maxsize=2) is jobs
        with pytest.raises(ConfigError, match=r"is open with maxsize=2 .*, not with maxsize=1"):
            service.queue("jobs", maxsize=1)


def test_tasks_read_and_change_them_too(data: Path) -> None:
    """With the names of the other service."""

    async def run() -> None:
        async with AsyncQueueService(data, mode="exclusive", catalog=False) as service:
            orders = await service.queue("orders", maxsize=5)
            await orders.configure(max_deliveries=3, reset=["maxsize"])
            assert (orders.settings["maxsize"], orders.settings["max_deliveries"]) == (0, 3)

    asyncio.run(run())


def test_sizes_of_the_file_and_of_an_argument_that_cannot_work_together_make_no_queue(data: Path) -> None:
    """A queue with them could never be opened."""
    configure(data, "[defaults]\ndata_file_bytes = 1073741824\n")
    with QueueService(data, mode="exclusive", catalog=False) as service:
        with pytest.raises(ConfigError, match=r"^max_bytes=268435456 leaves no room for two data files"):
            service.queue("orders", max_bytes=2**28)
        assert not (data / "orders").exists()
        service.queue("orders")


def test_an_argument_that_does_not_agree_is_not_blamed_on_the_file(data: Path) -> None:
    """It has other settings."""
    configure(data, "[defaults]\nlease_seconds = 5\n")
    with QueueService(data, mode="exclusive", catalog=False) as service:
        service.queue("orders", maxsize=5)
    not_agreed = r"^\S+orders has maxsize=5 \(as it was set\), not 9"
    with QueueService(data, mode="exclusive", catalog=False) as service, pytest.raises(ConfigError, match=not_agreed):
        service.queue("orders", maxsize=9)


@pytest.mark.parametrize("is_there", [False, True], ids=["new", "made before"])
def test_a_bound_of_the_file_that_the_queue_refuses_names_the_line(data: Path, *, is_there: bool) -> None:
    """Whether ``max_bytes`` is enough depends on the size of the queue's data files, wherever that is set."""
    if is_there:
        PersistentQueue(data / "orders", mode="exclusive").close()
    configure(data, "[queues.orders]\nmax_bytes = 50_000\n")
    place = r"holdfast\.toml, line 2: queues\.orders\.max_bytes: max_bytes=50000 leaves no room"
    with (
        QueueService(data, mode="exclusive", catalog=False) as service,
        pytest.raises(ConfigError, match=place) as caught,
    ):
        service.queue("orders")
    found = caught.value.path, caught.value.line, caught.value.key
    assert found == (str(data / "holdfast.toml"), 2, "queues.orders.max_bytes")
    assert (data / "orders").exists() == is_there
    if is_there:
        with PersistentQueue(data / "orders", mode="exclusive") as raw:
            assert raw.settings["max_bytes"] is None


def test_a_bound_of_the_file_is_compared_with_the_data_files_that_the_queue_has(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the default would be too large for it."""
    PersistentQueue(data / "orders", mode="exclusive", data_file_bytes=20_000).close()
    configure(data, "[defaults]\nmax_bytes = 50_000\n")
    with QueueService(data, mode="exclusive", catalog=False) as service:
        assert service.queue("orders").settings["max_bytes"] == 50_000
        assert service.queue("invoices", data_file_bytes=20_000).settings["max_bytes"] == 50_000
    monkeypatch.setenv("HOLDFAST_DATA_FILE_BYTES", "20_000")
    with QueueService(data, mode="exclusive", catalog=False) as service:
        assert service.queue("letters").settings["max_bytes"] == 50_000


def test_a_size_is_compared_with_the_data_files_of_the_open_queue(data: Path) -> None:
    """And not with the default."""
    with QueueService(data, mode="exclusive", catalog=False) as service:
        orders = service.queue("orders", data_file_bytes=2**16, max_bytes=2**17)
        assert service.queue("orders", max_bytes=2**17) is orders
