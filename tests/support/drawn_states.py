"""State diagrams that are drawn with characters, as arrows. docs/transactions.md has one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

Arrow = tuple[str, str, str]
"""From where, what happens, to where."""


@dataclass(frozen=True)
class Box:
    """A state in a frame: the line its name stands in, and the columns of its sides."""

    name: str
    row: int
    left: int
    right: int


def drawn_arrows(page: Path) -> list[Arrow]:
    """Return the arrows of the diagram of a page; what begins comes from nowhere."""
    drawings = re.findall(r"^```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    drawing = next((each for each in drawings if "begin -" in each), None)
    assert drawing is not None, f"{page} has no diagram of states"
    width = max(map(len, drawing.splitlines()))
    lines = [line.ljust(width) for line in drawing.splitlines()]
    boxes = _boxes(lines)
    arrows = [each for find in (_begin, _between, _loops, _ends) for each in find(lines, boxes)]
    return arrows + _told(drawing)


def _boxes(lines: list[str]) -> list[Box]:
    return [
        Box(found[1], row, found.start(), found.end() - 1)
        for row, line in enumerate(lines)
        for found in re.finditer(r"\| +(\w+) +\|", line)
        if re.fullmatch(r"\+-+\+", lines[row - 1][found.start() : found.end()])
    ]


def _begin(lines: list[str], boxes: list[Box]) -> list[Arrow]:
    """Return the arrow from nowhere, which ends at the corner of a box."""
    corners = {(box.row - 1, box.left): box.name for box in boxes}
    return [
        ("", found[1], corners[row, found.end() - 1])
        for row, line in enumerate(lines)
        for found in re.finditer(r"(begin) -+> \+", line)
    ]


def _between(lines: list[str], boxes: list[Box]) -> list[Arrow]:
    """Return the arrows from a box to its neighbour; what happens stands above."""
    return [
        (one.name, lines[one.row - 1][one.right + 1 : other.left].strip(), other.name)
        for one in boxes
        for other in boxes
        if re.fullmatch(r" -+> ", lines[one.row][one.right + 1 : other.left])
    ]


def _loops(lines: list[str], boxes: list[Box]) -> list[Arrow]:
    """Return the arrows that leave a box at its top and come back; what happens stands over the nearest one."""
    looped = [box for box in boxes if re.search(r"\| +v", lines[box.row - 2][box.left : box.right])]
    arrows = []
    for line in lines[: looped[0].row - 3]:
        for text in re.finditer(r"\S+(?: \S+)*", line):
            middle = (text.start() + text.end()) / 2
            box = min(looped, key=lambda each: abs(each.left + each.right - 2 * middle))
            arrows += [(box.name, verb, box.name) for verb in _several(text[0])]
    assert {box.name for box in looped} == {arrow[0] for arrow in arrows}, "a loop without a word"
    return arrows


def _ends(lines: list[str], boxes: list[Box]) -> list[Arrow]:
    """Return the arrows from two boxes to a state between them; what happens stands above each."""
    arrows = []
    for row, line in enumerate(lines):
        for found in re.finditer(r"(\+)-+> \[ (\w+) \] <-+(\+)", line):
            left, right = (text for text in re.split(r" {2,}|\|", lines[row - 1]) if text.strip())
            for column, text in ((found.start(1), left), (found.start(3), right)):
                source = _box_above(lines, boxes, row - 1, column)
                arrows += [(source, verb, found[2]) for verb in _several(text)]
    return arrows


def _box_above(lines: list[str], boxes: list[Box], row: int, column: int) -> str:
    """Return the box from which a line comes down to there."""
    while lines[row][column] == "|":
        row -= 1
    (box,) = (each for each in boxes if each.row + 1 == row and each.left < column < each.right)
    return box.name


def _told(drawing: str) -> list[Arrow]:
    """Return what the lines below the drawing say: ``aborted, on abort or close, stays aborted``."""
    told = re.findall(r"(\w+), on ([\w ]+), stays (\w+)", drawing)
    return [(state, verb, following) for state, verbs, following in told for verb in verbs.split(" or ")]


def _several(text: str) -> list[str]:
    return [verb.strip() for verb in text.split(",") if verb.strip()]
