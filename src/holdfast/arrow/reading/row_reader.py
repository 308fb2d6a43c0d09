"""Makes rows of planned ranges, and reports what cannot be read: as an error, or in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.arrow.reading.columns import Deliveries
from holdfast.arrow.reading.file_range import FileRange
from holdfast.arrow.reading.file_range_reader import ConsumedMeanwhileError
from holdfast.arrow.reading.row_maker import RowMaker
from holdfast.arrow.reading.selection import Selection, matching
from holdfast.arrow.reading.task_walk import Elsewhere, walk_range
from holdfast.errors import CorruptionError
from holdfast.persistence.format.report import Damage
from holdfast.queue.options.message_filter import MessageFilter

logger = logging.getLogger("holdfast")


@dataclass(frozen=True)
class RowReader:
    """Reads ranges of a queue. It holds nothing open and does not change, so it may travel between processes.

    Attributes
    ----------
    selection : Selection
        The messages that are asked for.
    rows : RowMaker
        Makes the columns.
    fail_on_data_loss : bool
        Whether damage and data files that are gone are errors; else they are logged, and the rest is read.
    option : str
        How the caller spells that this is off.
    advice : str
        What to do if a data file was consumed after it was planned.
    """

    selection: Selection
    rows: RowMaker
    fail_on_data_loss: bool
    option: str
    advice: str

    def read(
        self,
        root: Path,
        queue_id: bytes,
        parts: Iterable[FileRange],
        deliveries: Deliveries,
        elsewhere: Elsewhere | None = None,
    ) -> Iterator[Any]:
        """Yield the rows of ranges as record batches; ``elsewhere`` as for :func:`walk_range`.

        Raises
        ------
        CorruptionError, ConsumedMeanwhileError
            Messages cannot be read, or their data file is gone.
        ConfigError
            There is a filter, and the extra ``filter`` is not installed here.
        """
        expression = self.selection.filter
        message_filter = None if expression is None else MessageFilter(expression)
        for part in parts:
            found = walk_range(
                root,
                queue_id,
                part,
                self.lose,
                advice=self.advice,
                elsewhere=elsewhere,
                follows_merges=not self.fail_on_data_loss,
            )
            try:
                for walked in found:
                    rows = self.selection.in_time(walked)
                    if message_filter is not None:
                        rows = matching(rows, message_filter)
                    if len(rows):
                        yield self.rows.batch(rows, deliveries, root.name)
            except ConsumedMeanwhileError as error:
                if self.fail_on_data_loss:
                    raise
                logger.warning("%s", error)

    def lose(self, damage: Damage) -> None:
        """Report messages that cannot be read."""
        if not self.fail_on_data_loss:
            logger.warning("%s", damage)
            return
        raise CorruptionError(
            f"{damage}; read the rest with {self.option}",
            path=str(damage.path),
            position=damage.position,
            offsets=[damage.offsets],
        )
