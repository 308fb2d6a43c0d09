"""The end of a block by an exception: what is given back, if some of it is not its receiver's any more."""

from collections.abc import Sequence

import pytest

from holdfast import Delivery, DeliveryBatch, DiskFullError, StaleReceiptError
from holdfast.queue.options.failure import GIVEN_BACK, Failure


class Refusing:
    """Refuses to have it noted, by these errors, that messages have failed; then it does so."""

    def __init__(self, *refusals: Exception) -> None:
        self.refusals = list(refusals)
        self.failed: list[int] = []

    def nack(self, deliveries: Sequence[Delivery], delay: float | None = None, failure: Failure = GIVEN_BACK) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.failed += [each.offset for each in deliveries]


@pytest.mark.parametrize(
    ("refusals", "failed", "notes"),
    [
        ([], [0, 1, 2], 0),
        ([StaleReceiptError("settled", offset=1)], [0, 2], 1),
        ([StaleReceiptError("settled", offset=at) for at in (2, 0, 1)], [], 3),
        ([StaleReceiptError("settled, and says not which")], [1, 2], 1),
        ([DiskFullError("no space")], [], 1),
    ],
)
def test_what_was_taken_away_keeps_no_other_message_of_its_batch(
    refusals: list[Exception], failed: list[int], notes: int
) -> None:
    """The exception of the block comes out, with a note of each error."""
    deliverer = Refusing(*refusals)
    batch = DeliveryBatch(deliverer, [Delivery(deliverer, (at, 0, b"", b"", 0, 0), 1) for at in range(3)])  # type: ignore[arg-type]  # it only fails
    with pytest.raises(ZeroDivisionError) as caught, batch:
        raise ZeroDivisionError
    assert deliverer.failed == failed
    assert len(getattr(caught.value, "__notes__", [])) == notes
