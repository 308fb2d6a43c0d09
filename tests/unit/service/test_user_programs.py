"""Types as a user's program sees them: mypy and pyright accept a good one, and refuse wrong lines of a bad one."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "user_programs"
Findings = tuple[dict[str, set[int]], list[str]]
"""The lines with an error by file, and the revealed types of the good program."""


def by_mypy(cache: Path) -> Findings:
    """Return what ``mypy --strict`` finds."""
    command = ["mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "good.py", "bad.py"]
    found = subprocess.run([sys.executable, "-m", *command], cwd=PROGRAMS, capture_output=True, text=True, check=False)
    errors: dict[str, set[int]] = {"good.py": set(), "bad.py": set()}
    for name, line in re.findall(r"^(\w+\.py):(\d+): error: ", found.stdout, re.MULTILINE):
        errors[name].add(int(line))
    return errors, re.findall(r'Revealed type is "(.*)"', found.stdout)


def by_pyright(cache: Path) -> Findings:
    """Return what pyright finds, in its strict mode."""
    config = {"include": [str(PROGRAMS)], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (cache / "pyrightconfig.json").write_text(json.dumps(config))
    command = ["basedpyright", "-p", str(cache), "--pythonpath", sys.executable, "--outputjson"]
    found = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    errors: dict[str, set[int]] = {"good.py": set(), "bad.py": set()}
    revealed = []
    for each in json.loads(found.stdout)["generalDiagnostics"]:
        if each["severity"] == "information":
            revealed.append(each["message"].rpartition(' is "')[2].removesuffix('"'))
        else:
            errors[Path(each["file"]).name].add(each["range"]["start"]["line"] + 1)
    return errors, revealed


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("checker", "find"), [("mypy", by_mypy), ("basedpyright", by_pyright)])
def test_type_checkers_refuse_the_wrong_lines_of_a_program_and_no_other(
    checker: str, find: Callable[[Path], Findings], tmp_path: Path
) -> None:
    """A good program passes in the strictest mode, and its objects have the types of their queues."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: it is in the extra `dev`")
    errors, revealed = find(tmp_path)
    marked = {name: lines_with(name, "# refused") for name in ("good.py", "bad.py")}
    assert marked["bad.py"]
    assert errors == marked
    expected = re.findall(r"reveal_type\(.*\)  # (.*)", (PROGRAMS / "good.py").read_text(encoding="utf-8"))
    assert expected
    assert [re.sub(r"\b(?:\w+\.)+(?=\w)", "", each) for each in revealed] == expected


def lines_with(name: str, mark: str) -> set[int]:
    """Return the numbers of the lines that end with a mark."""
    lines = (PROGRAMS / name).read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith(mark)}
