"""The place of a stream of many queues: one place in each. Pure.

As for one queue there is one spelling of each: queues are ordered by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.errors import ConfigError
from holdfast.spark.streaming.offset import StreamOffset


@dataclass(frozen=True, slots=True)
class ManyOffset:
    """The end of a batch.

    Attributes
    ----------
    queues : mapping of str to StreamOffset
        Where the batch ends in each queue, by name.
    joined : mapping of str to int
        Where the batch begins in the queues that it is the first batch of: the place before it does not know them.
    """

    queues: Mapping[str, StreamOffset]
    joined: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> ManyOffset:
        """Return what Spark hands back; raises ConfigError if it is not a place in many queues."""
        try:
            queues = {str(name): StreamOffset.parse(each) for name, each in fields["queues"].items()}
            joined = {str(name): int(each) for name, each in fields["joined"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError(
                f"the checkpoint holds {dict(fields)!r}, which is no place in many queues: give the stream a new one"
            ) from None
        return cls(queues, joined)

    def to_fields(self) -> dict[str, Any]:
        """Return it for Spark."""
        queues = {name: self.queues[name].to_fields() for name in sorted(self.queues)}
        return {"queues": queues, "joined": {name: self.joined[name] for name in sorted(self.joined)}}

    def start_of(self, name: str, before: ManyOffset) -> StreamOffset:
        """Return where this batch begins in a queue, by its own name; ``before`` is the end of the one before.

        Raises
        ------
        ConfigError
            Neither place tells.
        """
        if name in self.joined:
            return replace(self.queues[name], offset=self.joined[name])
        if name not in before.queues:
            raise ConfigError(f"the checkpoint does not say where queue {name} begins: give the stream a new one")
        return before.queues[name]


def places_in(text: str) -> list[StreamOffset]:
    """Return the places that a text holds, as a checkpoint or a report of Spark has it: of one queue, or of many."""
    found = StreamOffset.found_in(text)
    if found is not None:
        return [found]
    try:
        fields: Any = json.loads(text)
    except ValueError:
        return []
    is_place = isinstance(fields, dict) and {"queues", "joined"} <= set(fields)
    return list(ManyOffset.parse(fields).queues.values()) if is_place else []
