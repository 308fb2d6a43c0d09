"""What other users ask of a queue's owner is refused and logged, whoever let them write into its directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import FlushPolicy, PersistentQueue, QueueNotFoundError, UsageError
from holdfast.persistence.exchange.mailbox import Answer, Answers, Mailbox
from holdfast.persistence.exchange.requests import ASK, BATCH, PREPARE, VERB, RequestName, check_asker, write_verb
from holdfast.persistence.filesystem.layout import queue_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.commit_record import CommitRecord
from holdfast.persistence.segment.batch_file import BatchFileWriter
from support.builders.handles import handle_of
from support.processes.children import child
from support.processes.threads import wait_until
from support.storages.place import Place
from support.storages.refusals import refusing
from support.storages.simulated_storage import SimulatedStorage

IS_ROOT = os.geteuid() == 0
NOBODY = 65_534
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")


def as_nobody() -> None:
    """Become a user who owns nothing here."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def let_everybody_in(root: Path) -> None:
    """Do what an owner must not do, while the queue is open."""
    for path in (root, *root.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    (root / "requests").mkdir(mode=0o700, exist_ok=True)
    (root / "requests").chmod(0o777)


def ask_everything(root: Path, queue_id: bytes) -> None:
    """Ask, as another user, whatever changes something: by its own files, with a mailbox of its own."""
    as_nobody()
    storage, directory = OsStorage(), queue_directory(root)
    mailbox = Mailbox(storage, directory.requests)

    def stage(number: int, kind: str, group: str = "") -> tuple[Path, Path]:
        target = RequestName(mailbox.name, number, kind, group).path(directory)
        return target.with_name(f"{target.name}.made"), target

    asked = (
        (VERB, "", {"verb": "commit_prepared", "id": "t", "force": True}),
        (ASK, "default", {"verb": "pause"}),
        (ASK, "default", {"verb": "dead_discard", "offsets": [0]}),
    )
    for number, (kind, group, fields) in enumerate(asked, 64):
        made, target = stage(number, kind, group)
        write_verb(storage, made, fields)
        made.chmod(0o666)
        made.rename(target)
    for number, kind in ((70, BATCH), (71, PREPARE)):
        made, target = stage(number, kind)
        writer = BatchFileWriter(storage, made, queue_id)
        writer.add(b"forged", b"", 1)
        name = RequestName(mailbox.name, number, BATCH)
        waiting = name.waiting_file if kind == BATCH else "prepared/forged.batch"
        writer.finish(CommitRecord("forged", bytes([number]) * 16, 1, 1, waiting_file=waiting))
        writer.close()
        made.chmod(0o666)
        made.rename(target)
    wait_until(lambda: not any("-00000000" in each.name for each in directory.requests.iterdir()), 30)
    assert [mailbox.read(number) for number in (64, 65, 66, 70, 71)] == [None] * 5


@needs_root
def test_another_user_cannot_pause_discard_put_or_force_a_decision(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each request is removed and logged with who made it, and nothing else happens."""
    root = tmp_path / "queue"
    with PersistentQueue(root, flush=FlushPolicy.never(), max_deliveries=1) as queue:
        queue.put(b"dead")
        queue.receive(timeout=0).reject("no")
        queue.put(b"one")
        tx = queue.begin()
        tx.put(b"prepared")
        tx.prepare("t")
        queue_id = handle_of(queue).queue_id
        let_everybody_in(root)
        with child(lambda: ask_everything(root, queue_id)) as asking:
            assert asking.wait() == 0
        assert queue.stats().paused is None
        assert len(queue.dead.list()) == 1
        assert [each.id for each in queue.prepared()] == ["t"]
        assert queue.get_many(10, timeout=0) == [b"one"]
    assert caplog.text.count(f"was made by user {NOBODY} and is refused") == 5
    assert f"was made by user {NOBODY}, and nothing is answered there" in caplog.text


@needs_root
@pytest.mark.parametrize("mode", ["exclusive", "produce", "consume", "submit"])
def test_another_user_cannot_open_a_queue_to_change_it(tmp_path: Path, mode: str) -> None:
    """The error names both users; whoever may read the files may look."""
    root = tmp_path / "queue"
    with PersistentQueue(root) as queue:
        queue.put(b"one")
    let_everybody_in(root)

    def try_it() -> None:
        as_nobody()
        with pytest.raises(Exception, match=f"belongs to user 0, this is user {NOBODY}"):
            PersistentQueue(root, mode=mode)

    with child(try_it) as trying:
        assert trying.wait() == 0


def test_a_request_of_another_user_is_refused_before_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it says."""
    storage = SimulatedStorage()
    path = Place(storage, Path("/")).make("verb", b"x")
    check_asker(storage, path)
    storage.owner += 1
    with pytest.raises(UsageError, match="run as that user"):
        check_asker(storage, path)
    assert f"made by user {storage.owner} and is refused" in caplog.text


def test_a_mailbox_of_another_user_is_not_written_into() -> None:
    """Its handle is let go of, and whoever asked through it is not there."""
    storage = SimulatedStorage()
    mailbox = Mailbox(storage, Path("/"))
    answers = Answers(storage, Path("/"))
    storage.owner += 1
    assert not answers.write(mailbox.name, Answer(64, 1))
    storage.owner -= 1
    with refusing(storage, "owner"), pytest.raises(OSError, match="Input/output"):
        answers.write(mailbox.name, Answer(64, 1))
    assert answers.write(mailbox.name, Answer(64, 1))
    assert mailbox.read(64) == Answer(64, 1)
    answers.close()


def test_a_group_that_is_deleted_while_a_queue_is_opened_is_passed_over() -> None:
    """It was there when the groups were listed."""
    storage = SimulatedStorage()
    root = Path("/queue")
    with PersistentQueue(root, storage=storage) as queue:
        queue.groups.create("gone")
    with refusing(storage, "directory_status", "groups/gone", FileNotFoundError(2, "No such file or directory")):
        PersistentQueue(root, storage=storage).close()
    with (
        refusing(storage, "directory_status", "groups/gone"),
        pytest.raises(Exception, match="opening the queue failed"),
    ):
        PersistentQueue(root, storage=storage).close()
    with pytest.raises(QueueNotFoundError):
        PersistentQueue("/missing", storage=storage, mode="read_only")
