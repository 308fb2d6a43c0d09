"""``holdfast put``."""

import json
from pathlib import Path

import pytest

from holdfast import Message, PersistentQueue
from support.processes.cli import done, run


def messages(path: Path) -> list[Message]:
    """Return all that waits."""
    with PersistentQueue(path, mode="read_only") as queue:
        return queue.peek(10_000)


def payloads(path: Path) -> list[bytes]:
    """Return the payloads of all that waits."""
    return [message.payload for message in messages(path)]


def test_one_message_from_an_argument_a_file_and_standard_input(path: Path, tmp_path: Path) -> None:
    """Bytes are put as they are."""
    (tmp_path / "file").write_bytes(b"\x00\xff\r\n")
    assert done("put", path, "größe").text == "put 1 message, offset 0\n"
    assert done("put", path, "--file", tmp_path / "file").text == "put 1 message, offset 1\n"
    assert done("put", path, "--file", "-", "--json", stdin=b"a\nb").document == {
        "count": 1,
        "first_offset": 2,
        "last_offset": 2,
    }
    assert done("put", path, "").text == "put 1 message, offset 3\n"
    assert payloads(path) == ["größe".encode(), b"\x00\xff\r\n", b"a\nb", b""]


def test_a_queue_is_made_only_when_that_is_asked_for(tmp_path: Path) -> None:
    """A wrong path does not become a queue that nobody reads."""
    path = tmp_path / "orders"
    assert run("put", path, "one").code == 1
    assert not path.exists()
    done("put", path, "one", "--create")
    done("put", path, "two", "--create")
    assert payloads(path) == [b"one", b"two"]


def test_what_a_put_may_ask_for_reaches_the_queue(path: Path) -> None:
    """Headers, content type, delay, priority, expiry, order key."""
    done("put", path, "plain", "--header", "tenant=acme", "--header", "empty=", "--content-type", "text/plain")
    done("put", path, "urgent", "--priority", "9")
    done("put", path, "later", "--delay", "1000")
    done("put", path, "keyed", "--order-key", "k", "--ttl", "1000")
    with PersistentQueue(path, mode="exclusive") as queue:
        ready = queue.browse("ready")
        assert [each.payload for each in ready] == [b"plain", b"urgent", b"keyed"]
        assert ready[0].headers == {"tenant": "acme", "empty": "", "content-type": "text/plain"}
        assert (ready[1].priority, ready[2].order_key) == (9, "k")
        assert [each.payload for each in queue.browse("delayed")] == [b"later"]


def test_a_deduplication_id_counts_once(path: Path) -> None:
    """The second put answers with the offset of the first."""
    with PersistentQueue(path, mode="shared"):
        first = done("put", path, "charge", "--dedup-id", "order-1").text
        done("put", path, "other")
        assert done("put", path, "charge", "--dedup-id", "order-1").text == first
    assert payloads(path) == [b"charge", b"other"]


def test_in_a_services_directory_its_configuration_counts(path: Path) -> None:
    """Where nobody owns the queue the command does what its owner would; a mistake in the file is an error."""
    config = path.parent / "holdfast.toml"
    config.write_text("[defaults]\nrecord_bytes_max = 5\n")
    assert "record_bytes_max=5" in run("put", path, "123456").err
    config.write_text("[defaults]\nrecord_bytes_max = true\n")
    assert "holdfast.toml, line 2" in run("put", path, "1").err
    assert payloads(path) == []


def test_json_lines_are_put_with_their_content_type(path: Path) -> None:
    """Blank lines are passed over; options hold for each."""
    lines = b'{"id": 1}\n\n[2]\r\n"three"'
    ran = done("put", path, "--lines", "--header", "tenant=acme", stdin=lines)
    assert ran.text == "put 3 messages, offsets 0 to 2\n"
    assert payloads(path) == [b'{"id": 1}', b"[2]", b'"three"']
    assert {tuple(message.headers.items()) for message in messages(path)} == {
        (("tenant", "acme"), ("content-type", "application/json"))
    }
    done("put", path, "--lines", "--content-type", "application/cloudevents+json", stdin=b"{}")
    assert messages(path)[-1].headers == {"content-type": "application/cloudevents+json"}


def test_a_bad_line_is_named_and_nothing_behind_it_is_put(path: Path) -> None:
    """Those before it are, and how many is said in both forms."""
    ran = run("put", path, "--lines", stdin=b"1\n2\nthree\n4\n")
    assert (ran.code, ran.text) == (1, "put 2 messages, offsets 0 to 1\n")
    assert ran.err.startswith("error: line 3 is not JSON (")
    assert ran.err.endswith("); put before it: 2, after it: none\n")
    told = run("put", path, "--lines", "--json", stdin=b"5\n{\n6\n")
    assert (told.code, told.document) == (1, {"count": 1, "first_offset": 2, "last_offset": 2})
    assert json.loads(told.err)["error"] == "encode"
    none = run("put", path, "--lines", "--json", stdin=b"{")
    assert (none.code, none.document) == (1, {"count": 0, "first_offset": None, "last_offset": None})
    assert payloads(path) == [b"1", b"2", b"5"]


def test_more_lines_than_one_batch_are_all_put_in_order(path: Path) -> None:
    """Each batch is atomic, the whole is not."""
    lines = [b"%d" % number for number in range(2345)]
    ran = done("put", path, "--lines", "--json", stdin=b"\n".join(lines))
    assert ran.document == {"count": 2345, "first_offset": 0, "last_offset": 2344}
    assert payloads(path) == lines


def test_a_full_queue_ends_with_75(path: Path) -> None:
    """The owner has no room, and the put is taken back."""
    with PersistentQueue(path, mode="shared", maxsize=1) as owner:
        owner.put(b"one")
        ran = run("put", path, "two", "--timeout", "0")
        assert (ran.code, ran.out) == (75, b"")
        assert "got no space" in ran.err
        assert owner.qsize() == 1


def test_what_the_library_refuses_is_an_error_in_one_line(path: Path) -> None:
    """As it says it itself."""
    ran = run("put", path, "one", "--priority", "1", "--order-key", "k")
    assert (ran.code, ran.out) == (1, b"")
    assert ran.err.startswith("error: a message has a priority or an order_key")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("name", ["queue.json", "catalog.db"])
def test_a_path_that_cannot_be_a_queue_is_refused(path: Path, name: str) -> None:
    """A file is no directory."""
    (path / name).touch()
    ran = run("put", path / name, "one", "--create")
    assert ran.code == 1
    assert ran.err.startswith("error: ")
