"""``holdfast dead``."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from support.processes.cli import done, run, run_alone


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with four dead letters, and one message left."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive", max_deliveries=1) as queue:
        queue.put_many([b'{"id": 0}', b"one", b"\xff", b"three", b"left"])
        queue.receive().reject("no \x1b[31maddress")
        for _ in range(2):
            queue.receive().nack()
        try:
            with queue.receive():
                raise ConnectionError("mailbox unavailable")
        except ConnectionError:
            pass
    return tmp_path / "orders"


@pytest.fixture(params=[True, False], ids=["owned", "without owner"])
def owner(path: Path, request: pytest.FixtureRequest) -> AbstractContextManager[object]:
    """An application that shares the queue, or none."""
    return PersistentQueue(path, mode="shared") if request.param else nullcontext()


def dead_offsets(path: Path) -> list[int]:
    """Return which are dead."""
    return [document["offset"] for document in done("dead", "list", path, "--json").documents]


def test_list_shows_how_each_ended(path: Path) -> None:
    """All of them, those of one reason, or the first few."""
    letters = done("dead", "list", path, "--json").documents
    assert [letter["offset"] for letter in letters] == [0, 1, 2, 3]
    assert [letter["reason"] for letter in letters] == ["rejected", "max_deliveries", "max_deliveries", "exception"]
    assert letters[0]["payload"] == {"id": 0}
    assert letters[0]["detail"] == "no \x1b[31maddress"
    assert letters[2]["payload_base64"] == "/w=="
    assert letters[3]["exception"] == "builtins.ConnectionError"
    assert "raise ConnectionError" in letters[3]["traceback"]
    assert letters[3]["last_failure_ns"] >= letters[3]["first_failure_ns"] > 0
    some = done("dead", "list", path, "--reason", "max_deliveries", "-n", "1", "--json").documents
    assert [letter["offset"] for letter in some] == [1]
    shown = done("dead", "list", path).text.splitlines()
    assert shown[0].split()[:3] == ["OFFSET", "REASON", "DELIVERED"]
    assert r"no \x1b[31maddress" in shown[1]
    assert len(shown) == 5


def test_retry_by_offset_by_reason_and_all(path: Path, owner: AbstractContextManager[object]) -> None:
    """Whoever owns the queue does it."""
    with owner:
        assert done("dead", "retry", path, "1", "3", "1", "--json").document == {"count": 2}
        assert dead_offsets(path) == [0, 2]
        assert done("dead", "retry", path, "--reason", "max_deliveries").text == "retried 1 dead letter\n"
        assert done("dead", "retry", path, "--all").text == "retried 1 dead letter\n"
        assert done("dead", "retry", path, "--all").text == "retried 0 dead letters\n"
        assert done("stats", path, "--json").document["depth"] == 5


def test_discard_by_offset_by_reason_and_all(path: Path, owner: AbstractContextManager[object]) -> None:
    """They are gone for good, and do not come back as messages."""
    with owner:
        assert done("dead", "discard", path, "0", "--yes", "--json").document == {"count": 1}
        assert done("dead", "discard", path, "--reason", "exception", "--yes").text == "discarded 1 dead letter\n"
        assert dead_offsets(path) == [1, 2]
        assert done("dead", "discard", path, "--all", "--yes").text == "discarded 2 dead letters\n"
        assert done("stats", path, "--json").document["depth"] == 1


@pytest.mark.parametrize(("answer", "is_done"), [(b"y\n", True), (b"Yes\n", True), (b"n\n", False), (b"", False)])
def test_discard_asks(path: Path, answer: bytes, is_done: bool) -> None:
    """No answer is a no; the question is no part of the output."""
    ran = run("dead", "discard", path, "--all", stdin=answer)
    assert ran.err.startswith(f"discard 4 dead letters of {path} for good? [y/N] ")
    assert (ran.code, ran.out) == ((0, b"discarded 4 dead letters\n") if is_done else (1, b""))
    assert len(dead_offsets(path)) == (0 if is_done else 4)


@pytest.mark.parametrize("what", [("dead", "discard", "--all"), ("groups", "delete", "default")])
def test_a_program_is_not_asked(path: Path, what: tuple[str, ...]) -> None:
    """What reads standard error as JSON would have to find a question in it."""
    ran = run_alone(*what[:2], path, *what[2:], "--json", stdin=b"y\n")
    assert (ran.code, ran.out) == (64, b"")
    assert json.loads(ran.err) == {"error": "usage", "message": "--json asks no question: give --yes too"}
    assert len(dead_offsets(path)) == 4


@pytest.mark.parametrize("which", [(), ("-n", "2")])
def test_list_names_a_letter_that_cannot_be_read(path: Path, which: tuple[str, ...]) -> None:
    """The others are shown; the exit code is that of damage."""
    data = next((path / "data").iterdir())
    stored = data.read_bytes()
    data.write_bytes(stored.replace(b"one", b"oNe", 1))
    ran = run("dead", "list", path, *which, "--json")
    assert ran.code == 2
    assert [each["offset"] for each in ran.documents] == ([0, 2, 3] if not which else [0, 2])
    assert "1 dead letter of" in ran.err
    assert "the first one at offset 1; `holdfast verify`" in ran.err
    assert run("dead", "discard", path, "1", "--yes").code == 0
    assert run("dead", "list", path, *which).code == 0


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_which_are_meant_has_to_be_said_in_one_way(path: Path, verb: str) -> None:
    """Not in none, and not in two."""
    for which in ([], ["1", "--all"], ["--all", "--reason", "exception"]):
        assert run("dead", verb, path, *which).code == 64
    assert len(dead_offsets(path)) == 4


@pytest.mark.parametrize("verb", [["retry"], ["discard", "--yes"]])
def test_a_named_offset_that_is_not_dead_is_an_error(path: Path, verb: list[str]) -> None:
    """The others are decided all the same, and how many is said."""
    ran = run("dead", *verb, path, "2", "4", "77", "--json")
    assert (ran.code, ran.document) == (1, {"count": 1})
    assert json.loads(ran.err) == {"error": "not_found", "message": "2 of the 3 that were named are no dead letters"}
    assert dead_offsets(path) == [0, 1, 3]
