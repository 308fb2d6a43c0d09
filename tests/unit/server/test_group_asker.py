"""Asking for a group while the handle is being closed."""

from collections.abc import ItemsView
from typing import Any

import pytest

from holdfast import ClosedError
from holdfast.queue.server.group_asker import GroupAsker
from support.builders.handles import handle_of
from support.builders.transactions import ORDERS, open_queue
from support.storages.simulated_storage import SimulatedStorage


class Meanwhile(dict[str, Any]):
    """What is asked for; as it is looked at, the asker is closed, as another thread may do just then."""

    asker: GroupAsker

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self.asker.close()
        return super().items()


def test_an_asker_that_is_closed_meanwhile_asks_nobody(storage: SimulatedStorage) -> None:
    """It makes no mailbox any more, which nobody would remove."""
    with open_queue(storage) as queue:
        queue.groups.create("other")
    with open_queue(storage, mode="read_only") as look:
        asked = Meanwhile(verb="resume")
        asked.asker = GroupAsker(handle_of(look), "other")
        with pytest.raises(ClosedError):
            asked.asker.do(asked)
    assert ORDERS / "requests" not in storage.tree()
