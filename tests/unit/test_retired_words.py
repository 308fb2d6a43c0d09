"""Identifiers that the glossary retired do not come back: docs/glossary.md, "Retired words"."""

import io
import re
import tokenize
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent

RETIRED = {
    "sides": "handle",
    "books": "progress store",
    "aside": "deferred",
    "backlog": "dispatcher",
    "doorbell": "notifier",
    "bell": "notifier",
    "arrivals": "data available",
    "turns": "keyed lock",
    "watcher": "poller",
    "watchers": "poller",
    "resting": "idle handles",
    "slowest": "lag",
    "decision": "commit record",
    "decisions": "commit records",
    "verdict": "outcome",
    "verdicts": "outcomes",
    "witness": "durability check",
    "witnesses": "durability checks",
}
"""Words of identifiers, and what takes their place."""

OTHER_MEANING = {
    "verdict": (
        "persistence/format/report.py",
        "persistence/recovery/",
        "persistence/verify.py",
        "service/catalog/rows.py",
        "arrow/draining/loss_notes.py",
        "cli/",
    ),
    "verdicts": ("persistence/verify.py",),
    "witness": ("persistence/recovery/", "persistence/groups/", "persistence/prepared_log/"),
}
"""Where a word has the meaning that the glossary gives it: a verdict on damage, a witness that bytes were synced."""

REQUESTS = ("queue/remote/", "queue/server/", "persistence/exchange/")
"""The rooms of the request protocol keep their words until it goes."""


def words_of(identifier: str) -> set[str]:
    """Return the words of an identifier, in any style."""
    return set(re.sub("([a-z])([A-Z])", r"\1_\2", identifier).lower().split("_"))


def retired_in(path: Path) -> list[str]:
    """Return the retired identifiers of a module, with their lines."""
    place = path.relative_to(SOURCE).as_posix()
    if place.startswith(REQUESTS):
        return []
    found = []
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NAME:
            for word in sorted(words_of(token.string) & RETIRED.keys()):
                if not place.startswith(OTHER_MEANING.get(word, ())):
                    found.append(f"{place}:{token.start[0]}: {token.string}; say {RETIRED[word]}")
    return found


def test_no_identifier_is_a_retired_word() -> None:
    """The glossary has one word for each meaning, and so have the names in the source."""
    assert [each for path in sorted(SOURCE.rglob("*.py")) for each in retired_in(path)] == []


@pytest.mark.parametrize("identifier", ["sides", "_sides_of", "OpenDecisions", "OPEN_DECISIONS_MAX", "_leave_witness"])
def test_a_retired_word_is_found_in_identifiers_of_every_style(identifier: str) -> None:
    """Private ones, constants and classes too."""
    assert words_of(identifier) & RETIRED.keys()


def test_a_word_that_only_begins_like_a_retired_one_is_allowed() -> None:
    """``decided`` and ``besides`` are plain English."""
    assert not words_of("decided_elsewhere_besides") & RETIRED.keys()
