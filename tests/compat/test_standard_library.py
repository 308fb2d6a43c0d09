"""The standard library's own tests of ``queue``, of the Python that runs this, against a thin adapter.

They come with the interpreter, in its package ``test``; some distributions leave that out. What a durable queue is not
meant to pass is listed with the reason, and has to fail: a list that has grown old is noticed.
"""

from __future__ import annotations

import importlib
import pickle
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Empty, FlushPolicy, Full, PersistentQueue, ShutDown
from holdfast.queue.options.queue_options import Mode

try:
    standard: Any = importlib.import_module("test.test_queue")
except ImportError:
    standard = None

LIFO = "a log is read from its oldest message on: there is no LifoQueue"
PRIORITY = "put(priority=) takes 0 to 9, and not any object that can be compared: there is no PriorityQueue"
HOOKS = "it overrides _put and _get, which are no hooks here: a message is bytes in a file, not an item of a list"
SIMPLE = "there is no SimpleQueue: the queue itself passes its other tests"

LEFT_OUT = {
    "PyLifoQueueTest": LIFO,
    "PyPriorityQueueTest": PRIORITY,
    "PyFailingQueueTest": HOOKS,
    "PySimpleQueueTest.test_references": "the queue keeps bytes and no items: these, of a local class, are not pickled",
    "CSimpleQueueTest.test_is_default": SIMPLE,
}
"""Classes of tests, and single tests, that have to fail here; and why that is right."""

NOT_RUN = {
    "CSimpleQueueTest.test_reentrancy": "puts in __del__, inside another put, which waits for ever: docs/work-queue.md",
}

FLUSHES: dict[Mode, FlushPolicy] = {"exclusive": FlushPolicy.never(), "shared": FlushPolicy.every_commit()}
"""By mode. Figures of a shared handle are those of its files: without a sync they may be late, docs/processes.md."""

opened: list[PersistentQueue] = []


class Queue(PersistentQueue):
    """A queue of objects: an item is pickled, and that is all there is to the adapter."""

    MODE: Mode = "exclusive"

    def __init__(self, maxsize: int = 0) -> None:
        path = Path(tempfile.mkdtemp(dir=tempfile.tempdir)) / "queue"
        super().__init__(path, mode=self.MODE, maxsize=maxsize, flush=FLUSHES[self.MODE], data_file_bytes=2**20)
        opened.append(self)

    @property
    def maxsize(self) -> int:
        """The bound; of a queue that keeps its items it is a setting."""
        return super().maxsize

    @maxsize.setter
    def maxsize(self, maxsize: int) -> None:
        self.configure(maxsize=maxsize)

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        super().put(pickle.dumps(item), block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        return pickle.loads(super().get(block, timeout))


NAMES = SimpleNamespace(Queue=Queue, _PySimpleQueue=Queue, Empty=Empty, Full=Full, ShutDown=ShutDown)
"""What the tests look for in the module ``queue``."""


def standard_tests() -> Iterator[tuple[str, type[unittest.TestCase], str]]:
    """Yield name, class and method of each test; those that Python's two versions of ``queue`` share, once."""
    seen = set()
    for name, kind in vars(standard).items():
        if not (isinstance(kind, type) and issubclass(kind, unittest.TestCase)):
            continue
        for method in unittest.defaultTestLoader.getTestCaseNames(kind):
            key = (kind.__bases__[0], getattr(kind, method))
            if key not in seen:
                seen.add(key)
                yield f"{name}.{method}", kind, method


TESTS = {name: (kind, method) for name, kind, method in standard_tests()} if standard is not None else {}
without_tests = pytest.mark.skipif(not TESTS, reason="this Python comes without its package test")


def is_left_out(name: str) -> bool:
    """Tell whether a test is listed, by itself or with its class."""
    return name in LEFT_OUT or name.partition(".")[0] in LEFT_OUT


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have queues made in a directory that goes, and closed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    for queue in opened:
        queue.close()
    opened.clear()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("mode", FLUSHES)
@pytest.mark.parametrize("name", sorted(TESTS.keys() - NOT_RUN.keys()) or [pytest.param("none", marks=without_tests)])
def test_the_tests_of_the_standard_library_pass(name: str, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each passes, or is listed as one that does not: then it must not."""
    monkeypatch.setattr(Queue, "MODE", mode)
    kind, method = TESTS[name]
    case = type(kind.__name__, (kind,), {"queue": NAMES})(method)
    result = unittest.TestResult()
    case.run(result)
    assert not result.skipped
    if is_left_out(name):
        assert not result.wasSuccessful(), f"{name} passes: take it from the list"
    else:
        assert result.wasSuccessful(), "".join(text for _, text in [*result.errors, *result.failures])


@without_tests
def test_the_list_names_tests_that_exist() -> None:
    """One that a version of Python does not have would hide that it is gone."""
    names = {*TESTS, *(name.partition(".")[0] for name in TESTS)}
    assert {*LEFT_OUT, *NOT_RUN} <= names
    assert "PyQueueTest.test_basic" in TESTS
