"""Installs the other queues, one by one, and keeps why one could not be: ``python -m benchmarks.peers.install``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.queues import PEERS

MISSING = Path(sys.prefix) / "missing.json"
"""By distribution: why pip could not install it."""


def main() -> None:
    """Try each; one that fails is no error."""
    missing = {}
    for name in dict.fromkeys(peer.distribution for peer in PEERS if peer.distribution not in ("", "holdfast")):
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", name],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            missing[name] = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    MISSING.write_text(json.dumps(missing), encoding="utf-8")


if __name__ == "__main__":
    main()
