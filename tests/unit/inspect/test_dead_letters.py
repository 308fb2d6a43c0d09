"""Dead letters: how messages become such, what is known of them, and what can be done with them."""

import base64
import json
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from holdfast import Empty, PersistentQueue, UsageError
from holdfast.queue.inspect.dead_letters import Which
from support.builders.jobs import ROOT, Jobs, bury_some, drained, fail, ready
from support.processes.threads import Threads


@pytest.fixture
def jobs() -> Jobs:
    """A queue with five messages."""
    jobs = Jobs()
    with PersistentQueue(
        ROOT, mode="exclusive", data_file_bytes=16 * 2**10, storage=jobs.storage, clock=jobs.clock
    ) as queue:
        queue.put(b"a", headers={"kind": "größe"})
        queue.put_many([b"b", b"c", b"d", b"e"])
    return jobs


# -- Becoming one ----------------------------------------------------------------------------------------------------


def test_a_dead_letter_says_what_it_was_why_it_died_and_when(jobs: Jobs) -> None:
    """All that a person needs to decide."""
    with jobs.open(max_deliveries=2) as queue:
        put_ns = queue.peek()[0].timestamp_ns
        fail(queue.receive())
        first_ns = jobs.clock.time_ns()
        jobs.clock.advance(7.5)
        fail(queue.receive(), ValueError("second time"))
        (letter,) = queue.dead.list()
        assert (letter.offset, letter.payload, letter.timestamp_ns) == (0, b"a", put_ns)
        assert letter.headers == {"kind": "größe"}
        assert (letter.reason, letter.delivery_count) == ("exception", 2)
        assert (letter.first_failure_ns, letter.last_failure_ns) == (first_ns, jobs.clock.time_ns())
        assert (letter.detail, letter.exception) == ("second time", "builtins.ValueError")
        assert "test_dead_letters.py" not in letter.traceback or "ValueError: second time" in letter.traceback
        assert len(queue.dead) == queue.stats().dead == 1


@pytest.mark.parametrize(
    ("how", "reason", "detail"),
    [("reject", "rejected", "no"), ("nack", "max_deliveries", ""), ("fail", "exception", "it cannot be done")],
)
def test_the_reason_says_how_it_ended(jobs: Jobs, how: str, reason: str, detail: str) -> None:
    """By hand, at the last delivery, or by an exception there."""
    with jobs.open(max_deliveries=1) as queue:
        delivery = queue.receive()
        {"reject": lambda: delivery.reject("no"), "nack": delivery.nack, "fail": lambda: fail(delivery)}[how]()
        (letter,) = queue.dead.list()
        assert (letter.reason, letter.detail, letter.delivery_count) == (reason, detail, 1)
        assert queue.dead.offsets() == queue.dead.offsets(reason=reason) == [letter.offset]
        assert queue.dead.offsets(reason="expired") == []


def test_an_exception_before_the_last_delivery_is_not_what_a_dead_letter_shows(jobs: Jobs) -> None:
    """The last failure counts."""
    with jobs.open(max_deliveries=2) as queue:
        fail(queue.receive())
        queue.receive().nack()
        (letter,) = queue.dead.list()
        assert (letter.reason, letter.exception, letter.traceback) == ("max_deliveries", "", "")


def test_with_max_deliveries_none_no_message_dies_by_failing(jobs: Jobs) -> None:
    """But it may be rejected."""
    with jobs.open(max_deliveries=None) as queue:
        for _ in range(100):
            fail(queue.receive())
        delivery = queue.receive()
        assert delivery.delivery_count == 101
        delivery.reject("")
        assert queue.dead.list()[0].delivery_count == 101


def test_dead_letters_are_not_handed_out_and_do_not_count(jobs: Jobs) -> None:
    """Neither in depth nor for producers that wait for room; the others go on."""
    with jobs.open(max_deliveries=1, maxsize=5) as queue:
        bury_some(queue)
        assert (queue.stats().depth, queue.stats().dead, queue.qsize()) == (2, 3, 2)
        queue.put_many([b"f", b"g", b"h"], timeout=0)
        assert drained(queue) == [b"d", b"e", b"f", b"g", b"h"]
        assert queue.empty()
        assert queue.stats().oldest_age_seconds is None
        assert len(queue.dead) == 3


def test_a_producer_that_waits_for_room_goes_on_when_a_lease_ends_in_a_dead_letter(
    tmp_path: Path, threads: Threads
) -> None:
    """As when a message is acknowledged."""
    with PersistentQueue(tmp_path / "q", mode="exclusive", maxsize=1, max_deliveries=1) as queue:
        queue.put(b"a")
        queue.receive(lease_seconds=0.1)
        threads.start(lambda: queue.put(b"b", timeout=20))
        assert queue.receive(timeout=20).payload == b"b"
        threads.join(20)


def test_a_dead_letter_keeps_its_file_and_lets_it_go_when_it_is_discarded(jobs: Jobs) -> None:
    """It can be read as long as it is one."""
    with jobs.open(max_deliveries=1) as queue:
        queue.receive().reject("no")
        for _ in range(10):
            queue.put(bytes(8000))
            drained(queue)
        file_count = queue.stats().file_count
        assert queue.dead.list()[0].payload == b"a"
        assert queue.dead.discard(0) == 1
        queue.put(b"x")
        drained(queue)
        assert queue.stats().file_count < file_count


# -- List, retry, discard --------------------------------------------------------------------------------------------


def test_list_takes_a_reason_and_a_limit(jobs: Jobs) -> None:
    """In offset order, whichever died first."""
    with jobs.open(max_deliveries=1) as queue:
        batch = queue.receive_many(5)
        for number in (3, 1, 4):
            batch[number].reject("no")
        batch[0].nack()
        assert [letter.offset for letter in queue.dead.list()] == [0, 1, 3, 4]
        assert [letter.offset for letter in queue.dead.list(limit=2)] == [0, 1]
        assert [letter.offset for letter in queue.dead.list(reason="rejected")] == [1, 3, 4]
        assert [letter.offset for letter in queue.dead.list(reason="rejected", limit=1)] == [1]
        assert queue.dead.list(limit=0) == []
        assert queue.dead.list(reason="undecodable") == []
        for verb in (queue.dead.list, queue.dead.retry, queue.dead.discard):
            with pytest.raises(UsageError):
                verb(reason="boredom")


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_dead_letters_are_named_one_by_one_by_list_or_by_reason(jobs: Jobs, verb: str) -> None:
    """By offset or as they are; what is no dead letter does not count, and nobody means all by saying nothing."""
    with jobs.open(max_deliveries=1) as queue:
        queue.receive_many(5).reject("no")
        act = getattr(queue.dead, verb)
        letters = queue.dead.list()
        assert act(0) == 1
        assert act(letters[1]) == 1
        assert act([letters[2], 3, 3]) == 2
        assert act([0, 1, 2, 3, 77]) == 0
        assert act([]) == 0
        assert act(reason="exception") == 0
        assert act(reason="rejected") == 1
        assert len(queue.dead) == 0
        assert ready(queue) == ([b"a", b"b", b"c", b"d", b"e"] if verb == "retry" else [])
        for wrong in ({}, {"which": 0, "reason": "rejected"}):
            with pytest.raises(UsageError):
                act(**wrong)


@pytest.mark.parametrize("wrong", [-1, [-1], "0", [None], 1.5])
def test_what_names_no_dead_letter_is_refused(jobs: Jobs, wrong: object) -> None:
    """With an error of ours, or a TypeError."""
    with jobs.open() as queue, pytest.raises((UsageError, TypeError)):
        queue.dead.retry(wrong)  # type: ignore[arg-type]


def test_a_message_that_is_retried_starts_anew(jobs: Jobs) -> None:
    """Its count, its back-off and its first failure."""
    with jobs.open(max_deliveries=2, backoff=[10]) as queue:
        fail(queue.receive())
        jobs.clock.advance(11)
        fail(queue.receive())
        jobs.clock.advance(11)
        assert queue.dead.retry(0) == 1
        delivery = queue.receive()
        assert (delivery.payload, delivery.delivery_count) == (b"a", 1)
        delivery.nack()
        assert queue.stats().delayed == 1
        first_ns = jobs.clock.time_ns()
        jobs.clock.advance(11)
        queue.receive().nack()
        assert queue.dead.list()[0].first_failure_ns == first_ns


def test_a_retried_message_comes_in_company_and_in_offset_order(jobs: Jobs) -> None:
    """It is as good as any other, before those that nobody has had yet."""
    with jobs.open(max_deliveries=1) as queue:
        bury_some(queue)
        assert queue.dead.retry(queue.dead.list()) == 3
        assert [each.payload for each in queue.receive_many(3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("ending", ["release", "close", "shutdown"])
def test_a_retried_message_whose_time_to_live_is_over_survives_being_given_back(jobs: Jobs, ending: str) -> None:
    """Somebody wanted it, and nobody has had it since."""
    queue = jobs.open(expired="dead")
    drained(queue)
    queue.put(b"f", ttl=10)
    jobs.clock.advance(11)
    assert ready(queue) == []
    with suppress(Empty):
        queue.receive(timeout=0)
    assert [letter.reason for letter in queue.dead.list()] == ["expired"]
    assert queue.dead.retry(reason="expired") == 1
    jobs.clock.advance(11)
    delivery = queue.receive(timeout=0)
    if ending == "release":
        delivery.release()
    elif ending == "shutdown":
        queue.shutdown(immediate=True)
    queue.close()
    with jobs.open() as again:
        assert ready(again) == [b"f"]
        assert again.receive(timeout=0).delivery_count == 1


@pytest.mark.parametrize("ending", ["close", "kill", "power"])
@pytest.mark.parametrize("verb", ["none", "retry", "discard"])
def test_dead_letters_and_what_was_decided_survive(jobs: Jobs, verb: str, ending: str) -> None:
    """A clean end, a kill, and, since each is synced when the call returns, the loss of power."""
    queue = jobs.open(max_deliveries=1)
    bury_some(queue)
    letters = queue.dead.list()
    if verb != "none":
        assert getattr(queue.dead, verb)(letters[1]) == 1
    if ending == "close":
        queue.close()
    with (jobs.without_power() if ending == "power" else jobs.killed()).open() as again:
        left = [letter for letter in letters if verb == "none" or letter.offset != 1]
        found = again.dead.list()
        assert [(each.offset, each.reason, each.last_failure_ns) for each in found] == [
            (each.offset, each.reason, each.last_failure_ns) for each in left
        ]
        if ending != "power":  # notes may be lost with it, in part
            assert found == left
        assert ready(again) == ([b"b"] if verb == "retry" else []) + [b"d", b"e"]
        assert not again.recovery.progress_damage
    queue.close()


def test_dead_letters_survive_many_generations_of_the_position_file(jobs: Jobs) -> None:
    """Each checkpoint says them again."""
    with jobs.open(max_deliveries=1) as queue:
        bury_some(queue)
        letters = queue.dead.list()
        for _ in range(4000):
            queue.receive().release()
    with jobs.open() as queue:
        assert queue.dead.list() == letters
        assert ready(queue) == [b"d", b"e"]


def test_thousands_of_dead_letters_are_retried_at_once() -> None:
    """By whoever owns the group."""
    jobs = Jobs()
    with jobs.open(max_deliveries=1) as queue:
        for start in range(0, 6000, 1000):
            queue.put_many([b"%d" % number for number in range(start, start + 1000)])
        with suppress(Empty):
            while True:
                queue.receive_many(1000, timeout=0).nack()
        assert len(queue.dead) == 6000
        assert queue.dead.retry(queue.dead.list()) == 6000
        assert len(drained(queue)) == 6000
    with jobs.open() as queue:
        assert queue.stats().depth == len(queue.dead) == 0


# -- Kept for a while ------------------------------------------------------------------------------------------------


def test_dead_letters_are_kept_for_two_weeks(jobs: Jobs) -> None:
    """From when they died; then whoever takes messages finishes them."""
    with jobs.open() as queue:
        queue.receive().reject("no")
        jobs.clock.advance(7 * 86400)
        queue.receive().reject("no")
        jobs.clock.advance(7 * 86400 - 1)
        queue.get()
        assert [letter.offset for letter in queue.dead.list()] == [0, 1]
        jobs.clock.advance(61)
        queue.get()
        assert [letter.offset for letter in queue.dead.list()] == [1]
        assert queue.dead.retry(0) == 0
    with jobs.open() as queue:
        assert [letter.offset for letter in queue.dead.list()] == [1]


def test_dead_letters_are_kept_for_dead_letter_seconds_across_restarts(jobs: Jobs) -> None:
    """A handle with another opinion has its own; looking sweeps nothing."""
    with jobs.open() as queue:
        queue.receive().reject("no")
    jobs.clock.advance(1000)
    with jobs.open(mode="read_only", dead_letter_seconds=10) as look:
        assert len(look.dead) == 1
        assert look.peek(5)
        assert len(look.dead) == 1
    with jobs.open(dead_letter_seconds=10) as queue:
        queue.get()
        assert len(queue.dead) == 0
        assert queue.stats().depth == 3


# -- Export ----------------------------------------------------------------------------------------------------------


def test_export_writes_a_line_of_json_for_each_and_replaces_what_was_there(jobs: Jobs, tmp_path: Path) -> None:
    """The payload as base64; they stay what they are."""
    path = tmp_path / "dead.jsonl"
    path.write_text("old")
    with jobs.open(max_deliveries=1) as queue:
        bury_some(queue)
        assert queue.dead.export(path) == 3
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [base64.b64decode(line["payload_base64"]) for line in lines] == [b"a", b"b", b"c"]
        assert [line["reason"] for line in lines] == ["rejected", "max_deliveries", "exception"]
        assert lines[0]["headers"] == {"kind": "größe"}
        assert lines[2]["exception"] == "builtins.KeyError"
        assert {"offset", "timestamp_ns", "delivery_count", "first_failure_ns", "last_failure_ns"} <= lines[0].keys()
        assert queue.dead.export(str(path), reason="rejected") == 1
        assert len(path.read_text().splitlines()) == 1
        assert queue.dead.export(path, reason="undecodable") == 0
        assert path.read_text() == ""
        assert len(queue.dead) == 3
        with pytest.raises(OSError, match="nowhere"):
            queue.dead.export(tmp_path / "nowhere" / "dead.jsonl")
    assert [each.name for each in tmp_path.iterdir()] == ["dead.jsonl"]


def test_export_takes_letters_and_offsets_as_retry_does(jobs: Jobs, tmp_path: Path) -> None:
    """One or several, each once; what is no dead letter any more is left out."""
    path = tmp_path / "dead.jsonl"

    def exported(which: Which) -> list[int]:
        count = queue.dead.export(path, which)
        offsets = [json.loads(line)["offset"] for line in path.read_text().splitlines()]
        assert count == len(offsets)
        return offsets

    with jobs.open(max_deliveries=1) as queue:
        bury_some(queue)
        letters = queue.dead.list()
        assert [letter.offset for letter in letters] == [0, 1, 2]
        assert exported(letters[1]) == [1]
        assert exported(2) == [2]
        assert exported([letters[2], 0, 0]) == [0, 2]
        assert exported(letter for letter in letters if letter.reason == "rejected") == [0]
        assert exported([]) == []
        assert exported([0, 3, 99]) == [0]
        assert queue.dead.retry(0) == 1
        assert exported(letters) == [1, 2]


def test_export_refuses_what_names_no_dead_letters_and_leaves_the_file_as_it_was(jobs: Jobs, tmp_path: Path) -> None:
    """Both ways of naming them at once, and what is neither a letter nor an offset."""
    path = tmp_path / "dead.jsonl"
    path.write_text("old")
    with jobs.open(max_deliveries=1) as queue:
        bury_some(queue)
        with pytest.raises(UsageError, match="not both"):
            queue.dead.export(path, 0, reason="rejected")
        for wrong in ("0", [-1], [0, "1"]):
            for verb in (partial(queue.dead.export, path), queue.dead.retry, queue.dead.discard):
                with pytest.raises(UsageError, match="by offsets"):
                    verb(wrong)
        assert len(queue.dead) == 3
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("dead.jsonl", "old")]


def test_a_dead_letter_that_expired_while_it_was_delayed_is_ready_once_it_is_retried() -> None:
    """Whoever wants it wants it now; its delay once went on, though the table of states says ready."""
    jobs = Jobs()
    with jobs.open(expired="dead") as queue:
        queue.put(b"a", delay=100, ttl=10)
        jobs.clock.advance(11)
        assert drained(queue) == []
        assert queue.dead.retry(0) == 1
        assert [each.payload for each in queue.browse("ready")] == [b"a"]
    with jobs.open(expired="dead") as queue:
        assert drained(queue) == [b"a"]
