"""Builds the C extension with the package: if there is a compiler, and silently without one.

``src/holdfast/_core.c`` needs Python's headers and a compiler for C, and nothing else. It keeps to the stable interface
of Python 3.11, so one build serves every later version. An editable installation gets it beside its source.
``HOLDFAST_PURE=1`` builds a wheel without it, for every platform. docs/adr/0071.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src", "holdfast", "_core.c")
NAME = "_core.abi3.so"
TAG = "cp311-abi3"
IS_MACOS = sys.platform == "darwin"
LINKING = ("-bundle", "-undefined", "dynamic_lookup") if IS_MACOS else ("-shared", "-Wl,--build-id=none")


class Extension(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the extension to a wheel; an sdist carries its source."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before the wheel is packed; ``version`` is "standard" or "editable"."""
        if self.target_name != "wheel" or os.environ.get("HOLDFAST_PURE", "") not in {"", "0"}:
            return
        self._folder = tempfile.mkdtemp()
        target = Path(self._folder, NAME)
        beside = Path(self.root, SOURCE).with_name(NAME)
        if not build(Path(self.root, SOURCE), target):
            if version == "editable":
                beside.unlink(missing_ok=True)  # it may be of other sources
            return
        if version == "editable":
            shutil.copyfile(target, f"{beside}.new")
            os.replace(f"{beside}.new", beside)  # processes may have the old one loaded
            return
        build_data["force_include"][str(target)] = f"holdfast/{NAME}"
        build_data["pure_python"] = False
        build_data["tag"] = f"{TAG}-{platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built, once it is packed."""
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder)


def build(source: Path, target: Path) -> bool:
    """Compile and link the extension; return whether that worked."""
    command = [
        *shlex.split(os.environ.get("CC") or "cc"),
        *("-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden"),
        *shlex.split(os.environ.get("CFLAGS", "")),
        *shlex.split(os.environ.get("ARCHFLAGS", "")),
        f"-I{sysconfig.get_path('include')}",
        source.name,
        *LINKING,
        *shlex.split(os.environ.get("LDFLAGS", "")),
        *("-o", str(target)),
    ]
    try:
        done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and target.exists()


def platform_tag() -> str:
    """Return the platform of the wheel as its name says it.

    Python may be one of two architectures on macOS; without ``ARCHFLAGS`` the compiler makes the one of this machine.
    """
    name = sysconfig.get_platform()
    if "ARCHFLAGS" not in os.environ:
        name = name.replace("universal2", platform.machine())
    return name.replace("-", "_").replace(".", "_")
