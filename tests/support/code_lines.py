"""Counts lines of code: without docstrings, comments and blanks. `PYTHONPATH=tests python -m support.code_lines`."""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "holdfast"
PROSE_TOKENS = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str) -> int:
    """Count the lines of a source that hold code; a statement of three lines is three."""
    docstrings = {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {line for each in tokens if each.type not in PROSE_TOKENS for line in range(each.start[0], each.end[0] + 1)}
    return len(code - docstrings)


if __name__ == "__main__":
    lines: Counter[str] = Counter()  # by package, and by room in it
    for path in PACKAGE.rglob("*.py"):
        count = code_lines(path.read_text(encoding="utf-8"))
        parts = path.relative_to(PACKAGE).parts[:-1]
        lines.update(dict.fromkeys({".", "/".join(parts[:1]) or ".", "/".join(parts[:2]) or "."}, count))
    for place in sorted(lines):
        print(f"{lines[place]:7,} {place}")
