"""Which workloads there are: sequences of actions, each of which may follow the ones before it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proof.crash_states.asked import Asked
from proof.crash_states.life import Life
from proof.crash_states.lives.books import FULL_BYTES, LARGE_BYTES, ROLLS_BYTES, SMALL_BYTES, A
from proof.crash_states.lives.holding import PARTS_MAX
from proof.crash_states.lives.merging import DYING_COUNT
from proof.crash_states.lives.moving import AGO
from proof.crash_states.lives.putting import PRIORITY
from proof.crash_states.lives.several import BOTH, PARTS_OF_BOTH_MAX
from proof.crash_states.lives.transacting import WAITING_MAX

Workload = tuple[str, ...]


@dataclass(frozen=True)
class Action:
    """Something to do with a queue, and when it can be done."""

    may: Callable[[Life], bool]
    do: Callable[[Life], None]


def _always(life: Life) -> bool:
    return True


def _has_ready(life: Life) -> bool:
    return bool(life.may_come())


def _has_in_hand(life: Life) -> bool:
    return bool(life.in_hand)


def _has_dead(life: Life) -> bool:
    group = life.groups["a"]
    return group is not None and bool(group.dead)


def _may_begin(life: Life) -> bool:
    return life.tx is None and not life.is_in_doubt


def _may_take(life: Life) -> bool:
    return bool(life.may_come()) and not life.is_in_doubt


def _may_prepare(life: Life) -> bool:
    return life.tx is not None and not life.is_in_doubt


def _may_decide(life: Life) -> bool:
    return life.tx is not None or life.is_in_doubt


def _may_give(life: Life) -> bool:
    return bool(life.in_hand) and not life.is_in_doubt


def _may_give_and_take(life: Life) -> bool:
    return _may_give(life) and _may_take(life)


def _may_wait_in(life: Life) -> bool:
    return life.tx is not None and not life.is_in_doubt and not life.in_hand


def _may_prepare_another(life: Life) -> bool:
    return len(life.waiting) < WAITING_MAX


def _may_prepare_another_that_takes(life: Life) -> bool:
    return _may_prepare_another(life) and bool(life.may_come())


def _has_waiting(life: Life) -> bool:
    return bool(life.waiting)


def _has_several_waiting(life: Life) -> bool:
    return len(life.waiting) > 1


def _is_shared(life: Life) -> bool:
    return life.way != "alone"


def _may_reserve(life: Life) -> bool:
    return bool(life.may_come()) and life.reserved is None


def _has_reserved(life: Life) -> bool:
    return life.reserved is not None


def _may_part(life: Life) -> bool:
    return len(life.parts) < PARTS_MAX


def _has_parts(life: Life) -> bool:
    return bool(life.parts)


def _has_version(life: Life) -> bool:
    return life.version is not None


def _may_part_both(life: Life) -> bool:
    return len(life.parts_beside()) < PARTS_OF_BOTH_MAX * len(BOTH)


def _has_parts_beside(life: Life) -> bool:
    return bool(life.parts_beside())


def _has_version_beside(life: Life) -> bool:
    return life.version_beside is not None


def _may_create(life: Life) -> bool:
    return life.slow is None


def _has_slow(life: Life) -> bool:
    return life.slow is not None


def _has_ready_for_slow(life: Life) -> bool:
    return bool(life.may_come_to_slow())


def _has_slow_in_hand(life: Life) -> bool:
    return bool(life.slow_in_hand)


def _may_seek(life: Life) -> bool:
    return life.tx is None and not life.held_offsets


def _has_request(life: Life) -> bool:
    return bool(life.history.requests[A])


def _may_purge(life: Life) -> bool:
    return _has_ready(life) and not life.history.wishes[A]


def _keeps(life: Life) -> bool:
    return life.is_kept


def _keeps_nothing(life: Life) -> bool:
    return not life.is_kept


CORE = {
    "put": Action(_always, lambda life: life.put(SMALL_BYTES)),
    "put_many": Action(_always, lambda life: life.put(30, 0, SMALL_BYTES)),
    "roll": Action(_always, lambda life: life.put(ROLLS_BYTES)),
    "get": Action(_has_ready, Life.get),
    "receive": Action(_has_ready, Life.receive),
    "ack": Action(_has_in_hand, Life.ack),
    "nack": Action(_has_in_hand, Life.nack),
    "begin": Action(_may_begin, lambda life: life.begin(SMALL_BYTES, 20)),
    "take": Action(_may_take, Life.take),
    "prepare": Action(_may_prepare, Life.prepare),
    "commit": Action(_may_decide, Life.commit),
    "abort": Action(_may_decide, Life.abort),
    "two_queues": Action(_always, Life.two_queues),
    "reopen": Action(_always, Life.reopen),
    "kill": Action(_always, Life.kill),
}
"""What every queue is used for. All sequences of up to four of these are explored."""

OTHERS = {
    "get_many": Action(_has_ready, lambda life: life.get(5)),
    "purge": Action(_may_purge, Life.purge),
    "release": Action(_has_in_hand, Life.release),
    "reject": Action(_has_in_hand, Life.reject),
    "retry": Action(_has_dead, Life.retry),
    "begin_large": Action(_may_begin, lambda life: life.begin(LARGE_BYTES, 300)),
    "adopt": Action(_may_begin, Life.adopt),
    "flush": Action(_always, Life.flush),
}

OPTIONS = {
    "once": Action(_always, lambda life: life.put_once("one")),
    "once_other": Action(_always, lambda life: life.put_once("other")),
    "urgent": Action(_always, Life.put_urgent),
    "keyed": Action(_always, Life.put_keyed),
    "delayed": Action(_always, Life.put_delayed),
    "mortal": Action(_always, Life.put_mortal),
    "nack_later": Action(_has_in_hand, Life.nack_later),
    "begin_urgent": Action(_may_begin, lambda life: life.begin(SMALL_BYTES, asked=Asked(priority=PRIORITY))),
    "begin_keyed": Action(_may_begin, lambda life: life.begin(SMALL_BYTES, 20, asked=life.keyed)),
    "hour": Action(_always, Life.hour),
}
"""What a put may ask for, and the time that passes."""

HOLDING = {
    "reserve": Action(_may_reserve, Life.reserve),
    "finish_reserved": Action(_has_reserved, Life.finish_reserved),
    "give_back_reserved": Action(_has_reserved, Life.give_back_reserved),
    "part": Action(_may_part, lambda life: life.part(SMALL_BYTES, 20)),
    "part_large": Action(_may_part, lambda life: life.part(LARGE_BYTES, 300)),
    "commit_jointly": Action(_has_parts, Life.commit_jointly),
    "commit_jointly_again": Action(_has_version, Life.commit_jointly_again),
    "abort_jointly": Action(_has_parts, Life.abort_jointly),
}
"""Reservations and joint commits."""

PREPARING = {
    "prepare_small": Action(_may_prepare_another, lambda life: life.prepare_another(SMALL_BYTES, 20)),
    "prepare_full": Action(_may_prepare_another, lambda life: life.prepare_another(FULL_BYTES, FULL_BYTES)),
    "prepare_taking": Action(
        _may_prepare_another_that_takes, lambda life: life.prepare_another(SMALL_BYTES, takes=True)
    ),
    "move": Action(_has_waiting, Life.move_waiting),
    "commit_first": Action(_has_waiting, lambda life: life.commit_waiting(0)),
    "commit_full": Action(_has_waiting, lambda life: life.commit_waiting(0, has_space=False)),
    "commit_last": Action(_has_several_waiting, lambda life: life.commit_waiting(-1)),
    "abort_first": Action(_has_waiting, lambda life: life.abort_waiting(0)),
    "abort_last": Action(_has_several_waiting, lambda life: life.abort_waiting(-1)),
}
"""Several that are prepared at once: they share segments of the prepared log, and fill them."""

GIVING = {
    "give": Action(_may_give, Life.give),
    "give_and_take": Action(_may_give_and_take, Life.give_and_take),
    "receive_in": Action(_may_take, Life.receive_in),
    "use_in": Action(_may_take, Life.use_in),
    "wait_in": Action(_may_wait_in, Life.wait_in),
    "succeed": Action(_is_shared, Life.succeed),
}
"""Transactions over what was received before, or is received in them; in shared queues too."""

GROUPS = {
    "create": Action(_may_create, Life.create),
    "create_filtered": Action(_may_create, Life.create_filtered),
    "create_latest": Action(_may_create, lambda life: life.create("latest")),
    "delete": Action(_has_slow, Life.delete),
    "slow_get": Action(_has_ready_for_slow, Life.slow_get),
    "slow_get_many": Action(_has_ready_for_slow, lambda life: life.slow_get(5)),
    "slow_receive": Action(_has_ready_for_slow, Life.slow_receive),
    "slow_ack": Action(_has_slow_in_hand, Life.slow_ack),
}
"""The second group."""

MOVING = {
    "seek": Action(_may_seek, lambda life: life.seek("earliest")),
    "seek_back": Action(_may_seek, lambda life: life.seek(-2)),
    "seek_latest": Action(_may_seek, lambda life: life.seek("latest")),
    "seek_since": Action(_may_seek, lambda life: life.seek(AGO)),
    "slow_seek": Action(_has_slow, lambda life: life.slow_seek("earliest")),
    "slow_seek_latest": Action(_has_slow, lambda life: life.slow_seek("latest")),
    "create_since": Action(_may_create, Life.create_since),
}
"""Groups that are moved."""

SETTINGS = {
    "configure": Action(_always, Life.configure),
    "reset": Action(_always, Life.reset),
    "configure_group": Action(_always, Life.configure_group),
    "configure_both": Action(_always, Life.configure_both),
}
"""Settings of the queue and of its first group."""

REQUESTS = {
    "request": Action(_always, Life.request),
    "request_of_the_dead": Action(_always, Life.request_of_the_dead),
    "request_again": Action(_has_request, Life.request_again),
    "has_answer": Action(_has_request, Life.has_answer),
}
"""What clients put, and the owner that may answer twice."""

RETENTION = {
    "keep": Action(_keeps_nothing, Life.keep),
    "keep_no_more": Action(_keeps, Life.keep_no_more),
    "pass_over": Action(_always, Life.pass_over),
    "pass_later": Action(_always, Life.pass_later),
    "pass_asleep": Action(_has_slow, Life.pass_asleep),
    "fail_and_live": Action(_has_ready_for_slow, Life.fail_and_live),
    "fail_and_die": Action(_has_ready_for_slow, Life.fail_and_die),
}
"""Passes of retention: groups skip all that is not in the last data file. And what goes behind a sync that fails."""

MERGING = {
    "compact": Action(_always, Life.compact),
    "compact_in_pass": Action(_always, Life.compact_in_pass),
}
"""Merges of data files."""

SEVERAL = {
    "part_of_both": Action(_may_part_both, lambda life: life.part_of_both(SMALL_BYTES, 20)),
    "part_of_both_large": Action(_may_part_both, lambda life: life.part_of_both(LARGE_BYTES, 300)),
    "commit_both": Action(_has_parts_beside, Life.commit_both),
    "commit_both_again": Action(_has_version_beside, Life.commit_both_again),
    "abort_both": Action(_has_parts_beside, Life.abort_both),
    "commit_once": Action(_always, Life.commit_once),
    "decide_and_die": Action(_has_parts_beside, Life.decide_and_die),
    "decide_and_leave": Action(_has_parts_beside, Life.decide_and_leave),
    "carry": Action(_has_parts_beside, Life.carry),
}
"""Commits over two queues, which the document beside them decides."""

ALL = (
    CORE
    | OTHERS
    | OPTIONS
    | PREPARING
    | HOLDING
    | GIVING
    | GROUPS
    | MOVING
    | SETTINGS
    | REQUESTS
    | RETENTION
    | MERGING
    | SEVERAL
)
"""Longer sequences are drawn from these."""


def _of(actions: Mapping[str, Action], names: str) -> dict[str, Action]:
    return {**actions, **{name: ALL[name] for name in names.split()}}


FAMILIES = {
    "core": CORE,
    "options": _of(OPTIONS, "roll get receive reject retry nack adopt reopen kill"),
    "holding": _of(HOLDING, "put_many roll get purge keyed kill reopen"),
    "preparing": _of(PREPARING, "put roll get begin prepare commit reopen kill"),
    "giving": _of(
        GIVING, "put_many get receive ack nack release begin take prepare commit abort two_queues reopen kill"
    ),
    "groups": _of(GROUPS, "put_many roll get get_many reopen kill"),
    "moving": _of(MOVING, "put_many roll get receive reject retry take commit two_queues hour kill reopen"),
    "settings": _of(SETTINGS, "roll get create reopen kill"),
    "requests": _of(REQUESTS, "put_many roll get adopt two_queues reopen kill"),
    "retention": _of(RETENTION, "roll get receive reject reserve finish_reserved mortal create kill"),
    "merging": _of(MERGING, "get receive nack retry reserve take prepare create seek slow_get put_many keep kill"),
    "several": _of(SEVERAL, "put roll get part commit_jointly kill reopen"),
}
"""What stands together in short sequences: all that there are of up to four actions of the core, of three of others."""

FAMILY_DEPTH = 3
DEPTHS = {("options", "used"): 2, ("groups", "used"): 2, ("moving", "shared"): 2, ("giving", "used"): 2}
DEPTHS |= {("preparing", "shared"): 2, ("merging", "sparse"): 2, ("merging", "merged"): 2, ("several", "fresh"): 2}
"""Where it is less, by family and beginning: another beginning has more to say of them."""

RACES = ("get", "get_many", "roll", "reopen")
"""What another actor makes or deletes the second group beside."""

_RACE = re.compile(r"(\w+)/(create|delete)@(\d+)")


def action_named(name: str) -> Action:
    """Return an action by its name; ``get/create@7`` is ``get`` with ``create`` before its seventh storage call."""
    race = _RACE.fullmatch(name)
    if race is None:
        return ALL[name]
    call, other, at = ALL[race[1]], race[2], int(race[3])

    def do(life: Life) -> None:
        against = life.race_with_create if other == "create" else life.race_with_delete
        against(lambda: call.do(life), at)

    return Action(lambda life: call.may(life) and ALL[other].may(life), do)


# -- How a life begins -------------------------------------------------------------------------------------------------


def fresh(life: Life) -> None:
    """There is no queue yet."""


def used(life: Life) -> None:
    """A data file that is nearly finished, one that is nearly full, and a spare one full of stale frames."""
    life.open()
    for _ in range(2):
        life.put(ROLLS_BYTES)
        life.put(ROLLS_BYTES)
        life.get()
    life.put(ROLLS_BYTES)
    life.put(40)
    life.put(50)
    life.get()
    life.close()


def shared(life: Life) -> None:
    """A second group, which has not finished what keeps two data files; the first one has, but for the last message."""
    life.open()
    life.create()
    for _ in range(2):
        life.put(ROLLS_BYTES)
        life.put(ROLLS_BYTES)
    life.put(40)
    life.flush()
    life.slow_get()
    for _ in range(4):
        life.get()
    life.close()


def waiting(life: Life) -> None:
    """Of one order key a dead letter and two messages behind it; others that wait, and one that comes first."""
    life.open()
    life.put_keyed()
    life.put_keyed()
    life.receive()
    life.reject()
    life.put_once("one")
    life.put_delayed()
    life.put_mortal()
    life.put_urgent()
    life.get()
    life.put(SMALL_BYTES)
    life.close()


def sparse(life: Life) -> None:
    """Three data files, in each of them one message lives: a dead letter, one that has failed, and one that has not."""
    life.open()
    life.put_sparse(3)
    life.put(SMALL_BYTES)
    life.finish_large("reject", "nack", "release")
    life.close()


def merged(life: Life) -> None:
    """A data file that has taken the place of four, behind one that can now be merged; and a second group."""
    life.open()
    life.create()
    life.put_sparse(5)
    life.reserve()
    life.finish_large("release", *["reject"] * 4)
    life.finish_for_slow(but=5 * (DYING_COUNT + 1) - 1)
    life.put(SMALL_BYTES)
    life.compact()
    life.finish_reserved()
    life.retry()
    life.receive()
    for _ in range(3):
        life.get()
    life.nack()
    life.close()


def owner(life: Life) -> None:
    """As used; then the queue is shared, and this process owns it."""
    used(life)
    life.way = "owner"


def client(life: Life) -> None:
    """As used; then the queue is shared, and another process owns it."""
    used(life)
    life.way = "client"


BEGINNINGS = {
    "fresh": fresh,
    "used": used,
    "shared": shared,
    "waiting": waiting,
    "sparse": sparse,
    "merged": merged,
    "owner": owner,
    "client": client,
}
"""The past of a life; it begins with opening the queue."""

OF_SHARED = ("owner", "client")
"""Beginnings of shared queues: longer sequences behind them are drawn from the family "giving" alone."""

BEGINNINGS_OF = {
    "core": ("fresh", "used"),
    "options": ("used", "waiting"),
    "holding": ("used",),
    "preparing": ("used", "shared"),
    "giving": ("used", "owner", "client"),
    "groups": ("used", "shared"),
    "moving": ("used", "shared"),
    "settings": ("fresh", "used"),
    "requests": ("fresh", "used"),
    "retention": ("used", "shared"),
    "merging": ("sparse", "merged"),
    "several": ("fresh", "used"),
}
"""By family."""
