"""The wheel and the sdist: what they hold, what they ask for, and that they can be built again to the same bytes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = {"click", "crcmod-plus", "google-crc32c", "msgspec", "portalocker"}
EXTRAS = {
    "all",
    "arrow",
    "catalog",
    "cli",
    "demo",
    "dev",
    "filter",
    "fuzz",
    "protobuf",
    "pydantic",
    "spark",
    "test",
    "zstd",
}
NEEDED_TO_BUILD = [".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "hatch_build.py", "pyproject.toml"]
EXTENSION_SOURCE = "holdfast/_core.c"
EPOCH = "1700000000"


@dataclass(frozen=True)
class Archives:
    """A wheel and an sdist."""

    wheel: Path
    sdist: Path

    @property
    def wheel_names(self) -> list[str]:
        """Paths in the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    @property
    def sdist_names(self) -> list[str]:
        """Paths in the sdist, without its top folder."""
        with tarfile.open(self.sdist) as archive:
            return [name.partition("/")[2] for name in archive.getnames()]

    @property
    def metadata(self) -> Message:
        """What the wheel says of itself."""
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            return BytesParser().parsebytes(archive.read(name))


def build(source: Path, target: Path, **environment: str) -> Archives:
    """Build both, with the build tool of this environment; as `make dist` does, unless the environment says more."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target)]
    given = {"SOURCE_DATE_EPOCH": EPOCH, **(environment or {"HOLDFAST_PURE": "1"})}
    subprocess.run(command, cwd=source, check=True, capture_output=True, env=given)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return Archives(wheel, sdist)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    """Return those of this tree."""
    return build(ROOT, tmp_path_factory.mktemp("archives"))


def test_the_core_depends_on_few_packages(archives: Archives) -> None:
    """A new one is a decision: docs/adr/0047."""
    requirements = archives.metadata.get_all("Requires-Dist", [])
    names = {re.split(r"[^\w.-]", each)[0] for each in requirements if "extra ==" not in each}
    assert names == CORE
    assert set(archives.metadata.get_all("Provides-Extra", [])) == EXTRAS


def test_the_wheel_holds_both_packages_and_their_types(archives: Archives) -> None:
    """And nothing else."""
    names = archives.wheel_names
    tops = {PurePosixPath(name).parts[0] for name in names}
    assert tops == {"holdfast", "pyspark_holdfast", archives.wheel.name.partition("-py3")[0] + ".dist-info"}
    assert {"holdfast/py.typed", "holdfast/__init__.py", "pyspark_holdfast/__init__.py"} <= set(names)
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources


def test_the_sdist_holds_what_the_wheel_is_built_from(archives: Archives) -> None:
    """No tests, no examples, no documentation, and no files that tests read."""
    names = archives.sdist_names
    assert {name for name in names if not name.startswith("src/")} == {*NEEDED_TO_BUILD, "PKG-INFO"}
    assert {name.removeprefix("src/") for name in names if name.startswith("src/")} == {
        EXTENSION_SOURCE,
        *(name for name in archives.wheel_names if ".dist-info/" not in name),
    }


def test_the_same_sources_give_the_same_bytes(archives: Archives, tmp_path: Path) -> None:
    """Whatever their folder is called and whenever they were written."""
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    for name in NEEDED_TO_BUILD:
        shutil.copyfile(ROOT / name, copy / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "src", copy / "src", copy_function=shutil.copyfile, ignore=ignored)
    again = build(copy, tmp_path / "again")
    assert again.wheel.read_bytes() == archives.wheel.read_bytes()
    assert again.sdist.read_bytes() == archives.sdist.read_bytes()


def test_the_published_wheel_of_every_platform_has_no_extension(archives: Archives) -> None:
    """It is what an installation gets that no other wheel fits."""
    assert archives.wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in archives.wheel_names if name.endswith((".so", ".c"))]


def test_without_a_compiler_the_extension_is_left_out(archives: Archives, tmp_path: Path) -> None:
    """Silently, and the wheel is byte for byte that of every platform."""
    found = build(ROOT, tmp_path, PATH="/nonexistent")
    assert found.wheel.name == archives.wheel.name
    assert found.wheel.read_bytes() == archives.wheel.read_bytes()
    assert build(ROOT, tmp_path / "broken", CC="false").wheel.read_bytes() == archives.wheel.read_bytes()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler here")
def test_with_a_compiler_the_wheel_has_the_extension_for_every_python_from_3_11(
    archives: Archives, tmp_path: Path
) -> None:
    """The same bytes each time; unpacked, that extension serves."""
    path = os.environ["PATH"]
    found, again = build(ROOT, tmp_path / "one", PATH=path), build(ROOT, tmp_path / "two", PATH=path)
    assert "-cp311-abi3-" in found.wheel.name
    assert set(found.wheel_names) - set(archives.wheel_names) == {"holdfast/_core.abi3.so"}
    assert found.wheel.read_bytes() == again.wheel.read_bytes()
    with zipfile.ZipFile(found.wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    program = "import holdfast; print(holdfast.implementation, holdfast.__file__)"
    environment = {"PYTHONPATH": str(tmp_path / "unpacked")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["c", str(tmp_path / "unpacked" / "holdfast" / "__init__.py")]
