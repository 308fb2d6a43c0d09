"""All that a queue does to its files passes through the storage port: what tests put there sees everything.

``support/workloads/seam_work.py`` uses all verbs of real queues in a process of its own, over the real storage, which
writes down what it is asked for. The system calls of that process are held against that, and what Python itself
reports.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from support.processes.children import TESTS

STRACE = shutil.which("strace")
CALL = re.compile(r"^(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
DESCRIPTOR = re.compile(r"^\d+<(?P<path>[^>]*?)(?: \(deleted\))?>(?:, )?(?P<rest>.*)$")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
QUESTIONS = {"newfstatat", "fstat", "statx", "lstat", "stat", "readlink", "access", "close", "getdents64", "lseek"}
BY_NAME = {
    "openat": "open",
    "mkdir": "make directory",
    "rename": "rename",
    "unlink": "remove",
    "rmdir": "remove directory",
}
BY_DESCRIPTOR = {
    "pwrite64": "write",
    "pwritev": "write",
    "pwritev2": "write",
    "pread64": "read",
    "fsync": "sync",
    "fdatasync": "sync",
    "ftruncate": "truncate",
    "fallocate": "allocate",
    "flock": "lock",
}


MEMORY = Path("/dev/shm")  # what is called is the same there, and syncs take no time


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Return an empty directory, in memory where there is one."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir=MEMORY) as name:
        yield Path(name)


def run(place: Path, *prefix: str) -> dict[str, list[list[str]]]:
    """Do the work in a process of its own; return what it has written down."""
    (place / "queues").mkdir()
    program = [sys.executable, "-m", "support.workloads.seam_work"]
    command = [*prefix, *program, str(place / "queues"), str(place / "notes")]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode and "ptrace" in done.stderr.lower():
        pytest.skip(f"no process may be traced here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    notes: dict[str, list[list[str]]] = json.loads((place / "notes").read_text())
    assert len(notes["verbs"]) > 500, "hardly anything was done"
    return notes


def traced(files: list[Path], root: str) -> Iterator[tuple[str, ...]]:
    """Yield what system calls have done below ``root``, in the words of the storage port."""
    for line in (line for path in files for line in path.read_text().splitlines() if root in line):
        call = CALL.match(line)
        if call is None or call["name"] in QUESTIONS or call["name"] == "execve":
            continue
        name, arguments, result = call["name"], call["arguments"], call["result"]
        if name in BY_NAME:
            paths = [path for path in QUOTED.findall(arguments) if path.startswith("/")]
            yield (BY_NAME[name], *paths)
            continue
        descriptor = DESCRIPTOR.match(arguments)
        assert descriptor is not None, f"a call that no verb of the storage port makes: {line}"
        assert name in BY_DESCRIPTOR, f"a call that no verb of the storage port makes: {line}"
        verb, path = BY_DESCRIPTOR[name], descriptor["path"]
        if verb in ("write", "read"):
            yield verb, path, result
        elif verb in ("truncate", "allocate"):
            yield verb, path, descriptor["rest"].split(", ")[-1]
        else:
            yield verb, path


def tallied(events: Iterable[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    """Count what was done; of reads the bytes, as one verb may take several calls, and one that finds no more."""
    counts: Counter[tuple[str, ...]] = Counter()
    for verb, *rest in events:
        if verb == "read":
            counts[verb, rest[0]] += int(rest[1])
        else:
            counts[verb, *rest] += 1
    return counts


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_the_system_calls_of_a_queue_are_the_verbs_that_its_storage_was_asked_for(place: Path) -> None:
    """Every open, write, read, sync, truncation, reservation, lock, rename and removal, with paths and sizes."""
    assert STRACE is not None
    notes = run(place, STRACE, "-ff", "--seccomp-bpf", "-y", "-o", str(place / "trace"), "-e", "trace=%file,%desc")
    files = sorted(place.glob("trace.*"))
    assert len(files) > 1, "the threads of the process were not traced"
    called = tallied(traced(files, f"{place}/queues/"))
    told = tallied(tuple(verb) for verb in notes["verbs"])
    around, unseen = called - told, told - called
    assert not around, f"done around the storage port: {sorted(around.items())[:9]}"
    assert not unseen, f"asked of the storage port, and not done: {sorted(unseen.items())[:9]}"
    assert {verb for verb, *_ in told} >= {*BY_DESCRIPTOR.values(), *BY_NAME.values()} - {"remove directory"}


def test_python_reports_no_file_call_outside_of_a_verb(place: Path) -> None:
    """Its audit hooks see whoever opens, lists, renames, removes, maps or locks a file of a queue."""
    assert run(place)["beside"] == []
