"""``catalog.db`` as a file: derived, made again whatever becomes of it, and nobody's obstacle."""

import contextlib
import logging
import os
import random
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Empty, ForkedError, PersistentQueue, StorageError
from holdfast.service.catalog import catalog as catalog_module
from holdfast.service.catalog import database as catalog_database
from holdfast.service.catalog import signature as catalog_signature
from holdfast.service.catalog.catalog import Catalog
from holdfast.service.catalog.facts import QueueFacts
from holdfast.service.catalog.rows import QueueRows
from holdfast.service.catalog.schema import SCHEMA_VERSION, TABLES
from support.builders.transactions import prepare
from support.processes.children import Child, Signal, child, run_script
from support.service.catalogs import catalog_of, contents, fail, fill, open_queue, refreshed, select

pytestmark = pytest.mark.extra("catalog")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Return a service's directory with a queue, and the catalogue of it."""
    with open_queue(tmp_path) as queue:
        fill(queue, 25)
        fail(queue)
    catalog_of(tmp_path).refresh()
    return tmp_path


def execute(directory: Path, *statements: str) -> None:
    """Change a catalogue as somebody with an SQLite tool might."""
    with closing(sqlite3.connect(directory / "catalog.db")) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def wait_until(is_done: Callable[[], bool], what: str) -> None:
    """Wait for something that happens in another thread."""
    never = threading.Event()
    for _ in range(3000):
        if is_done():
            return
        never.wait(0.01)
    raise AssertionError(f"{what}: not within 30 s")


# -- Derived ---------------------------------------------------------------------------------------------------------


def do_something(queue: PersistentQueue, chance: random.Random, number: int) -> None:
    """Do something that shows in a catalogue, by chance."""
    kind = chance.choice(["puts", "acks", "both"])
    verbs: list[Callable[[], object]] = [
        lambda: fill(queue, chance.randint(1, 12)),
        lambda: fill(queue, 10),
        lambda: queue.get_many(chance.randint(1, 20), timeout=0),
        lambda: fail(queue),
        lambda: queue.dead.retry(queue.dead.list(limit=1)),
        lambda: prepare(queue, kind, f"t{chance.randrange(10**9)}"),
        lambda: [chance.choice([queue.commit_prepared, queue.abort_prepared])(each.id) for each in queue.prepared()],
        lambda: queue.groups.create(f"g{number}") if number % 3 == 0 else None,
    ]
    with contextlib.suppress(Empty):
        chance.choice(verbs)()


@pytest.mark.parametrize("seed", range(4))
def test_a_refreshed_catalogue_is_a_rebuilt_one(tmp_path: Path, seed: int) -> None:
    """Row by row, whatever the queues have been through since the last refresh."""
    chance = random.Random(seed)
    catalog = catalog_of(tmp_path)
    for _ in range(4):
        with open_queue(tmp_path, "a") as a, open_queue(tmp_path, "b") as b:
            for number in range(chance.randint(1, 12)):
                do_something(chance.choice([a, b]), chance, number)
                if chance.random() < 0.5:
                    refreshed(catalog)
        refreshed(catalog)
    assert [row["name"] for row in contents(tmp_path)["queues"]] == ["a", "b"]


def test_the_order_in_which_rows_come_to_be_does_not_show(made: Path) -> None:
    """A catalogue that another process has made is taken over."""
    before = contents(made)
    assert refreshed(catalog_of(made)) == before


def test_a_deleted_catalogue_is_made_again(made: Path) -> None:
    """By a service that has it open, too; nothing is lost with it."""
    catalog = catalog_of(made)
    before = refreshed(catalog)
    (made / "catalog.db").unlink()
    catalog.refresh()
    assert contents(made) == before


def test_what_has_not_changed_is_neither_read_nor_written(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the files have been left alone for a while."""
    monkeypatch.setattr(catalog_signature, "_SETTLED_NS", -(10**18))
    read: list[str] = []
    reader = QueueRows.read

    def counted(self: QueueRows, facts: QueueFacts) -> Any:
        read.append(facts.name)
        return reader(self, facts)

    monkeypatch.setattr(QueueRows, "read", counted)
    with open_queue(made, "others") as others:
        catalog = catalog_of(made)
        catalog.refresh()
        assert sorted(read) == ["orders", "others"]
        status = (made / "catalog.db").stat()
        catalog.refresh()
        assert sorted(read) == ["orders", "others"]
        assert (made / "catalog.db").stat() == status
        fill(others, 1)
        catalog.refresh()
        assert sorted(read) == ["orders", "others", "others"]
        others.get()
        catalog.refresh()
        assert sorted(read) == ["orders", "others", "others", "others"]
    assert contents(made)["groups"][1]["depth"] == 0


def test_a_file_that_has_just_changed_is_looked_at_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have changed twice within one tick of the file system's clock."""
    monkeypatch.setattr(catalog_signature, "_SETTLED_NS", 10**18)
    before = contents(made)
    catalog = catalog_of(made)
    catalog.refresh()
    execute(made, "delete from data_files")
    catalog.refresh()
    assert contents(made) == before


def test_settings_that_change_are_taken_up(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although no file has changed."""
    monkeypatch.setattr(catalog_signature, "_SETTLED_NS", -(10**18))
    facts = [QueueFacts("orders", made / "orders", {"maxsize": 1})]
    catalog = catalog_of(made, lambda: facts)
    catalog.refresh()
    facts[0] = QueueFacts("orders", made / "orders", {"maxsize": 2}, ("application/json",))
    catalog.refresh()
    assert select(made, "select settings, content_types from queues") == [
        {"settings": '{"maxsize": 2}', "content_types": '["application/json"]'}
    ]


def test_any_sqlite_tool_opens_it(made: Path) -> None:
    """Another program: one file, sound, its foreign keys hold, and its dates are dates."""
    script = """
        import sqlite3, sys
        db = sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True)
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert db.execute("pragma foreign_key_check").fetchall() == []
        assert db.execute("pragma journal_mode").fetchone() == ("delete",)
        print(db.execute("select count(*), sum(message_count) from data_files join queues on name = queue").fetchone())
        print(db.execute("select date(last_at) = date('now') or time('now') < '00:05' from data_files").fetchone())
    """
    lines = "\n".join(line.strip() for line in script.splitlines())
    assert run_script(lines, made / "catalog.db").splitlines() == ["(3, 25)", "(1,)"]
    assert sorted(path.name for path in made.iterdir()) == ["catalog.db", "catalog.db.lock", "orders"]
    assert (made / "catalog.db").stat().st_mode & 0o777 == 0o600


# -- Damaged ---------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    """Cut a file in its middle."""
    os.truncate(path, path.stat().st_size // 2)


def zero_the_middle(path: Path) -> None:
    """Lose a page to zeros."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))


def sql(*statements: str) -> Callable[[Path], None]:
    """Return what changes a catalogue by SQL."""
    return lambda path: execute(path.parent, *statements)


FOUND_AT_FIRST = [
    pytest.param(truncate, id="truncated"),
    pytest.param(zero_the_middle, id="zeros"),
]
FOUND_ALWAYS = [
    pytest.param(lambda path: path.write_bytes(b"no database at all\n" * 500), id="garbage"),
    pytest.param(lambda path: path.write_bytes(b""), id="empty"),
    pytest.param(sql(f"pragma user_version = {SCHEMA_VERSION + 1}"), id="other version"),
    pytest.param(sql("drop table events"), id="table missing"),
    pytest.param(sql("drop view overview"), id="view missing"),
    pytest.param(sql("alter table events drop column detail"), id="column missing"),
    pytest.param(sql("alter table groups rename to things"), id="table renamed"),
    pytest.param(sql("pragma application_id = 1"), id="another program's"),
]


def check_that_it_is_made_again(catalog: Catalog, before: object, caplog: pytest.LogCaptureFixture) -> None:
    """Refresh a catalogue that cannot be used."""
    path = catalog.path
    with caplog.at_level(logging.WARNING, "holdfast"):
        catalog.refresh()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{path} cannot be used (")
    assert record.getMessage().endswith("); it is made again from the queues")
    assert contents(path.parent) == before
    assert select(path.parent, "select depth from overview") == [{"depth": 24}]


@pytest.mark.parametrize("spoil", [*FOUND_AT_FIRST, *FOUND_ALWAYS])
def test_a_catalogue_that_cannot_be_used_is_made_again(
    made: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """And it is said so."""
    before = contents(made)
    spoil(made / "catalog.db")
    check_that_it_is_made_again(catalog_of(made), before, caplog)


@pytest.mark.parametrize("spoil", FOUND_ALWAYS)
def test_a_catalogue_that_is_spoilt_while_it_is_kept_is_made_again(
    made: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The next time that something has changed."""
    before = contents(made)
    catalog = catalog_of(made)
    catalog.refresh()
    spoil(made / "catalog.db")
    os.utime(made / "orders" / "write.mark")
    check_that_it_is_made_again(catalog, before, caplog)


@pytest.mark.parametrize("content", [b"no database at all\n" * 500, None])
def test_rebuilding_needs_nothing_of_what_stands_there(made: Path, content: bytes | None) -> None:
    """Garbage, or nothing."""
    before = contents(made)
    if content is None:
        (made / "catalog.db").unlink()
    else:
        (made / "catalog.db").write_bytes(content)
    catalog_of(made).rebuild()
    assert contents(made) == before


def test_a_journal_that_was_left_does_not_spoil_the_next_one(made: Path) -> None:
    """It belongs to the file that is put aside."""
    before = contents(made)
    (made / "catalog.db").write_bytes(b"x" * 8192)
    (made / "catalog.db-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(1000))
    catalog_of(made).refresh()
    assert contents(made) == before
    assert not (made / "catalog.db-journal").exists()


def test_somebody_elses_database_is_put_aside_and_not_lost(made: Path) -> None:
    """The name is ours, what stands there may be a person's."""
    (made / "catalog.db").unlink()
    execute(made, "create table recipes (title)", "insert into recipes values ('soup')")
    catalog_of(made).refresh()
    assert select(made, "select count(*) as count from queues") == [{"count": 1}]
    with closing(sqlite3.connect(made / "catalog.db.damaged")) as db:
        assert db.execute("select title from recipes").fetchall() == [("soup",)]


# -- In nobody's way -------------------------------------------------------------------------------------------------


def test_the_thread_writes_what_changes_and_stopping_writes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within its period, and at the end in any case."""
    monkeypatch.setattr(catalog_module, "_SHARE_MAX", 1.0)
    catalog = catalog_of(tmp_path, refresh_seconds=0.01)
    with open_queue(tmp_path) as queue:
        catalog.start()
        catalog.start()
        fill(queue, 3)
        wait_until(lambda: _depth(tmp_path) == 3, "the catalogue has what was put")
        catalog.stop()
        fill(queue, 1)
        assert _depth(tmp_path) == 3
    catalog = catalog_of(tmp_path, refresh_seconds=3600)
    catalog.start()
    catalog.stop()
    catalog.stop()
    assert _depth(tmp_path) == 4


def test_the_thread_ends_once_its_service_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a word: the queues of a service that was dropped warn for themselves."""

    def snapshot() -> list[QueueFacts]:
        raise ReferenceError("weakly-referenced object no longer exists")

    before = set(threading.enumerate())
    catalog = catalog_of(tmp_path, snapshot, refresh_seconds=0.01)
    catalog.start()
    (thread,) = set(threading.enumerate()) - before
    thread.join(30)
    assert not thread.is_alive()
    catalog.stop()  # as a service that is closed in a __del__, where weak references to it are gone already
    assert not caplog.records


def test_what_the_first_look_imports_does_not_put_off_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look may take its share of a processor; the import, once in a process, took the share of minutes."""
    monkeypatch.delitem(sys.modules, "sqlite_utils", raising=False)
    monkeypatch.setattr(catalog_module, "thread_time", lambda: 1000.0 if "sqlite_utils" in sys.modules else 0.0)
    catalog = catalog_of(tmp_path, refresh_seconds=0.01)
    with open_queue(tmp_path) as queue:
        catalog.start()
        for count in (1, 2):
            fill(queue, 1)
            wait_until(lambda count=count: _depth(tmp_path) == count, "the catalogue has what was put")  # type: ignore[misc]
        catalog.stop()


def _depth(directory: Path) -> int | None:
    try:
        rows = select(directory, "select next_offset from queues")
    except sqlite3.OperationalError:  # not there yet, or being written
        return None
    return rows[0]["next_offset"] if rows else None


def test_a_locked_catalogue_is_said_once_and_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program that holds it disturbs nobody."""
    monkeypatch.setattr(catalog_database, "BUSY_SECONDS", 0.01)
    catalog = catalog_of(tmp_path)
    with open_queue(tmp_path) as queue:
        fill(queue, 1)
        catalog.refresh()
        with closing(sqlite3.connect(tmp_path / "catalog.db")) as other:
            other.execute("begin exclusive")
            fill(queue, 1)
            with pytest.raises(StorageError, match="database is locked"):
                catalog.refresh()
            with caplog.at_level(logging.WARNING, "holdfast"):
                for _ in range(3):
                    catalog.start()
                    catalog.stop()
            assert [record.getMessage() for record in caplog.records] == [
                f"the catalogue is not up to date: {tmp_path / 'catalog.db'} cannot be written: database is locked"
            ]
            assert queue.get() == bytes(1050)
        catalog.refresh()
        assert _depth(tmp_path) == 2


def test_a_catalogue_that_cannot_be_there_disturbs_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A directory of its name, say; whoever asks for it is told."""
    (tmp_path / "catalog.db").mkdir()
    catalog = catalog_of(tmp_path)
    with open_queue(tmp_path) as queue:
        fill(queue, 1)
        catalog.start()
        catalog.stop()
        (record,) = caplog.records
        assert "cannot be opened" in record.getMessage()
        assert record.exc_info in (None, False)
        with pytest.raises(StorageError, match="the queues are not affected"):
            catalog.rebuild()


def test_a_mistake_of_ours_is_logged_with_its_traceback(
    made: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing else happens."""
    monkeypatch.setattr(QueueRows, "read", lambda self, facts: 1 / 0)
    catalog = catalog_of(made)
    catalog.start()
    catalog.stop()
    (record,) = caplog.records
    assert record.exc_info is not None


def test_two_processes_keep_one_catalogue(tmp_path: Path) -> None:
    """One that puts and one that takes, both in a hurry: it stays sound, and ends with what is there."""
    for name in ("a", "b"):
        open_queue(tmp_path, name).close()

    def work(name: str) -> None:
        with open_queue(tmp_path, name) as queue:
            catalog = catalog_of(tmp_path, refresh_seconds=0.001)
            catalog.start()
            for _ in range(30):
                fill(queue, 2)
                queue.get()
                catalog.refresh()
        catalog.stop()

    workers = [Child(lambda name=name: work(name)) for name in ("a", "b")]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert select(tmp_path, "pragma integrity_check") == [{"integrity_check": "ok"}]
    found = contents(tmp_path)
    assert [row["depth"] for row in found["groups"]] == [30, 30]
    assert refreshed(catalog_of(tmp_path)) == found


def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_catalogue(made: Path) -> None:
    """The next one continues."""
    before = contents(made)
    writing = Signal()

    def rebuild_for_ever() -> None:
        catalog = catalog_of(made)
        catalog.rebuild()
        writing.send()
        while True:
            catalog.rebuild()

    with child(rebuild_for_ever) as process:
        writing.wait()
        process.kill()
    writing.close()
    assert refreshed(catalog_of(made)) == before


def test_a_forked_copy_does_nothing(made: Path) -> None:
    """The parent's continues, also if its thread was writing at that moment."""
    catalog = catalog_of(made, refresh_seconds=0.001)
    catalog.start()

    def try_all() -> None:
        catalog.refresh()
        catalog.stop()
        with pytest.raises(ForkedError):
            catalog.rebuild()

    for _ in range(5):
        execute(made, "pragma user_version = 99")
        with child(try_all) as process:
            assert process.wait() == 0
    catalog.stop()
    assert refreshed(Catalog(made, tuple)).keys() == TABLES.keys()
