"""Pages, docstrings and comments stay in plain words: no retired phrases, and no sentence that is too long to follow.

A page is added to :data:`REWRITTEN` once each of its sentences was read. Code, tables of figures and headings are left
out; a cell of a table, an item of a list and a paragraph each end a sentence.
"""

import ast
import importlib
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCES = sorted((ROOT / "src").rglob("*.py"))

EXTRAS = ("arrow", "spark")
"""Pages of the reference whose modules need the extra of that name."""

WORDS_MAX = 40
REWRITTEN = [
    "arrow",
    "workers",
    "reliability",
    "benchmarks",
    "spark",
    "spark-drain",
    "spark-pipeline",
    "spark-kafka",
    "spark-sink",
    "spark-stream",
    "spark-cluster",
    "filters",
    "format",
    "protocol",
    "configuration",
    "catalogue",
    "scaling",
    "serializers",
    "asyncio",
    "cli",
    "work-queue",
    "replay",
    "first-steps",
    "transactions",
    "durability",
    "glossary",
    "index",
    "public-api",
    "retention",
    "reading-the-source",
    "theory-of-operation",
    "reference/arrow",
    "reference/asyncio",
    "reference/errors",
    "reference/messages",
    "reference/queue",
    "reference/reports",
    "reference/serializers",
    "reference/service",
    "reference/spark",
    "reference/transactions",
]

RETIRED = re.compile(r"(?i)\b(whoever|nobody|stands|comes\s+by|goes\s+on|lets\s+go|of\s+which|passes\s+by)\b")
RETIRED_IN_SOURCES = re.compile(
    rf"{RETIRED.pattern}|\b(lets?\s+go|letting\s+go|pass(ed|ing)?\s+(by|over)|the\s+books|doorbells?|verdicts?|aside)\b"
)
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2`*[ ]*$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"::\n\n(?: +.*\n?|\n)+")
PARAMETER = re.compile(r"^(?:-+|[\w, ]+ : .*)$", re.MULTILINE)
MEASURED = re.compile(r"<!-- run: begin -->.*?<!-- run: end -->", re.DOTALL)
END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*`]*\w)|\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |\||#|:))|\|")


def prose(text: str) -> str:
    """Return a page without what is no prose: blocks of code, what programmes print, quoted code, targets of links."""
    text = MEASURED.sub("\n\n", FENCE.sub("\n\n", text))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`\n]*(?:\n[^`\n]+)?`", "`code`", text)


def sentences(text: str) -> list[str]:
    """Return the sentences of a page."""
    return [" ".join(each.split()) for each in END.split(prose(text)) if each.strip()]


def long_sentences(text: str) -> list[str]:
    """Return the sentences that have too many words."""
    return [each for each in sentences(text) if len(each.split()) > WORDS_MAX]


@pytest.mark.parametrize("name", [*REWRITTEN, "../README"])
def test_a_page_has_no_retired_phrase(name: str) -> None:
    """Each hides who does what; the glossary has a noun for it."""
    text = prose((DOCS / f"{name}.md").read_text(encoding="utf-8"))
    assert [match[0] for match in RETIRED.finditer(text)] == []


@pytest.mark.parametrize("name", [*REWRITTEN, "../README"])
def test_a_page_has_no_sentence_that_is_too_long(name: str) -> None:
    """What takes a second reading is two sentences."""
    assert long_sentences((DOCS / f"{name}.md").read_text(encoding="utf-8")) == []


def described(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the docstrings that a page of the reference shows, each with the name of its object or member."""
    module = "holdfast"
    for kind, target in re.findall(
        r"^\.\. (currentmodule|autoclass|autofunction|autoexception):: ([\w.]+)",
        page.read_text(encoding="utf-8"),
        re.MULTILINE,
    ):
        if kind == "currentmodule":
            module = target
            continue
        path, _, name = (target if "." in target else f"{module}.{target}").rpartition(".")
        found = getattr(importlib.import_module(path), name)
        members = (
            {key: value for key, value in vars(found).items() if not key.startswith("_")}
            if inspect.isclass(found)
            else {}
        )
        for key, value in {name: found, **members}.items():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if inspect.isclass(function) or inspect.isroutine(function):
                yield key, inspect.getdoc(function) or ""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, id=page.stem, marks=[pytest.mark.extra(page.stem)] if page.stem in ("arrow", "spark") else []
        )
        for page in sorted((DOCS / "reference").glob("*.md"))
    ],
)
def test_public_docstrings_are_in_plain_words(page: Path) -> None:
    """They are the reference, so the same rules hold."""
    described_here = list(described(page))
    assert described_here
    assert [(name, match[0]) for name, text in described_here for match in RETIRED.finditer(prose(text))] == []
    assert [(name, each) for name, text in described_here for each in long_sentences(text)] == []


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a source, those of neighbouring lines as one, each with its last line."""
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield last, "\n".join(lines)
                lines = []
            lines.append(token.string.lstrip("#: ").replace("``", "`"))
            last = token.start[0]
    yield last, "\n".join(lines)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a source, without examples and names of parameters, each with its first line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = EXAMPLE.sub("\n\n", (ast.get_docstring(node) or "").replace("``", "`"))
            yield node.body[0].lineno, "\n".join(paragraphs(PARAMETER.sub("", text)))


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a docstring; another margin and a row of a table begin a paragraph."""
    margin = 0
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent != margin or "  " in line.strip():
            yield ""
        margin = indent
        yield line


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_and_comments_are_in_plain_words(path: Path) -> None:
    """A reader of the source gets the words of the glossary too; texts that no page shows are no exception."""
    source = path.read_text(encoding="utf-8")
    found = [*docstrings(source), *comments(source)]
    assert [(line, match[0]) for line, text in found for match in RETIRED_IN_SOURCES.finditer(prose(text))] == []
    assert [(line, each) for line, text in found for each in long_sentences(text)] == []


def test_a_parameter_and_a_comment_of_two_lines_are_read() -> None:
    """The first has a margin of its own, the second none."""
    words = "word " * WORDS_MAX
    source = f'def f():\n    """Do.\n\n    Parameters\n    ----------\n    a : int\n        {words}more.\n    """\n'
    assert [each for _, text in docstrings(source) for each in long_sentences(text)] == [f"{words}more."]
    assert [text for _, text in comments("x = 1  # what goes\n# on here\n\n# next") if text] == [
        "what goes\non here",
        "next",
    ]


def test_a_retired_phrase_is_found_over_the_end_of_a_line() -> None:
    """Lines are broken anywhere."""
    assert RETIRED.search(prose("What goes\non here."))


def test_code_is_no_prose() -> None:
    """A block and a quoted name may say what they have to."""
    assert RETIRED.search(prose("```python\nnobody = 1\n```\nand `nobody`.")) is None


def test_a_long_sentence_is_found_and_a_long_list_is_not() -> None:
    """Items of a list end by themselves, with a full stop or without."""
    words = "word " * (WORDS_MAX - 1)
    assert long_sentences(f"{words} one two three.")
    assert not long_sentences(f"- {words}\n- {words}\n\n| {words} | {words} |\n")
