"""Judges what the processes have noted against what went in, and shows it as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

SHOWN_MAX = 5
"""So many offsets of a broken promise are printed."""


class Evidence:
    """What is known of each order.

    Parameters
    ----------
    digests : sequence of str
        Of the orders that were to go through the queue; the order at index *n* gets offset *n*.

    Attributes
    ----------
    put, received, acked : set of int
        Offsets whose put returned, that came out, and whose acknowledgement returned.
    forgotten : set of int
        Offsets whose put had returned, and that were not in the queue when the producer went on.
    altered : set of int
        Offsets that came out with other bytes than went in, or with an offset that no order has.
    received_after_ack : set of int
        Offsets that came out again behind their acknowledgement.
    redelivered_count : int
        How often an order came out again because its acknowledgement had not returned: at least once, as promised.
    left_count : int
        Messages still in the queue at the end.
    damage_count : int
        Damaged places that ``verify`` found in the files at the end.
    opening_seconds : list of float
        How long each opening took that followed a kill.
    torn_tail_count : int
        Half-written puts, never acknowledged, that opening dropped.
    owner_count : int
        How often a process became the owner of the queue.
    kill_counts : dict of str to int
        How often each of the processes was killed, by its role.
    owner_kill_count : int
        How often that was the owner.
    """

    def __init__(self, digests: Sequence[str]) -> None:
        self._digests = digests
        self.put: set[int] = set()
        self.received: set[int] = set()
        self.acked: set[int] = set()
        self.forgotten: set[int] = set()
        self.altered: set[int] = set()
        self.received_after_ack: set[int] = set()
        self.redelivered_count = 0
        self.left_count = 0
        self.damage_count = 0
        self.opening_seconds: list[float] = []
        self.torn_tail_count = 0
        self.owner_count = 0
        self.kill_counts: dict[str, int] = {}
        self.owner_kill_count = 0

    def take(self, words: list[str]) -> None:
        """Take in one line of a journal; lines of one process come in their order."""
        match words:
            case ["resumed", offset]:
                self.forgotten |= {put for put in self.put if put >= int(offset)}
            case ["put", offset]:
                self.put.add(int(offset))
            case ["received", offset, digest]:
                self._take_received(int(offset), digest)
            case ["acked", offset]:
                self.acked.add(int(offset))
            case ["opened", seconds, _]:
                self.opening_seconds.append(float(seconds))
            case ["owner", torn_bytes]:
                self.owner_count += 1
                self.torn_tail_count += int(torn_bytes) > 0

    @property
    def lost(self) -> set[int]:
        """Offsets of orders that never came out, or that an acknowledged put did not keep."""
        return set(range(len(self._digests))) - self.received | self.forgotten

    @property
    def violations(self) -> list[str]:
        """Every promise that was broken, one clause each; empty if all were kept."""
        broken = [
            clause("lost", self.lost),
            clause("altered", self.altered),
            clause("received after a durable acknowledgement", self.received_after_ack),
            f"{self.left_count} left in the queue" if self.left_count else "",
            f"{self.damage_count} damaged places in the files" if self.damage_count else "",
        ]
        return [clause for clause in broken if clause]

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the table: name, figure, remark."""
        unanswered = len(self._digests) - len(self.put)
        others = f"{unanswered} more were put; a kill came before the answer" if unanswered else ""
        torn = f"; {self.torn_tail_count} half-written puts dropped" if self.torn_tail_count else ""
        return [
            ("orders", f"{len(self._digests):,}", ""),
            ("put, acknowledged", f"{len(self.put):,}", others),
            ("received", f"{len(self.received):,}", "distinct"),
            ("lost", f"{len(self.lost):,}", "must be 0"),
            ("altered", f"{len(self.altered):,}", "must be 0"),
            ("received after durable ack", f"{len(self.received_after_ack):,}", "must be 0"),
            ("left in the queue", f"{self.left_count:,}", "must be 0"),
            ("damage found by verify", f"{self.damage_count:,}", "must be 0"),
            ("redelivered", f"{self.redelivered_count:,}", "killed before they were acknowledged"),
            (
                "recovery, median / max",
                recovery(self.opening_seconds),
                f"{len(self.opening_seconds)} openings after a kill{torn}",
            ),
            ("owner killed", f"{self.owner_kill_count:,}", f"{self.owner_count:,} owners, one after another"),
            ("killed", " / ".join(map(str, self.kill_counts.values())), " / ".join(self.kill_counts)),
        ]

    def _take_received(self, offset: int, digest: str) -> None:
        if offset >= len(self._digests) or digest != self._digests[offset]:
            self.altered.add(offset)
        if offset in self.acked:
            self.received_after_ack.add(offset)
        elif offset in self.received:
            self.redelivered_count += 1
        self.received.add(offset)


def clause(what: str, offsets: set[int]) -> str:
    """Return how many events that befell, and the first of them; nothing if it befell none."""
    if not offsets:
        return ""
    first = ", ".join(map(str, sorted(offsets)[:SHOWN_MAX]))
    return f"{len(offsets)} {what} (offsets {first}{', …' if len(offsets) > SHOWN_MAX else ''})"


def recovery(opening_seconds: Sequence[float]) -> str:
    """Return the median and the longest of some openings."""
    milliseconds = [seconds * 1000 for seconds in opening_seconds] or [0.0]
    return f"{statistics.median(milliseconds):.1f} / {max(milliseconds):.1f} ms"


def table(rows: Sequence[tuple[str, str, str]]) -> str:
    """Align names to the left, figures to the right, remarks behind them."""
    name_width = max(len(name) for name, _, _ in rows)
    figure_width = max(len(figure) for _, figure, _ in rows)
    return "\n".join(
        f"  {name:<{name_width}}  {figure:>{figure_width}}  {remark}".rstrip() for name, figure, remark in rows
    )
