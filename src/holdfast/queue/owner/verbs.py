"""The verbs of clients beside putting and taking, by name: on a consumer group, and on the queue.

Each takes its fields and returns its result as plain values. Each may be done twice: one that gets no answer is asked
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from holdfast.errors import UsageError
from holdfast.queue.engine.log_starts import seek
from holdfast.queue.engine.retention import compact
from holdfast.queue.options.log_start import LogStart
from holdfast.queue.options.settings import read_stored
from holdfast.queue.owner.owned_queue import OwnedQueue
from holdfast.queue.owner.prepared_verbs import perform_on_prepared
from holdfast.queue.owner.reports import report_fields
from holdfast.queue.owner.reserving import RESERVE, SETTLE_RESERVED, reserve, settle_reserved
from holdfast.queue.protocol.prepared_verbs import PREPARED_VERBS
from holdfast.queue.verbs.group_verbs import VERBS as GROUP_VERBS
from holdfast.queue.verbs.group_verbs import check_names, perform_logged
from holdfast.queue.verbs.verb_log import logged

Fields = dict[str, Any]

FLUSH = "flush"
PURGE = "purge"
CONFIGURE = "configure"
GIVE_UP = "give_up"
RECOVERY = "recovery"
IS_FULL = "is_full"
HAND_OVER = "hand_over"
CLOSE_GROUP = "close_group"
LEFT = "left"
COUNTS = "counts"
SEEK = "seek"
COMPACT = "compact"


def perform_verb(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    """Perform ``fields["verb"]`` with the other fields, and return its result. Closing the queue waits for it.

    Raises
    ------
    UsageError
        No such verb, or not such fields; nothing was done.
    ClosedError
        The owner is closed; nothing was done.
    HoldfastError
        As the verb itself.
    """
    return queue.handle.calls.run(lambda: _perform_verb(queue, session, group, fields))


def _perform_verb(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    name = fields.get("verb")
    if name in GROUP_VERBS:
        return perform_logged(queue.group(group), queue.handle.path, group, fields, queue.asker(session))
    if name in PREPARED_VERBS:
        return perform_on_prepared(queue, session, fields)
    verb = _VERBS.get(name) if isinstance(name, str) else None
    if verb is None:
        raise UsageError(
            f"this version knows no verb {name!r} on a queue; it knows {', '.join(sorted({*_VERBS, *PREPARED_VERBS}))}"
        )
    return verb(queue, session, group, {key: value for key, value in fields.items() if key != "verb"})


def _flush(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(FLUSH, fields, ())
    queue.write_side.flush()
    for side in queue.groups:
        side.flush()
    return {}


def _purge(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(PURGE, fields, ())
    return {"count": queue.group(group).purge(lambda count: None)}


def _configure(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(CONFIGURE, fields, {"settings", "reset"})
    settings = read_stored(fields.get("settings", {}), "the program")
    reset = [str(name) for name in fields.get("reset", ())]
    details = {**settings, "reset": reset or None}
    change = partial(queue.configure, group, settings, reset)
    logged(queue.handle.path, CONFIGURE, details, queue.asker(session), change)
    return {}


def _give_up(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(GIVE_UP, fields, {"number"})
    number = fields.get("number")
    if not isinstance(number, int) or number < 1:
        raise UsageError(f"a delivery number is 1 or more, not {number!r}")
    queue.give_up(group, number)
    return {}


def _recovery(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(RECOVERY, fields, ())
    return report_fields(queue.recovery(group))


def _is_full(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(IS_FULL, fields, ())
    return {IS_FULL: not queue.handle.capacity.has_space(1, 0)}


def _hand_over(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(HAND_OVER, fields, {"heir"})
    heir = fields.get("heir")
    if not isinstance(heir, int) or not 0 < heir < 2**32:
        raise UsageError(f"an heir is the number of a session, not {heir!r}")
    queue.hand_over(heir)
    return {}


def _close_group(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(CLOSE_GROUP, fields, ())
    queue.close_group(group)
    return {}


def _seek(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(SEEK, fields, {"start"})
    start = LogStart.from_fields(fields.get("start"))
    moved = seek(queue.engine(group).handle, start, queue.asker(session))
    return {**asdict(moved.started), "task_change": moved.task_change}


def _compact(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(COMPACT, fields, {"dry_run"})
    return asdict(compact(queue.handle, queue.asker(session), dry_run=bool(fields.get("dry_run"))))


def _left(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(LEFT, fields, ())
    return queue.group(group).left()._asdict()


def _counts(queue: OwnedQueue, session: int, group: str, fields: Fields) -> Fields:
    check_names(COUNTS, fields, ())
    return queue.counts(group)._asdict()


_VERBS: dict[str, Callable[[OwnedQueue, int, str, Fields], Fields]] = {
    FLUSH: _flush,
    PURGE: _purge,
    CONFIGURE: _configure,
    GIVE_UP: _give_up,
    RECOVERY: _recovery,
    IS_FULL: _is_full,
    HAND_OVER: _hand_over,
    CLOSE_GROUP: _close_group,
    LEFT: _left,
    COUNTS: _counts,
    SEEK: _seek,
    COMPACT: _compact,
    RESERVE: reserve,
    SETTLE_RESERVED: settle_reserved,
}
