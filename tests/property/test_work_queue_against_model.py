"""An hour of simulated time with random verbs: a work queue does what its model does.

``HOLDFAST_TEST_MODEL_RUNS`` asks for more runs than the suite has; the number of a run is its seed.
"""

import os

import pytest

from support.builders.handles import no_passes
from support.workloads.work_runs import WorkRun

SIMULATED_SECONDS = 3600
VERBS_MIN = 2000
RUNS = int(os.environ.get("HOLDFAST_TEST_MODEL_RUNS", "5"))


@pytest.mark.parametrize("seed", range(RUNS))
def test_an_hour_of_random_verbs_agrees_with_the_model(seed: int) -> None:
    """What comes next, delivery counts, states, dead letters and figures; at the end nothing is left behind."""
    with no_passes():
        run = WorkRun(seed)
        try:
            while run.simulated_seconds < SIMULATED_SECONDS or run.verb_count < VERBS_MIN:
                run.step()
            run.drain()
        except Exception as error:
            raise AssertionError("\n".join([f"seed {seed}, {run.options}, the last verbs:", *run.verbs])) from error
        finally:
            run.queue.close()
