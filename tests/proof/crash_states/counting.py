"""What a search has covered, counted honestly: disk images, what recovery shows of them, and what became of calls.

Many disks recover to the same queue. So beside distinct states stand distinct *recovered views*, which is all that a
recovery shows, and distinct pairs of *operation and fate*: what was under way, and what is left of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

from proof.crash_states.history import Moment, Numbers, Side
from proof.crash_states.oracle import Seen
from support.storages.disk_operations import Operation


@dataclass
class Tally:
    """What was done.

    Attributes
    ----------
    workloads, crashes, recoveries_crashed, works : int
        Workloads; crashes judged, where several leave the same; crashes of recoveries; recovered queues worked with.
    digests : set of int
        The distinct states that were recovered and judged: 63 bits of what was on each disk.
    views : set of int
        The distinct things that recoveries showed: 63 bits of each.
    fates : set of str
        The distinct pairs of operation and fate.
    """

    workloads: int = 0
    crashes: int = 0
    recoveries_crashed: int = 0
    works: int = 0
    digests: set[int] = field(default_factory=set)
    views: set[int] = field(default_factory=set)
    fates: set[str] = field(default_factory=set)


def as_number(digest: bytes) -> int:
    """Return 63 bits of a digest, which a database can hold."""
    return int.from_bytes(digest[:8], "little") >> 1


def view_of(seen: Mapping[str, Seen]) -> int:
    """Return a number for all that a recovery shows: each log, what its groups would be given, what is in doubt."""
    shown = [(name, *_parts(each)) for name, each in seen.items()]
    return as_number(blake2b(repr(shown).encode(), digest_size=8).digest())


def _parts(seen: Seen) -> tuple[object, ...]:
    log = tuple((offset, _checksum(payload)) for offset, payload in seen.log)
    losses = sorted((each.offsets.start, each.offsets.stop) for each in seen.damage)
    groups = [
        (each.exists, each.order, tuple(count for _, _, count in each.shown), sorted(each.dead), each.depth)
        for each in (seen.group, seen.slow)
    ]
    return (
        seen.next_offset,
        log,
        seen.log_end,
        groups,
        sorted(seen.in_doubt),
        seen.version,
        seen.beside,
        losses,
        seen.settings,
    )


@lru_cache(maxsize=4096)
def _checksum(payload: bytes) -> int:
    return crc32(payload)


def fate_of(kind: str, before: Moment, under_way: Moment, operation: Operation | None, numbers: Numbers) -> str:
    """Return what was under way at a crash, and what became of it.

    Parameters
    ----------
    kind : str
        How the process ended.
    before, under_way : Moment
        The last call that had returned, and the one that was under way; the same where there was none.
    operation : Operation or None
        The last change of the disk.
    numbers : Numbers
        The states that recovery has shown.
    """
    last = type(operation).__name__ if operation is not None else "nothing"
    if under_way is before:
        changed = "; ".join(_kept(before, numbers))
        return f"{_ending(kind)} when {_name(before)} had returned: {changed}"
    there = [
        f"{_side(side)} {_how_far(numbers[side], before.latest.get(side, 0), latest)}"
        for side, latest in under_way.latest.items()
        if side in numbers and latest > before.latest.get(side, 0)
    ]
    changed = "; ".join([*there, *_kept(before, numbers)])
    return f"{_ending(kind)} in {_name(under_way)} behind {last}: {changed}"


def _ending(kind: str) -> str:
    return "kill" if kind == "kill" else "power loss"


def _name(moment: Moment) -> str:
    return re.split(r"[^a-z_ ]", moment.call, maxsplit=1)[0].strip()


def _side(side: Side) -> str:
    return f"{side[1].value} of {side[0]}"


def _how_far(number: int, before: int, latest: int) -> str:
    if number == latest:
        return "there"
    return "in part" if number > before else "not there"


def _kept(before: Moment, numbers: Numbers) -> list[str]:
    """Return on which sides something is lost that had returned."""
    return [f"{_side(side)} falls back" for side, number in numbers.items() if number < before.latest.get(side, 0)]
