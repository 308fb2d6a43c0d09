"""Every Python block of the README and of the documentation runs.

The blocks of one document share a namespace and run in order, in an empty working directory. A block that cannot run
by itself says so in its first line: ```` ```python no-run ````.
"""

import re
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


def runnable_blocks(text: str, filename: str) -> list[CodeType]:
    """Compile the Python blocks of a document; line numbers are those of the document."""
    blocks = []
    for found in FENCED.finditer(text):
        language, *words = found["info"].split() or [""]
        if language == "python" and "no-run" not in words:
            lines_before = text.count("\n", 0, found.start("body"))
            source = "\n" * lines_before + textwrap.dedent(found["body"])
            blocks.append(compile(source, filename, "exec", dont_inherit=True))
    return blocks


def has_python(path: Path) -> bool:
    """Tell whether a document has a Python block, so that one without is no test case."""
    if not path.exists():
        return False
    infos = [found["info"].split() for found in FENCED.finditer(path.read_text(encoding="utf-8"))]
    return any(info[:1] == ["python"] and "no-run" not in info for info in infos)


@pytest.mark.parametrize(
    "document", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in DOCUMENTS if has_python(path)]
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


def test_only_python_blocks_that_may_run_are_taken() -> None:
    """Other languages, plain blocks and blocks marked ``no-run`` are left alone."""
    text = "```python\na = 1\n```\n\n```\nplain\n```\n```python no-run\nb = 1\n```\n```sh\nls\n```\n"
    (only,) = runnable_blocks(text, "some.md")
    assert only.co_names == ("a",)


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
