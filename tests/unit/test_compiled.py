"""Which implementation serves: the extension, or Python alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from holdfast import compiled
from holdfast.persistence.format.framing import encode_messages

PROGRAM = (
    "import holdfast, tempfile; q = holdfast.PersistentQueue(tempfile.mkdtemp() + '/q'); q.put(b'x'); print(q.get());"
    " from holdfast import compiled; print(holdfast.implementation, compiled.call_count() > 0)"
)


def outcome_with(pure: str) -> list[str]:
    """Return what a program prints that uses a queue, with this value of ``HOLDFAST_PURE``."""
    environment = {**os.environ, "HOLDFAST_PURE": pure}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_python_alone_serves_if_it_is_asked_for() -> None:
    """Whatever is installed; and says so."""
    assert outcome_with("1") == ["b'x'", "python False"]


def test_the_extension_serves_wherever_it_was_built() -> None:
    """And its functions are called."""
    expected = "c True" if compiled.implementation == "c" or compiled.load_core() else "python False"
    if os.environ.get("HOLDFAST_PURE", "") in {"", "0"}:
        assert outcome_with("0") == outcome_with("") == ["b'x'", expected]


def test_without_an_extension_python_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is not there, and one that was built from other sources."""
    monkeypatch.delenv("HOLDFAST_PURE", raising=False)
    assert compiled.load_core("holdfast._no_such_module") is None
    assert compiled.load_core("holdfast.errors") is None
    monkeypatch.setattr(compiled, "_core", None)
    assert compiled.compiled(len) is len
    assert compiled.call_count() == 0
    compiled.twins.pop("len")


def test_another_thread_has_its_turns_while_a_long_batch_is_encoded() -> None:
    """A batch has no limit of messages; what it took at once, all threads of the application would wait for."""
    turns, is_over = 0, threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            time.sleep(0)  # hands the GIL over: a turn is a turn

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        payloads = [b"payload"] * 300_000
        before = turns
        encode_messages(7, 0, 0, 0, None, payloads, True, True)
        between = turns - before
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert between >= 20
