"""Tables and diagrams of states in the documentation, as rows and arrows."""

import re
from pathlib import Path

HEADING = ["State", "Verb or event", "Next state"]


def cells(line: str) -> list[str]:
    """Return what stands in a line of a table, without quotes."""
    return [cell.strip().replace("`", "").replace("*", "") for cell in line.strip().strip("|").split("|")]


def state_rows(page: Path) -> list[list[str]]:
    """Return the rows of the table with :data:`HEADING`: a state, what happens, the next state."""
    lines = iter(page.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith("|") and cells(line) == HEADING:
            break
    else:
        raise AssertionError(f"{page} has no table with the heading {HEADING}")
    assert re.fullmatch(r"[|:\- ]+", next(lines))
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return rows


def state_arrows(page: Path) -> list[tuple[str, str, str]]:
    """Return the arrows of the state diagram of a page: from where, what happens, to where."""
    diagram = re.search(r"```mermaid\nstateDiagram-v2\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert diagram is not None, f"{page} has no state diagram"
    arrows = []
    for line in diagram[1].splitlines():
        arrow = re.fullmatch(r" *(\S+) --> (\S+?)(?:: (.+))?", line)
        assert arrow is not None, line
        arrows.append((arrow[1], arrow[3] or "", arrow[2]))
    return arrows
