"""For all tests: which of them run one behind the other where several run at once, Ctrl-C, and quick collections."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from support.processes.ctrl_c import have_ctrl_c_work

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling


def pytest_configure() -> None:
    """Have Ctrl-C work here, and in processes that tests start."""
    have_ctrl_c_work()


def pytest_collection_finish() -> None:
    """Keep thousands of tests and their modules out of each collection of garbage: they stay to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which need not be there
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep the tests of Spark in one process, which has the one session; they start first. All others go anywhere."""
    from xdist.scheduler import LoadScopeScheduling

    class OneSession(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

    return OneSession(config, log)
