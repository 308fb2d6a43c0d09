"""Facts about the machine that a reader needs to judge the table; nothing that names it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from holdfast.persistence.format.checksum import compiled_crc32c


def facts(place: Path) -> list[str]:
    """Return one line for each fact; ``place`` is where the files of the benchmarks stand."""
    crc = "google-crc32c, compiled" if compiled_crc32c() is not None else "crcmod"
    return [
        f"machine: {os.cpu_count()} CPUs{_virtual()}, {platform.machine()}",
        f"kernel: {platform.system()} {platform.release().partition('-')[0]}",
        f"file system: {file_system(place)}",
        f"python: {platform.python_implementation()} {platform.python_version()}",
        f"CRC-32C: {crc}",
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


def _virtual() -> str:
    """Tell whether Linux sees a hypervisor."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return ""
    return " (virtual machine)" if "hypervisor" in flags else ""
