"""The rows of one drained batch. They are always the messages of its plan, however often they are read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from holdfast.arrow.draining.plan import DrainPlan
from holdfast.arrow.reading.file_range import FileRange
from holdfast.arrow.reading.row_maker import RowMaker
from holdfast.arrow.reading.task_walk import Elsewhere, walk_range
from holdfast.persistence.format.report import Damage

_ADVICE = "it was removed, or merged with others; drain again: what is lost is reported then, and the others come"


def read_parts(
    plan: DrainPlan,
    parts: Sequence[FileRange],
    rows: RowMaker,
    deliveries: dict[int, int],
    on_loss: Callable[[Damage], None],
    elsewhere: Elsewhere | None = None,
) -> Generator[Any]:
    """Yield messages as record batches; damaged ones are skipped, and ``on_loss`` is called for them.

    ``elsewhere`` says where to read if this machine does not see the queue.
    """
    for part in parts:
        for walked in walk_range(plan.root, plan.queue_id, part, on_loss, advice=_ADVICE, elsewhere=elsewhere):
            yield rows.batch(walked, deliveries, plan.root.name)
