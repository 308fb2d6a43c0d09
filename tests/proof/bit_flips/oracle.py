"""Holds a queue with one flipped bit to promise 5: found, located, counted; nothing wrong shown, nothing skipped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from holdfast import Damage, RecoveryReport, VerifyReport, verify
from proof.bit_flips.look import Beside, OutcomeEntry, Seen, Shown, look, look_beside
from proof.bit_flips.places import HARMLESS, WITNESS, Region
from proof.bit_flips.victim import AUDIT, DEFAULT, PREPARED_PUTS, ROOT, UNDECIDED, Victim
from support.storages.simulated_storage import SimulatedStorage

UNREPORTED = ("notes of dead letters", "decided")
"""What ``verify`` calls no damage: a note says less, and a memory forgets."""


@dataclass(frozen=True)
class Verdict:
    """What became of one flip: whether ``verify`` reported it, and how many lost offsets were named exactly."""

    detected: bool
    lost_count: int


class Judge(Protocol):
    """Judges flips in one queue.

    Attributes
    ----------
    victim : Victim
        The queue.
    """

    victim: Victim

    def judge(self, region: Region, storage: SimulatedStorage, *, thorough: bool) -> Verdict:
        """Judge a disk on which one bit of a region is flipped; raises AssertionError with what does not hold."""


class Oracle:
    """Judges flips against what the same queue shows without one."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        self._whole: dict[str, Seen] = {}
        self._beside: dict[str, Beside] = {}
        for group in (DEFAULT, AUDIT):
            self._beside[group] = look_beside(victim, victim.copy(), group)
            seen = look(victim, victim.copy(), group, decide=True)
            assert seen.recovery.clean, f"the queue that is to be damaged is not whole: {seen.recovery}"
            assert sorted(seen.own.offsets) == sorted({*seen.own.offsets}), "something comes twice"
            self._whole[group] = seen
        report = verify(ROOT, storage=victim.storage)
        assert report.ok, f"the queue that is to be damaged is not whole: {report}"

    def judge(self, region: Region, storage: SimulatedStorage, *, thorough: bool) -> Verdict:
        """Judge a disk on which one bit of a region is flipped; raises AssertionError with what does not hold."""
        report = verify(ROOT, storage=storage)
        named = {offset for run in report.lost for offset in run}
        expected = region.lost | region.left_out
        assert named == expected, f"verify names {sorted(named)} as lost, and not {sorted(expected)}"
        if region.part not in (HARMLESS, WITNESS) and region.kind not in UNREPORTED:
            assert not report.ok, "verify has missed it"
            assert any(damage.path == region.path for damage in report.damage), f"verify names other files: {report}"
        group = region.path.parent.name if region.path.parent.name == AUDIT else DEFAULT
        if thorough or region.path.suffix not in (".position", ".batch"):
            other = AUDIT if group == DEFAULT else DEFAULT
            _check_beside(region, look_beside(self.victim, storage, other), self._beside[other])
        is_part_of_it = region.path.name in ("decided", "joint.json", "pause.json") or region.path.suffix == ".batch"
        seen = look(self.victim, storage, group, decide=thorough or is_part_of_it)
        _Judgement(region, report, seen, self._whole[group]).check()
        return Verdict(not report.ok, len(region.lost))


class _Judgement:
    """One flip."""

    def __init__(self, region: Region, report: VerifyReport, seen: Seen, whole: Seen) -> None:
        self._region = region
        self._report = report
        self._seen = seen
        self._whole = whole

    @cached_property
    def _is_progress(self) -> bool:
        """Whether what the group has done is damaged, so that it may be done again."""
        path = self._region.path
        return path.suffix == ".position" or path.name == "group.json"

    def check(self) -> None:
        is_document = self._region.path.name in ("queue.json", "group.json")
        assert self._seen.rebuilt == (self._region.path if is_document else None), f"rebuilt: {self._seen.rebuilt}"
        assert self._seen.is_paused == self._whole.is_paused, "a pause has ended by itself"
        self._check_recovery()
        if self._is_progress:
            self._check_progress(self._seen.own, self._whole.own)
        else:
            _same(_without(self._region.lost, self._whole.own), self._seen.own, "the group is given")
        assert self._seen.depth == 0, f"{self._seen.depth} messages are left in a drained queue"
        if self._seen.decided is not None:
            self._check_decided(self._seen.decided)

    def _check_recovery(self) -> None:
        """The report of opening and reading names what is lost, and nothing else."""
        _check_named(self._region.lost, self._whole.own, self._seen.recovery)
        if not self._is_progress:
            assert not self._seen.recovery.progress_damage, f"damage is invented: {self._seen.recovery}"

    def _check_progress(self, own: Shown, whole: Shown) -> None:
        """Every message that waited comes, right and once; what comes again, or differently, was reported."""
        rows, known = {row[0]: row for row in own.rows}, {row[0]: row for row in whole.rows}
        assert len(rows) == len(own.rows), "something comes twice"
        parked = {letter[0] for letter in own.dead}
        missing = known.keys() - rows.keys()
        assert not missing, f"{sorted(missing)} waited, and do not come"
        for offset, row in rows.items():
            if offset in known:
                assert row[1:3] == known[offset][1:3], f"offset {offset} holds something else"
        assert not parked - {letter[0] for letter in whole.dead}, "a message was buried by damage"
        if own != whole:
            reported = {damage.path for damage in self._seen.recovery.progress_damage} | {self._seen.rebuilt} - {None}
            assert reported, f"not as before, and nothing says why: {own}"
            assert self._region.path in reported, f"other files are named: {reported}"
            assert not self._report.ok, "verify has missed it"
        _check_order(own)

    def _check_decided(self, decided: OutcomeEntry) -> None:
        """What was in doubt is committed as a whole, or refused as a whole and said to be damaged."""
        whole = self._whole.decided
        assert whole is not None
        assert [each.id for each in decided.prepared] == [UNDECIDED], f"in doubt is {decided.prepared}"
        damage = decided.prepared[0].damage
        in_batch = self._region.kind == "prepared batch"
        assert in_batch or not damage, f"damage is invented: {damage}"
        if decided.offsets is None:
            assert in_batch, "refused, and it is not damaged"
            assert damage, f"refused, and nothing says why: {decided.prepared}"
            assert not self._report.ok, "verify has missed it"
            came_back = [row[0] for row in decided.after.rows]
            held = decided.prepared[0].ack_count
            assert len(came_back) == held, f"aborted, and what it held does not come: {came_back}"
            puts = 0
        else:
            payloads = tuple(row[1] for row in decided.after.rows)
            assert payloads == PREPARED_PUTS, f"half of it was applied: {payloads}"
            assert decided.offsets == whole.offsets, f"it has offsets {decided.offsets}"
            puts = len(payloads)
        expected = whole.next_offset - len(PREPARED_PUTS) + puts
        assert decided.next_offset == expected, f"the next message has offset {decided.next_offset}, not {expected}"
        forgets = self._region.kind == "decided"
        for name, seen, right in (
            ("committed", decided.committed, whole.committed),
            ("aborted", decided.aborted, whole.aborted),
            ("joint", decided.joint_version, whole.joint_version),
        ):
            may_forget = forgets if name != "joint" else self._region.path.name == "joint.json"
            assert seen == right or (seen is None and may_forget), f"the {name} one is remembered as {seen}"


def _check_beside(region: Region, seen: Beside, whole: Beside) -> None:
    if region.kind == "write.mark" and region.part != HARMLESS:  # only it tells who looks where the log ends
        named = seen.recovery.damage
        assert any(damage.path == region.path for damage in named), f"shown as empty: {named}"
        return
    _same(_without(region.lost, whole.shown), seen.shown, "who looks at another group is shown")
    _check_named(region.lost, whole.shown, seen.recovery)


def _without(lost: frozenset[int], whole: Shown) -> Shown:
    rows = tuple(row for row in whole.rows if row[0] not in lost)
    return Shown(rows, tuple(letter for letter in whole.dead if letter[0] not in lost))


def _check_named(lost: frozenset[int], whole: Shown, recovery: RecoveryReport) -> None:
    named = _offsets(recovery.damage)
    assert lost & whole.known <= named <= lost, f"named as lost are {sorted(named)}, and not {lost}: {recovery}"


def _same(expected: Shown, found: Shown, who: str) -> None:
    _check_order(found)
    assert sorted(found.rows) == sorted(expected.rows), (
        f"{who} {[row for row in found.rows if row not in expected.rows]} "
        f"and not {[row for row in expected.rows if row not in found.rows]}, in the order {found.offsets}"
    )
    assert found.dead == expected.dead, f"{who} the dead letters {found.dead} instead of {expected.dead}"


def _check_order(shown: Shown) -> None:
    """By offset; only what was handed out before may come between."""
    for comes_again in (False, True):
        offsets = [row[0] for row in shown.rows if (row[3] > 1) == comes_again]
        assert offsets == sorted(offsets), f"in the order {shown.offsets}"


def _offsets(damage: tuple[Damage, ...]) -> set[int]:
    return {offset for each in damage for offset in each.offsets}
