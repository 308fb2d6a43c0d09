"""For all tests: which of them run one behind the other where several run at once, and that Ctrl-C works."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling


def pytest_configure() -> None:
    """Have Ctrl-C work in processes that tests start: a shell has its background jobs ignore it, and theirs."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which need not be there
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep the tests of Spark in one process, which has the one session; they start first. All others go anywhere."""
    from xdist.scheduler import LoadScopeScheduling

    class OneSession(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

    return OneSession(config, log)
