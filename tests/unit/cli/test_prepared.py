"""``holdfast prepared``, ``commit`` and ``abort``."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from holdfast import PersistentQueue
from support.processes.cli import done, run, run_alone
from support.workloads.half_commits import voted


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue with two transactions in doubt; one of them holds a message."""
    with PersistentQueue(tmp_path / "orders", mode="exclusive") as queue:
        queue.put(b"zero")
        first = queue.begin()
        first.ack(first.receive())
        first.put_many([b"one", b"two"])
        first.prepare("first")
        second = queue.begin()
        second.put(b"three")
        second.prepare("second")
    return tmp_path / "orders"


@pytest.fixture(params=[True, False], ids=["owned", "without owner"])
def owner(path: Path, request: pytest.FixtureRequest) -> AbstractContextManager[object]:
    """An application that shares the queue, or none."""
    return PersistentQueue(path, mode="shared") if request.param else nullcontext()


def test_prepared_lists_what_is_in_doubt(path: Path) -> None:
    """Oldest first, with what each puts and finishes."""
    first, second = done("prepared", path, "--json").document
    assert (first["id"], first["put_count"], first["ack_count"], first["coordinator"]) == ("first", 2, 1, None)
    assert (second["id"], second["put_count"], second["ack_count"], second["damage"]) == ("second", 1, 0, [])
    assert first["size_bytes"] > second["size_bytes"] > 0
    assert first["age_seconds"] >= second["age_seconds"]
    shown = done("prepared", path).text.splitlines()
    assert [line.split()[0] for line in shown] == ["ID", "first", "second"]


def test_prepared_says_which_joint_commit_decides(path: Path) -> None:
    """That of a part; and its own commit is refused without --force."""
    with PersistentQueue(path, mode="exclusive") as queue:
        part = queue.begin()
        part.put(b"four")
        part.prepare("part", part_of=("orders-stream", 7))
    first, _, part_document = done("prepared", path, "--json").document
    assert first["part_of"] is None
    assert part_document["part_of"] == {"application": "orders-stream", "version": 7}
    rows = done("prepared", path).text.splitlines()
    assert "orders-stream, version 7" in rows[3]
    assert "version" not in rows[1] + rows[2]
    ran = run("commit", path, "part")
    assert (ran.code, "joint_commits decides it" in ran.err) == (1, True)
    assert done("commit", path, "part", "--force", "--json").document["count"] == 1


def test_commit_and_abort_decide_for_good(path: Path, owner: AbstractContextManager[object]) -> None:
    """Through whoever owns the queue; again is the same, and the other way round is an error."""
    with owner:
        committed = {"id": "first", "count": 2, "first_offset": 1, "last_offset": 2}
        assert done("commit", path, "first", "--json").document == committed
        assert done("commit", path, "first").text == "committed first: put 2 messages, offsets 1 to 2\n"
        assert done("abort", path, "second").text == "aborted second\n"
        assert done("abort", path, "second", "--json").document == {"id": "second"}
        ran = run("abort", path, "first", "--json")
        assert (ran.code, json.loads(ran.err)["error"]) == (1, "transaction_state")
        ran = run("commit", path, "third", "--json")
        assert (ran.code, json.loads(ran.err)["error"]) == (1, "transaction_not_found")
        assert done("prepared", path, "--json").document == []
        assert [document["payload_text"] for document in done("peek", path, "--json").documents] == ["one", "two"]


def test_who_gives_a_batch_of_a_drain_back_is_told_that_its_id_comes_again(path: Path) -> None:
    """With other rows: a sink that goes by the id would skip some of them, or have some twice."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.put(b"zero")
        reserved = queue.reservations.take(prefix="drain")
    assert reserved is not None
    ran = run("abort", path, reserved.id, "--json")
    assert (ran.code, ran.document) == (0, {"id": reserved.id})
    assert "remove from the sink what it has of the id" in ran.err
    assert run("abort", path, "second").err == ""


def test_a_damaged_one_is_shown_and_ends_with_2(path: Path) -> None:
    """It cannot be committed, which is damage too; it can be aborted."""
    (batch,) = (path / "prepared").glob("*.log")
    content = bytearray(batch.read_bytes())
    at = content.index(b"two")
    content[at] ^= 1
    batch.write_bytes(content)
    ran = run("prepared", path, "--json")
    first, second = ran.document
    assert (ran.code, second["damage"]) == (2, [])
    assert first["damage"][0]["path"] == str(batch)
    assert run("prepared", path).code == 2
    ran = run("commit", path, "first", "--json")
    assert (ran.code, json.loads(ran.err)["error"]) == (2, "corruption")
    done("abort", path, "first")
    assert [each["id"] for each in done("prepared", path, "--json").document] == ["second"]


def test_force_decides_what_another_queue_should(tmp_path: Path) -> None:
    """Without it the error says which queue decides."""
    for path, content in sorted(voted().tree().items()):
        real = tmp_path / path.relative_to("/")
        if content is None:
            real.mkdir(exist_ok=True)
        else:
            real.write_bytes(content)
    (tmp_path / "hub").rename(tmp_path / "elsewhere")
    aside = tmp_path / "aside"
    (found,) = done("prepared", aside, "--json").document
    assert found["coordinator"] == str(tmp_path / "hub")
    ran = run("commit", aside, found["id"])
    assert ran.code == 1
    assert f"is decided by the log of {tmp_path / 'hub'}" in ran.err
    assert done("commit", aside, found["id"], "--force", "--json").document["count"] == 1
    assert done("prepared", aside, "--json").document == []


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_the_owner_decides_for_all_its_groups(path: Path, verb: str) -> None:
    """What a group holds comes again or is finished, and the messages of the transaction come or do not."""
    with PersistentQueue(path, mode="shared") as application:
        done(verb, path, "first")
        assert [each.id for each in application.prepared()] == ["second"]
        shown = [b"one", b"two"] if verb == "commit" else [b"zero"]
        assert [application.get(timeout=5) for _ in shown] == shown


@pytest.mark.parametrize("verb", ["commit", "abort"])
@pytest.mark.parametrize("is_json", [True, False])
def test_a_decision_that_fails_is_one_line(path: Path, verb: str, is_json: bool) -> None:
    """The verb logs its failure too, for those who watch an application; the command has said it."""
    ran = run_alone(verb, path, "nowhere", *["--json"] * is_json)
    assert ran.code == 1
    (line,) = ran.err.splitlines()
    assert json.loads(line)["error"] == "transaction_not_found" if is_json else line.startswith("error: no transaction")
