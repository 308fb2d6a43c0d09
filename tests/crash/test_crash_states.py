"""A brief look at the crash states of short workloads and of some longer ones; ``make crash`` looks closely.

The explorer is in tests/proof/crash_states, the crash model in docs/reliability.md.
"""

from collections.abc import Callable

import pytest

from proof.crash_states.opening import POLICIES
from proof.crash_states.search import BRIEF, Task, run
from proof.crash_states.workloads import BEGINNINGS

LIVES = [pytest.param(beginning, policy, id=f"{beginning}-{policy}") for beginning in BEGINNINGS for policy in POLICIES]


@pytest.mark.parametrize(("beginning", "policy"), LIVES)
def test_short_workloads_recover_from_a_crash_at_any_instant(
    beginning: str, policy: str, record_property: Callable[[str, object], None]
) -> None:
    """All workloads of up to two actions, cut off at each of their instants, show a prefix of what was done."""
    tally = run(Task(beginning, policy, depth=2), BRIEF)
    record_property("explored", f"{tally.crashes} crashes, {len(tally.digests)} distinct states")


@pytest.mark.parametrize(("beginning", "policy"), LIVES)
def test_drawn_workloads_recover_from_a_crash_at_any_instant(
    beginning: str, policy: str, record_property: Callable[[str, object], None]
) -> None:
    """Some workloads of five to twelve actions; others than those of ``make crash``."""
    tally = run(Task(beginning, policy, seed=-1, count=3))
    record_property("explored", f"{tally.crashes} crashes, {len(tally.digests)} distinct states")
