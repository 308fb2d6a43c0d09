"""Every Python block of the README and of the documentation runs.

The blocks of one document share a namespace and run in order, in an empty working directory. A block that cannot run
by itself says so in its first line: ```` ```python no-run ````. One that has to be a file of its own, as processes
import it, says ```` ```python program ````, and is run as one.
"""

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import CodeType, ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCED = re.compile(
    r"^(?P<indent>[ ]*)(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^[ ]*(?P=fence)`*[ ]*$",
    re.MULTILINE | re.DOTALL,
)


OTHERWISE = {"no-run", "program"}
"""Words of Python blocks that do not run with the others of their document."""

PROGRAM_SECONDS_MAX = 60


def runnable_blocks(text: str, filename: str) -> list[CodeType]:
    """Compile the Python blocks of a document; line numbers are those of the document."""
    blocks = []
    for found in FENCED.finditer(text):
        language, *words = found["info"].split() or [""]
        if language == "python" and not OTHERWISE & set(words):
            lines_before = text.count("\n", 0, found.start("body"))
            source = "\n" * lines_before + textwrap.dedent(found["body"])
            blocks.append(compile(source, filename, "exec", dont_inherit=True))
    return blocks


def has_python(path: Path) -> bool:
    """Tell whether a document has a Python block, so that one without is no test case."""
    if not path.exists():
        return False
    infos = [found["info"].split() for found in FENCED.finditer(path.read_text(encoding="utf-8"))]
    return any(info[:1] == ["python"] and not OTHERWISE & set(info) for info in infos)


def programs(text: str) -> list[str]:
    """Return the Python blocks of a document that are programs."""
    return [
        textwrap.dedent(found["body"])
        for found in FENCED.finditer(text)
        if {"python", "program"} <= set(found["info"].split())
    ]


PROGRAMS = [
    pytest.param(program, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    for number, program in enumerate(programs(path.read_text(encoding="utf-8")))
]


EXTRAS = {"arrow": "arrow", "catalogue": "catalog", "filters": "filter", "serializers": "pydantic"}
"""What blocks of a document need."""


def needs(document: Path) -> list[pytest.MarkDecorator]:
    """Return the mark of a document whose blocks need an extra."""
    return [pytest.mark.extra(EXTRAS[document.stem])] if document.stem in EXTRAS else []


@pytest.mark.parametrize(
    "document",
    [pytest.param(path, id=str(path.relative_to(ROOT)), marks=needs(path)) for path in DOCUMENTS if has_python(path)],
)
def test_every_python_block_of_the_document_runs(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader copies from top to bottom works."""
    monkeypatch.chdir(tmp_path)
    main = ModuleType("__main__")  # in the place of the real one, so that what the blocks define can be pickled
    monkeypatch.setitem(sys.modules, "__main__", main)
    for block in runnable_blocks(document.read_text(encoding="utf-8"), str(document)):
        exec(block, main.__dict__)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_of_a_document_runs(program: str, tmp_path: Path) -> None:
    """As a file that is the main module, in an empty directory."""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, file.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_only_python_blocks_that_may_run_are_taken() -> None:
    """Other languages, plain blocks, programs and blocks marked ``no-run`` are left alone."""
    text = "```python\na = 1\n```\n\n```\nplain\n```\n```python no-run\nb = 1\n```\n```sh\nls\n```\n"
    (only,) = runnable_blocks(text + "```python program\nc = 1\n```\n", "some.md")
    assert only.co_names == ("a",)


def test_only_blocks_that_are_programs_are_run_as_such() -> None:
    """Each by itself."""
    text = "```python\na = 1\n```\n```python program\nc = 1\n```\n```sh program\nls\n```\n"
    assert programs(text) == ["c = 1\n"]


def test_a_block_inside_another_fence_is_text() -> None:
    """A document may show what a block looks like without having it run."""
    assert runnable_blocks("````markdown\n```python\nb = 1\n```\n````\n", "some.md") == []


def test_a_block_in_a_list_is_dedented() -> None:
    """Steps of a list hold blocks too."""
    (block,) = runnable_blocks("1. First\n\n   ```python\n   a = 1\n   ```\n", "some.md")
    namespace: dict[str, object] = {}
    exec(block, namespace)
    assert namespace["a"] == 1


def test_a_failing_block_names_the_line_of_the_document() -> None:
    """Whoever breaks an example is shown where it stands."""
    (block,) = runnable_blocks("# Title\n\n```python\n1 / 0\n```\n", "some.md")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(block, {})
    assert caught.traceback[-1].lineno + 1 == 4
