"""Facts about the machine that a reader needs to judge the table; nothing that names it."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from holdfast.compiled import implementation
from holdfast.persistence.format.checksum import compiled_crc32c


def facts(place: Path) -> list[str]:
    """Return one line for each fact; ``place`` is where the files of the benchmarks stand."""
    crc = "google-crc32c, compiled" if compiled_crc32c() is not None else "crcmod"
    return [
        f"machine: {os.cpu_count()} CPUs{_virtual()}, {platform.machine()}",
        f"kernel: {platform.system()} {platform.release().partition('-')[0]}",
        f"file system: {file_system(place)}",
        f"python: {platform.python_implementation()} {platform.python_version()}",
        f"implementation: {implementation}, if a row does not say; CRC-32C of Python alone: {crc}",
        f"commit: {_commit()}",
    ]


def file_system(place: Path) -> str:
    """Return the type of the file system that holds ``place``, where the system tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    fields = [line.split() for line in mounts]
    points = {field[1].encode().decode("unicode_escape"): field[2] for field in fields}  # spaces stand as \040
    for folder in (place.resolve(), *place.resolve().parents):
        if str(folder) in points:
            return points[str(folder)]
    return "unknown"


def _commit() -> str:
    """Return the commit of this checkout, and whether it has changes."""
    try:
        found = [
            subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
            for arguments in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found[0].stdout.strip() + (" with changes" if found[1].stdout else "")


def _virtual() -> str:
    """Tell whether Linux sees a hypervisor."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return ""
    return " (virtual machine)" if "hypervisor" in flags else ""
