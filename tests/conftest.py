"""For all tests: which run one after the other, missing extras, Ctrl-C, quick collections, no haste."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from support.builders.handles import no_passes
from support.processes.ctrl_c import have_ctrl_c_work

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

EXTRAS = {
    "arrow": "pyarrow",
    "catalog": "sqlite_utils",
    "cli": "rich",
    "filter": "cel",
    "protobuf": "google.protobuf",
    "pydantic": "pydantic",
    "spark": "pyspark",
    "zstd": "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",
}
"""The module of each. ``@pytest.mark.extra("catalog")``: the test is skipped if it is missing."""

IMPORTING = {
    "contract/test_serializer_contract.py": ("protobuf", "pydantic"),
    "unit/serializers/test_compression.py": ("zstd",),
    "unit/serializers/test_protobuf_serializer.py": ("protobuf",),
    "unit/serializers/test_pydantic_models.py": ("pydantic",),
}
"""Modules of tests that are about extras and import them at once: they are ignored if one is missing."""

STANDARD = {"zstd"} if sys.version_info >= (3, 14) else set()
"""Extras that Python brings itself."""


def is_missing(module: str) -> bool:
    """Whether a module cannot be imported."""
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # not even the package that it is in
        return True


MISSING = {extra for extra, module in EXTRAS.items() if is_missing(module)}

collect_ignore = [path for path, needed in IMPORTING.items() if MISSING.intersection(needed)]


def pytest_configure() -> None:
    """Have Ctrl-C work here, and in processes that tests start; where extras must be missing, see that they are."""
    have_ctrl_c_work()
    if not is_missing("hypothesis"):  # some environments of `make matrix` have no test that needs it
        _let_examples_take_time()
    if os.environ.get("HOLDFAST_TEST_MINIMAL") == "1" and (there := EXTRAS.keys() - MISSING - STANDARD):
        pytest.exit(f"HOLDFAST_TEST_MINIMAL=1, and these extras are installed: {', '.join(sorted(there))}", 1)


def _let_examples_take_time() -> None:
    """Have no example of Hypothesis fail because the machine is busy: what hangs has the time limit of all tests."""
    from hypothesis import HealthCheck, settings

    settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy machine")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs an extra that is missing."""
    for mark in item.iter_markers("extra"):
        if mark.args[0] in MISSING:
            pytest.skip(f"needs holdfast[{mark.args[0]}]")


@pytest.fixture(autouse=True)
def _passes_are_asked_for() -> Iterator[None]:
    """Have retention pass over queues only where a test asks for it."""
    with no_passes():
        yield


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
