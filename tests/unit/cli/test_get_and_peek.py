"""``holdfast get`` and ``holdfast peek``."""

import base64
import json
from pathlib import Path

import pytest

from holdfast import PersistentQueue, Put
from holdfast.clock import SystemClock
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.queue.engine.configuring import configure_closed
from support.builders.small_queues import SmallQueue, build, tiny_files_allowed
from support.processes.cli import done, run


def put(path: Path, *payloads: bytes | Put) -> None:
    """Put a batch."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put_many(payloads)


def depth(path: Path) -> int:
    """Return how many wait."""
    with PersistentQueue(path, mode="read_only") as queue:
        return queue.stats().depth


@pytest.mark.parametrize("payload", [b"text", b"", b"\x00\xff\n", b"a\r\nb\n"])
def test_one_payload_is_written_exactly(path: Path, payload: bytes) -> None:
    """No line end is added, none is changed."""
    put(path, payload)
    assert done("get", path).out == payload
    assert depth(path) == 0


def test_several_payloads_have_a_line_each(path: Path) -> None:
    """As many as there are, up to what was asked for; the rest stays."""
    put(path, *[b"%d" % number for number in range(250)])
    assert done("get", path, "-n", "3").out == b"0\n1\n2\n"
    assert done("get", path, "-n", "200").out.split() == [b"%d" % number for number in range(3, 203)]
    assert depth(path) == 47
    assert len(done("get", path, "-n", "1000", "--timeout", "0").out.split()) == 47


def test_an_empty_queue_ends_with_3(path: Path) -> None:
    """Nothing came in time, and nothing is wrong."""
    for more in ([], ["--json"], ["-n", "5"]):
        ran = run("get", path, "--timeout", "0", *more)
        assert (ran.code, ran.out, ran.err) == (3, b"", "")


@pytest.mark.parametrize("command", ["get", "peek"])
def test_with_json_each_message_is_a_line(path: Path, command: str) -> None:
    """A payload that is JSON stands there as it is, else as text, else in base64; never in more than one line."""
    put(
        path,
        Put(b'{\n "id": 12345678901234567890123,\n "price": 1.10}', headers={"tenant": "acme"}),
        b"plain \x1b[31m",
        b"\xff\x00",
        b"null",
        b"",
    )
    ran = done(command, path, "-n", "5", "--json")
    first, *rest = ran.documents
    assert b'"payload":{"id":12345678901234567890123,"price":1.10}' in ran.out
    assert (first["offset"], first["headers"]) == (0, {"tenant": "acme"})
    assert first["timestamp_ns"] > 10**18
    assert first["delivery_count"] == (1 if command == "get" else 0)
    told = [{name: value for name, value in each.items() if name.startswith("payload")} for each in rest]
    assert told == [
        {"payload_text": "plain \x1b[31m"},
        {"payload_base64": base64.b64encode(b"\xff\x00").decode()},
        {"payload": None},
        {"payload_text": ""},
    ]
    assert depth(path) == (0 if command == "get" else 5)


def test_a_group_has_its_own_progress(path: Path) -> None:
    """And one that is not there is an error."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.groups.create("audit")
        queue.put(b"one")
    assert done("get", path, "--group", "audit").out == b"one"
    assert depth(path) == 1
    ran = run("get", path, "--group", "nobody")
    assert ran.code == 1
    assert "nobody" in ran.err


def test_a_taken_read_side_is_named_with_its_owner(path: Path) -> None:
    """One line, and 75: it may be free later."""
    with PersistentQueue(path, mode="exclusive") as owner:
        owner.put(b"one")
        ran = run("get", path)
        assert (ran.code, ran.out) == (75, b"")
        assert ran.err.startswith("error: process ")
        assert "`holdfast peek`" in ran.err
        assert ran.err.count("\n") == 1
        told = json.loads(run("get", path, "--json").err)
        assert told["error"] == "queue_locked"
        assert owner.qsize() == 1


def test_taking_by_hand_goes_by_the_rules_of_the_group(path: Path) -> None:
    """Messages handed out often stay, and expired ones become dead letters, if the application has said so."""
    with PersistentQueue(path, mode="exclusive", max_deliveries=None, backoff=[], expired="dead") as queue:
        queue.put_many([b"often", Put(b"over", ttl=1e-9)])
        for _ in range(7):
            queue.receive().nack()
    assert done("get", path, "-n", "2", "--timeout", "0").out == b"often\n"
    with PersistentQueue(path, mode="read_only") as queue:
        assert [letter.reason for letter in queue.dead.list()] == ["expired"]


def test_peek_shows_a_table_and_takes_nothing(path: Path) -> None:
    """Nothing of a payload steers the terminal or is read as markup."""
    put(path, b"[red]one[/red]", b"\x1b[31mtwo", *[b"x"] * 20)
    shown = done("peek", path).text.splitlines()
    assert shown[0].split() == ["OFFSET", "PUT", "DELIVERED", "HEADERS", "PAYLOAD"]
    assert shown[1].endswith(" [red]one[/red]")
    assert shown[2].endswith(r" \x1b[31mtwo")
    assert len(shown) == 11
    assert depth(path) == 22
    assert len(done("peek", path, "-n", "100").text.splitlines()) == 23


def damaged(tmp_path: Path) -> SmallQueue:
    """Return a queue whose second message is damaged."""
    queue = build(tmp_path / "orders")
    with tiny_files_allowed():
        configure_closed(OsStorage(), SystemClock(), queue.root, {}, ["data_file_bytes"])
    first = queue.data_files()[0]
    queue.flip(first, queue.frames(first)[1].end - 1)
    return queue


@pytest.mark.parametrize("arguments", [("peek", "-n", "3"), ("get", "-n", "3", "--timeout", "0")])
def test_damage_on_the_way_ends_with_2_behind_what_could_be_read(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """It is passed by, and never silently."""
    queue = damaged(tmp_path)
    ran = run(arguments[0], queue.root, *arguments[1:], "--json")
    assert [document["offset"] for document in ran.documents] == [0, 2, 3]
    assert ran.code == 2
    told = json.loads(ran.err)
    assert told["error"] == "corruption"
    assert "offsets 1..1 lost" in told["message"]
