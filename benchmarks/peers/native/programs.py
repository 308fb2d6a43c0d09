"""Builds the programs with cargo; each prints what ``columns.py`` and ``kills.py`` would."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

from benchmarks.peers.peer import Peer, UnavailableError, no_handle

SOURCES = Path(__file__).parent
TIMEOUT_SECONDS = 600
NEW_LINE = "\n"


def built(folder: Path) -> list[Peer]:
    """Build them into a folder, and return them.

    Raises
    ------
    UnavailableError
        There is no cargo, or it could not build one of them.
    """
    source = SOURCES / "queue_file"
    program = _build(source, folder.resolve() / source.name)
    version = tomllib.loads((source / "Cargo.toml").read_text(encoding="utf-8"))["dependencies"]["queue-file"]
    return [
        Peer(
            "queue-file, in Rust",
            "",
            no_handle,
            "set_sync_writes(true)",
            threads="no",
            processes=False,
            version=version.removeprefix("="),
            program=str(program),
        )
    ]


def _build(source: Path, target: Path) -> Path:
    cargo = shutil.which("cargo")
    if cargo is None:
        raise UnavailableError("there is no cargo: install Rust, or leave --native out")
    done = subprocess.run(
        [cargo, "build", "--release", "--quiet", "--target-dir", str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise UnavailableError(f"cargo could not build {source.name}: {done.stderr.strip().partition(NEW_LINE)[0]}")
    return target / "release" / f"{source.name.replace('_', '-')}-peer"
