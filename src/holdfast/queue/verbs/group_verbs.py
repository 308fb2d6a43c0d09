"""The verbs for the owner of a group's read side, by name. docs/protocol.md, "Verbs".

Each verb takes its fields as JSON, and returns JSON of a few hundred bytes. Each may be done twice: if an owner dies
between doing and answering, the next one does it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import UsageError
from holdfast.queue.verbs.verb_log import Asker, logged

Fields = dict[str, Any]

PAUSE = "pause"
RESUME = "resume"
DEAD_RETRY = "dead_retry"
DEAD_DISCARD = "dead_discard"


class GroupControls(Protocol):
    """The part of a read side that serves others. Each verb is durable when it returns."""

    def pause(self, until_ns: int | None, reason: str | None) -> object:
        """Hand out nothing until then, in nanoseconds since the epoch; None: until :meth:`resume`."""

    def resume(self) -> object:
        """Hand out messages again."""

    def dead_retry(self, offsets: list[int]) -> int:
        """Make dead letters ready again; return how many were dead."""

    def dead_discard(self, offsets: list[int]) -> int:
        """Finish dead letters; return how many were dead."""


def perform(controls: GroupControls, fields: Fields) -> Fields:
    """Perform ``fields["verb"]`` with the other fields; return its result.

    Raises
    ------
    UsageError
        No such verb, or not such fields; nothing was done.
    HoldfastError
        The read side refuses.
    """
    name = fields.get("verb")
    verb = VERBS.get(name) if isinstance(name, str) else None
    if verb is None:
        raise UsageError(f"this version knows no verb {name!r} on a group; it knows {', '.join(sorted(VERBS))}")
    return verb(controls, {key: value for key, value in fields.items() if key != "verb"})


def perform_logged(controls: GroupControls, path: Path, group: str, fields: Fields, asker: Asker) -> Fields:
    """As :func:`perform`, logged with the client and the result."""
    details = {"group": group, **{name: value for name, value in fields.items() if name != "verb"}}
    return logged(path, str(fields.get("verb")), details, asker, lambda: perform(controls, fields))


def _pause(controls: GroupControls, fields: Fields) -> Fields:
    check_names(PAUSE, fields, {"until_ns", "reason"})
    until_ns, reason = fields.get("until_ns"), fields.get("reason")
    if until_ns is not None and not _is_count(until_ns):
        raise UsageError(f"until_ns is in nanoseconds since the epoch, or null, not {until_ns!r}")
    if reason is not None and not isinstance(reason, str):
        raise UsageError(f"reason is a text, or null, not {reason!r}")
    controls.pause(until_ns, reason)
    return {}


def _resume(controls: GroupControls, fields: Fields) -> Fields:
    check_names(RESUME, fields, ())
    controls.resume()
    return {}


def _dead_retry(controls: GroupControls, fields: Fields) -> Fields:
    return {"count": controls.dead_retry(_offsets(DEAD_RETRY, fields))}


def _dead_discard(controls: GroupControls, fields: Fields) -> Fields:
    return {"count": controls.dead_discard(_offsets(DEAD_DISCARD, fields))}


VERBS: dict[str, Callable[[GroupControls, Fields], Fields]] = {
    PAUSE: _pause,
    RESUME: _resume,
    DEAD_RETRY: _dead_retry,
    DEAD_DISCARD: _dead_discard,
}


def _offsets(verb: str, fields: Fields) -> list[int]:
    check_names(verb, fields, {"offsets"})
    offsets = fields.get("offsets")
    if not isinstance(offsets, list) or not all(_is_count(each) for each in offsets):
        raise UsageError(f"{verb} takes a list of offsets, each 0 or more")
    return offsets


def check_names(verb: str, fields: Fields, known: Collection[str]) -> None:
    """Refuse unknown fields: one that is ignored could matter to a client of a newer version."""
    unknown = sorted(fields.keys() - set(known))
    if unknown:
        raise UsageError(f"this version of {verb} knows no {', '.join(unknown)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
