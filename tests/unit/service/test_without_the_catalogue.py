"""A service where sqlite-utils, the extra ``catalog``, is not installed."""

import asyncio
import sys
from pathlib import Path

import pytest

from holdfast import AsyncQueueService, ConfigError, QueueService

MISSING = r"^the catalogue needs a package that is not installed: pip install 'holdfast\[catalog\]'$"


@pytest.fixture(autouse=True)
def without_sqlite_utils(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide it, if it is there."""
    monkeypatch.setitem(sys.modules, "sqlite_utils", None)


def test_there_is_no_catalogue_and_everything_else_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing asked for it, so nothing is said."""
    with QueueService(tmp_path, mode="exclusive") as service:
        orders = service.queue("orders")
        orders.put({"number": 1})
        with orders.receive() as message:
            assert message.body == {"number": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["orders"]
    assert caplog.messages == []


def test_a_service_that_is_asked_for_a_catalogue_names_the_extra(tmp_path: Path) -> None:
    """In one line, before anything is made."""
    with pytest.raises(ConfigError, match=MISSING) as caught:
        QueueService(tmp_path / "data", mode="exclusive", catalog=True)
    assert caught.value.extra == "catalog"
    with pytest.raises(ConfigError, match=MISSING):
        AsyncQueueService(tmp_path / "data", mode="exclusive", catalog=True)
    assert not list(tmp_path.iterdir())


def test_rebuilding_the_catalogue_names_the_extra(tmp_path: Path) -> None:
    """That is asking for it too; nothing is made."""

    async def rebuild() -> None:
        async with AsyncQueueService(tmp_path / "data", mode="exclusive") as service:
            await service.rebuild_catalog()

    with (
        QueueService(tmp_path / "data", mode="exclusive", catalog=False) as service,
        pytest.raises(ConfigError, match=MISSING),
    ):
        service.rebuild_catalog()
    with pytest.raises(ConfigError, match=MISSING):
        asyncio.run(rebuild())
    assert not list(tmp_path.iterdir())


def test_a_catalogue_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    """A program with the extra has made it, and brings it up to date again."""
    (tmp_path / "catalog.db").write_bytes(b"made by another program")
    with QueueService(tmp_path, mode="exclusive") as service:
        service.queue("orders").put("one")
    assert (tmp_path / "catalog.db").read_bytes() == b"made by another program"
