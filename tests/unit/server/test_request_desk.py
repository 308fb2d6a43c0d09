"""The owner's side of requests when the disk refuses, when there is no room, and when nonsense is asked."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast import FlushPolicy
from holdfast.persistence.exchange.mailbox import Answer, Answers
from holdfast.persistence.exchange.requests import (
    ABORT_PREPARED,
    BATCH,
    CLAIMED,
    COMMIT_PREPARED,
    PREPARE,
    VERB,
    RequestName,
    list_requests,
    write_verb,
)
from holdfast.persistence.format.constants import ANSWER_DONE, ANSWER_ERROR, ANSWER_NO_ROOM
from holdfast.persistence.format.message_options import MessageOptions, with_options
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.engine.queue_handle import QueueHandle
from holdfast.queue.options.queue_options import Options
from holdfast.queue.prepared.prepared_resolver import PreparedResolver
from holdfast.queue.server.request_desk import RequestDesk
from support.builders.clocks import FakeClock
from support.builders.requested import DATA_FILE_BYTES, DIRECTORY, ROOT, Asker, payloads_in, queue_in
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

POLICY = FlushPolicy.every_commit()


class Bench:
    """An owner that serves one round when it is told to, and a handle that asks."""

    def __init__(
        self, storage: SimulatedStorage, handle: QueueHandle, desk: RequestDesk, in_doubt: PreparedResolver
    ) -> None:
        self.storage, self.handle, self.desk, self.in_doubt = storage, handle, desk, in_doubt
        self.asker = Asker(storage, handle.queue_id)

    def verb(self, number: int, **fields: object) -> RequestName:
        """Ask for a verb."""
        name = RequestName(self.asker.mailbox.name, number, VERB)
        write_verb(self.storage, name.path(DIRECTORY), fields)
        return name

    def answer(self, number: int) -> Answer:
        """Return the answer."""
        found = self.asker.mailbox.read(number)
        assert found is not None, f"{number} was not answered"
        return found

    def left(self) -> list[str]:
        """Return the requests that are still there."""
        names = map(RequestName.parse, list_requests(self.storage, DIRECTORY.requests))
        return sorted(f"{each.number} {each.kind}" for each in names if each is not None)


@contextmanager
def owning(storage: SimulatedStorage) -> Iterator[Bench]:
    """Own the write side."""
    handle = QueueHandle(
        storage, FakeClock(), ROOT, Options("produce", "default", {"flush": POLICY, "data_file_bytes": DATA_FILE_BYTES})
    )
    in_doubt = PreparedResolver(handle, lambda _, __: Outcome.IN_DOUBT, pytest.fail)
    desk = RequestDesk(handle, in_doubt)
    try:
        yield Bench(storage, handle, desk, in_doubt)
    finally:
        desk.close()
        in_doubt.close()
        handle.close()


@pytest.fixture
def bench(storage: SimulatedStorage) -> Iterator[Bench]:
    """One over an empty queue."""
    queue_in(storage, POLICY).close()
    with owning(storage) as opened:
        yield opened


# -- Batches -----------------------------------------------------------------------------------------------------------


def test_a_request_that_cannot_be_taken_waits_and_holds_nobody_up(bench: Bench) -> None:
    """The next round takes it."""
    bench.asker.ask(64, b"a")
    bench.asker.ask(65, b"b")
    with refusing(bench.storage, "rename", f"{64:010d}.batch"):
        bench.desk.serve()
    assert bench.asker.mailbox.read(64) is None
    assert bench.answer(65).offsets == range(1)
    bench.desk.serve()
    assert bench.answer(64).offsets == range(1, 2)
    assert bench.left() == []


def test_a_request_that_cannot_be_read_is_refused(bench: Bench) -> None:
    """Nothing of it is put, and nothing is left."""
    bench.asker.ask(64, b"a")
    with refusing(bench.storage, "open", CLAIMED):
        bench.desk.serve()
    assert (bench.answer(64).verdict, bench.left()) == (ANSWER_ERROR, [])
    assert bench.handle.next_offset() == 0


def test_a_refused_request_that_cannot_be_removed_is_not_known_of(bench: Bench) -> None:
    """A later owner may take it."""
    bench.asker.ask(64, b"a")
    with refusing(bench.storage, "open", CLAIMED), refusing(bench.storage, "remove", CLAIMED):
        bench.desk.serve()
    assert "a later owner may take it" in bench.answer(64).text
    assert bench.left() == ["64 claimed"]


def test_of_a_request_whose_write_cannot_be_taken_back_nobody_knows(bench: Bench) -> None:
    """Its file stays for whoever reads the log next."""
    bench.asker.ask(63, b"before")
    bench.desk.serve()
    bench.asker.ask(64, b"a")
    with refusing(bench.storage, "write_at", ".data"), refusing(bench.storage, "truncate", ".data"):
        bench.desk.serve()
    assert "taking back a failed write" in bench.answer(64).text
    assert bench.left() == ["64 claimed"]


def test_a_sync_that_fails_is_told_to_all_who_shared_it(bench: Bench) -> None:
    """Nobody knows of any of them: their files stay, and the next opening answers."""
    bench.asker.ask(64, b"a")
    bench.asker.ask(65, b"b")
    bench.handle.require_write_side()._append(b"first", b"")
    with refusing(bench.storage, "sync", ".data"):
        bench.desk.serve()
    assert [bench.answer(each).verdict for each in (64, 65)] == [ANSWER_ERROR] * 2
    assert bench.left() == ["64 claimed", "65 claimed"]


def test_a_committed_request_whose_answer_cannot_be_written_is_answered_by_the_next_opening(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log once, and its decision stays open until then."""
    bench.asker.ask(64, b"a")
    with refusing(bench.storage, "write_at", ".answers") as failed:
        bench.desk.serve()
    assert len(failed) == 1
    assert "the next opening answers it" in caplog.text
    left = bench.storage.crash_keeping_all()
    with owning(left) as again:
        again.desk.serve()
        assert again.handle.next_offset() == 1
        assert again.left() == []
    assert payloads_in(left) == [b"a"]


@pytest.mark.parametrize("before", [4, 1], ids=["no room for one", "no room for all"])
def test_a_large_request_waits_for_room_and_is_told_so_once(bench: Bench, before: int) -> None:
    """Until then it may be withdrawn; its file becomes a part of the log once there is room."""
    bench.asker.ask(64, *[b"a"] * before)
    bench.desk.serve()
    bench.handle.capacity.change(4, None)
    bench.asker.ask(65, *[bytes(2000)] * 4)
    for _ in range(3):
        bench.desk.serve()
        assert bench.answer(65).verdict == ANSWER_NO_ROOM
        assert bench.left() == ["65 batch"]
    bench.handle.capacity.change(100, None)
    bench.desk.serve()
    assert bench.answer(65).offsets == range(before, before + 4)
    assert bench.left() == []


def test_a_large_request_that_is_damaged_is_refused(bench: Bench) -> None:
    """It would become a part of the log as it is."""
    bench.asker.ask(64, *[b"payload of it" * 200] * 4)
    path = RequestName(bench.asker.mailbox.name, 64, BATCH).path(DIRECTORY)
    content = bench.storage.tree()[path]
    assert content is not None
    bench.storage.open(path).write_at((b"?",), content.index(b"payload of it"))
    bench.desk.serve()
    assert "is damaged" in bench.answer(64).text
    assert (bench.left(), bench.handle.next_offset()) == ([], 0)


def test_what_an_owner_before_has_answered_is_not_put_again(storage: SimulatedStorage) -> None:
    """It died before it could remove the request: the message was put before, so it stands nowhere in the log."""
    queue_in(storage, POLICY).close()
    with owning(storage) as bench:
        headers = with_options(MessageOptions(dedup_id="x"), b"")
        bench.asker.ask(64, b"a", headers=headers)
        name = RequestName(bench.asker.mailbox.name, 64, BATCH)
        storage.rename(name.path(DIRECTORY), name.as_kind(CLAIMED).path(DIRECTORY))
        answers = Answers(storage, DIRECTORY.requests)
        answers.write(name.mailbox, Answer(64, ANSWER_DONE, range(7, 8)))
        answers.close()
        bench.desk.serve()
        assert bench.answer(64).offsets == range(7, 8)
        assert (bench.left(), bench.handle.next_offset()) == ([], 0)


def test_a_request_that_is_withdrawn_when_its_turn_comes_is_not_answered(bench: Bench) -> None:
    """It was listed just before."""
    bench.asker.ask(64, b"a")
    name = RequestName(bench.asker.mailbox.name, 64, BATCH)
    bench.storage.remove(name.path(DIRECTORY))
    bench.desk.serve([str(name)])
    assert bench.asker.mailbox.read(64) is None
    assert bench.handle.next_offset() == 0


def test_a_committed_request_that_cannot_be_removed_keeps_its_decision_open(bench: Bench) -> None:
    """Else a later owner would put it again; whoever asked has its answer."""
    bench.asker.ask(64, b"a")
    with refusing(bench.storage, "remove", CLAIMED):
        bench.desk.serve()
    assert bench.answer(64).offsets == range(1)
    bench.handle.require_write_side().end_commit_records()
    left = bench.storage.crash_keeping_all()
    with owning(left) as again:
        again.desk.serve()
        assert again.left() == []
    assert payloads_in(left) == [b"a"]


# -- Verbs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"verb": "dance", "id": "t"}, "knows no verb"),
        ({"id": "t"}, "knows no verb"),
        ({"verb": COMMIT_PREPARED, "id": "t", "nonce": "no hex"}, "names no transaction"),
        ({"verb": ABORT_PREPARED, "id": "t", "nonce": 7}, "names no transaction"),
    ],
)
def test_what_cannot_be_made_out_is_refused(bench: Bench, fields: dict[str, object], text: str) -> None:
    """By a newer version, or by nobody we know."""
    bench.verb(64, **fields)
    bench.desk.serve()
    assert text in bench.answer(64).text
    assert bench.left() == []


def test_a_verb_that_cannot_be_read_is_refused_and_one_that_was_withdrawn_is_not_answered(bench: Bench) -> None:
    """Somebody has listed it just before."""
    name = bench.verb(64, verb=ABORT_PREPARED, id="t")
    with refusing(bench.storage, "open", VERB, errno.EIO):
        bench.desk.serve()
    assert bench.answer(64).verdict == ANSWER_ERROR
    name = bench.verb(65, verb=ABORT_PREPARED, id="t")
    bench.storage.remove(name.path(DIRECTORY))
    bench.desk.serve([str(name)])
    assert bench.asker.mailbox.read(65) is None


def test_a_fault_of_ours_in_one_verb_leaves_nobody_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its traceback; whoever asked is told to look."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(bench.in_doubt, "abort", fail)
    bench.verb(64, verb=ABORT_PREPARED, id="t")
    bench.asker.ask(65, b"a")
    bench.desk.serve()
    assert "look what has been done" in bench.answer(64).text
    assert bench.answer(65).offsets == range(1)
    assert "ZeroDivisionError" in caplog.text


def test_a_verb_that_was_done_and_is_gone_already_is_answered(bench: Bench) -> None:
    """Whoever asked took it back too late; doing it twice changes nothing."""
    name = bench.verb(64, verb=ABORT_PREPARED, id="unknown")
    bench.desk.serve()
    assert bench.answer(64).verdict == ANSWER_ERROR
    assert str(name) not in bench.storage.list(DIRECTORY.requests)


def test_a_name_that_no_transaction_may_have_is_not_prepared(bench: Bench) -> None:
    """It would become the name of a file."""
    bench.asker.ask(64, b"a")
    name = RequestName(bench.asker.mailbox.name, 64, BATCH)
    asked = name.as_kind(PREPARE)
    bench.storage.rename(name.path(DIRECTORY), asked.path(DIRECTORY))
    bench.desk.serve()
    assert bench.answer(64).verdict == ANSWER_ERROR
    assert DIRECTORY.batch_file(str(name)) not in bench.storage.tree()
