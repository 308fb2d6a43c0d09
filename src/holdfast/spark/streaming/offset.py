"""The place of a stream, which Spark writes into its checkpoint, and hands back. Pure.

Spark compares these as text, so there is one spelling of each: the keys have one order, the place is an offset and
nothing else, and without new messages the stream returns the place that it was given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a batch.

    Attributes
    ----------
    queue_id : str
        In hexadecimal: it tells another queue at the same path.
    group_id : str
        Of the group that keeps the later messages, in hexadecimal; empty: none does. A group of the same name that was
        made later has kept nothing for this stream.
    offset : int
        Of the first message that the batch does not have.
    before : tuple of int
        Starts of this batch and of those before it, the latest first: as many as are retained. So which messages may be
        finished is known from the checkpoint alone, however often the stream is restarted.
    """

    queue_id: str
    group_id: str
    offset: int
    before: tuple[int, ...] = ()

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> StreamOffset:
        """Return what Spark hands back; raises ConfigError if it is not a place in a queue."""
        try:
            before = tuple(map(int, fields["before"]))
            return cls(str(fields["queue"]), str(fields["group"]), int(fields["offset"]), before)
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"the checkpoint holds {dict(fields)!r}, which is no place in a queue: give the stream a new one"
            ) from None

    @classmethod
    def found_in(cls, text: str) -> StreamOffset | None:
        """Return the place that a text holds, as a checkpoint or a report of Spark has it; None if it holds none."""
        try:
            fields: Any = json.loads(text)
        except ValueError:
            return None
        is_place = isinstance(fields, dict) and {"queue", "group", "offset", "before"} <= set(fields)
        return cls.parse(fields) if is_place else None

    def to_fields(self) -> dict[str, Any]:
        """Return it for Spark."""
        return {"queue": self.queue_id, "group": self.group_id, "offset": self.offset, "before": list(self.before)}

    def next(self, offset: int, retain_batches: int) -> StreamOffset:
        """Return the end of the batch that begins here."""
        return replace(self, offset=offset, before=(self.offset, *self.before)[:retain_batches])

    def rewound(self, offset: int) -> StreamOffset:
        """Return an earlier place: the messages between there and here are lost, and their offsets may come again."""
        return replace(self, offset=offset, before=tuple(min(offset, each) for each in self.before))

    def finished_below(self, retain_batches: int) -> int | None:
        """Return below which offset nothing is needed once this batch is committed; None if that is not known."""
        if retain_batches == 0:
            return self.offset
        return self.before[retain_batches - 1] if len(self.before) >= retain_batches else None
