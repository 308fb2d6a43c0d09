"""Both loops over all operations: what they cover, how fast, and what they found."""

from __future__ import annotations

import logging
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from proof.faults.deciding import OPENINGS, TRANSACTIONS
from proof.faults.in_operation import Ground, Trial, cases, survey
from proof.faults.in_recovery import PLACE_DISKS_MAX, Place, Recoveries, lefts
from proof.faults.operation import Operation
from proof.faults.preparing import IN_THE_LOG
from proof.faults.views import Viewer
from proof.faults.working import PUTS, TAKES, WHOLE
from proof.faults.world import POLICIES, repeatable_bytes
from support.builders.handles import no_passes

Result = TypeVar("Result")

OPERATIONS: tuple[Operation, ...] = (*PUTS, *TAKES, *WHOLE, *TRANSACTIONS, *IN_THE_LOG, *OPENINGS)

SHOWN_LINES_MAX = 4


@dataclass
class Finding:
    """A case that must not be: its name, by which it can be run again, and what came out."""

    case: str
    text: str

    def __str__(self) -> str:
        return f"    {self.case}\n{self.text}"


@dataclass
class Row:
    """What was covered of one operation, under all policies.

    Attributes
    ----------
    name : str
        Of the operation.
    call_count : int
        Storage calls of the operation: the most that one of its runs makes.
    case_count, recovery_count : int
        Cases in operation and in recovery.
    disk_count : int
        Different disks that were recovered without a fault, all judged.
    """

    name: str
    call_count: int = 0
    case_count: int = 0
    recovery_count: int = 0
    disk_count: int = 0
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = f"{len(self.findings)} VIOLATIONS" if self.findings else "ok"
        return (
            f"{self.name:30} {self.call_count:4} calls {self.case_count:6,} cases "
            f"{self.disk_count:5,} disks recovered {self.recovery_count:6,} cases in recovery   {verdict}"
        )


class FaultLoop:
    """Goes through the operations.

    Parameters
    ----------
    stride : int
        Only one of so many cases, chosen by their names: always the same ones.
    chooses : callable
        Whether a case of this name is run.
    place_disks_max : int
        On how many disks each fault strikes in each place of recovery.
    """

    def __init__(
        self, *, stride: int = 1, chooses: Callable[[str], bool] | None = None, place_disks_max: int = PLACE_DISKS_MAX
    ) -> None:
        self._stride = stride
        self._chooses = chooses
        self._viewer = Viewer()
        self._recoveries = Recoveries(self._viewer, place_disks_max)
        self.seconds = 0.0

    @property
    def places(self) -> set[Place]:
        """Where in recovery faults have struck."""
        return {place for place, _ in self._recoveries.places}

    def run(self, operation: Operation, policies: Iterable[str] = POLICIES) -> Row:
        """Run all chosen cases of an operation."""
        row = Row(operation.name)
        started = time.process_time()
        with repeatable_bytes(), silence(), no_passes():
            for name in policies:
                ground = self._try(
                    row, f"{operation}, {name}", partial(survey, operation, POLICIES[name], self._viewer)
                )
                if ground is not None:
                    self._in_operation(row, ground, name)
                    self._in_recovery(row, ground)
        self.seconds += time.process_time() - started
        return row

    def _in_operation(self, row: Row, ground: Ground, policy_name: str) -> None:
        row.call_count = max(row.call_count, *ground.call_counts.values())
        for case in cases(ground, policy_name):
            if self._is_chosen(str(case)):
                row.case_count += 1
                self._try(row, str(case), Trial(case, ground, self._viewer).run)

    def _in_recovery(self, row: Row, ground: Ground) -> None:
        before = self._recoveries.disk_count
        for left in lefts(ground):
            if not self._is_chosen(str(left)):
                continue
            for case in self._try(row, str(left), partial(self._recoveries.cases, left)) or ():
                if self._is_chosen(str(case)):
                    row.recovery_count += 1
                    self._try(row, str(case), partial(self._recoveries.run, case))
        row.disk_count += self._recoveries.disk_count - before

    def _is_chosen(self, case: str) -> bool:
        if self._chooses is not None and not self._chooses(case):
            return False
        return self._stride == 1 or zlib.crc32(case.encode()) % self._stride == 0

    def _try(self, row: Row, case: str, call: Callable[[], Result]) -> Result | None:
        try:
            return call()
        except Exception as error:  # whatever comes out is what was looked for
            row.findings.append(Finding(case, "".join(traceback.format_exception(error)[-SHOWN_LINES_MAX:])))
            return None


@contextmanager
def silence() -> Iterator[None]:
    """Have nothing logged: thousands of failures are."""
    logger = logging.getLogger("holdfast")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
