"""A bound on memory: what takes more ends in a MemoryError, which is a finding like any other."""

from __future__ import annotations

import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")


def limit_memory(more_bytes: int) -> None:
    """Let the process take so much more than it has now; where there is no ``/proc`` nothing is bounded."""
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmData:"))
        limit = int(line.split()[1]) * 1024 + more_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
