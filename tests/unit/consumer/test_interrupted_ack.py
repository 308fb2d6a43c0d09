"""An acknowledgement that was cut short behind its entry stands, whatever becomes of the delivery then."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Delivery, Empty, PersistentQueue
from support.builders.handles import handle_of


@pytest.mark.parametrize(
    "settle",
    [lambda each: each.nack(delay=0), lambda each: each.release(), lambda each: each.reject("late")],
    ids=["nack", "release", "reject"],
)
def test_what_was_acknowledged_is_not_handed_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settle: Callable[[Delivery], None]
) -> None:
    """Its entry is in the file, and its delivery is in hand still; the next one of its order key is ready."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put(b"first", order_key="a")
        queue.put(b"second", order_key="a")
        delivery = queue.receive()
        books = handle_of(queue).require_read_side().progress_store
        assert books is not None
        finish = books.finish_one

        def cut_short(record: object) -> int:
            finish(record)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        monkeypatch.setattr(books, "finish_one", cut_short)
        with pytest.raises(KeyboardInterrupt):
            delivery.ack()
        monkeypatch.undo()
        settle(delivery)
        assert queue.get(timeout=0) == b"second"
        with pytest.raises(Empty):
            queue.get(timeout=0)
        assert len(queue.dead) == 0
