"""Tasks on machines that cannot write into the queue send their rows to the range server of their write."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import (
    ConfigError,
    Full,
    HoldfastError,
    PersistentQueue,
    Put,
    RecordTooLargeError,
    StorageError,
    UsageError,
)
from holdfast.clock import SystemClock
from holdfast.errors import DiskFullError, RetryableError, TransactionStateError
from holdfast.persistence.filesystem.layout import DataFileName, open_directory
from holdfast.persistence.filesystem.storage import DirectoryStatus, OsStorage
from holdfast.queue.options.put_options import as_batch
from support.spark.drains import fill
from support.spark.other_machines import SIGHTS, nothing
from support.spark.range_servers import HOST, PLANNED, Served, on_another_machine, served, servers_end
from support.spark.sinks import commit, messages, payloads, rows, schema_of, sent, stage, staged, writer

pytestmark = pytest.mark.usefixtures("arrow_packages")

Sight = Callable[[Path], None]

_BATCH_0 = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "0"}
"""What a task of a stream says of itself."""

LATER_SECONDS = 30.0
"""How long a server may take to see that a task has ended."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty queue whose log has begun in another file than that of its older copy, ``template`` beside it."""
    PersistentQueue(tmp_path / "q", mode="exclusive").close()
    shutil.copytree(tmp_path / "q", tmp_path / "template")
    fill(tmp_path / "q", range(100), size=400)
    with PersistentQueue(tmp_path / "q", mode="exclusive") as queue:
        queue.purge()
    monkeypatch.chdir(tmp_path)
    with servers_end():
        yield tmp_path / "q"


@pytest.fixture
def server(path: Path) -> Iterator[Served]:
    """Return a server of this process."""
    with served(OsStorage()) as one:
        yield one


def write_grant(path: Path, write_id: str = "w") -> Any:
    """Return the right to write into a queue."""
    from holdfast.spark.remote.grant import Grant

    _, queue_id, _ = open_directory(OsStorage(), path, create=False, writable=False)
    return Grant(path, queue_id, write_id=write_id)


def parts_of(server: Served, path: Path) -> Any:
    """Return what a task on another machine stages with."""
    from holdfast.spark.remote.client import RangeClient
    from holdfast.spark.remote.parts import RemoteParts

    return RemoteParts(RangeClient(server.place(write_grant(path))))


def encoded(*batches: Sequence[bytes | Put]) -> Iterator[tuple[list[bytes], dict[int, bytes]]]:
    """Yield messages as a task sends them."""
    for batch in batches:
        found, headers = as_batch(batch, SystemClock())
        yield found, headers or {}


def commit_parts(path: Path, ids: tuple[str, ...], application: str = "app", version: int = 1) -> None:
    """Commit what tasks have staged."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.joint_commits.commit(application, version, ids)


def wait_until_nothing_is_staged(path: Path) -> None:
    """Wait until the server has seen that a task has ended."""
    end = time.monotonic() + LATER_SECONDS
    while staged(path) and time.monotonic() < end:
        time.sleep(0.01)
    assert staged(path) == []


# -- A write ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_write_has_every_row_in_order_where_the_queue_is_not(
    path: Path, sight: Sight, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where another queue is, or an older copy; what is there stays as it is, and the log says where rows go."""
    write = writer(PLANNED, serveAddress=HOST)
    with on_another_machine(path.parent, sight):
        before = sorted(Path().rglob("*"))
        parts = [stage(write, rows([b"1", b"2"]), rows([b"3"])), stage(write, rows([b"4"]))]
        assert sorted(Path().rglob("*")) == before
    assert payloads(path) == []
    assert len(staged(path)) == 2
    commit(write, *parts)
    assert payloads(path) == [b"1", b"2", b"3", b"4"]
    assert staged(path) == []
    assert "is written through the range server at 127.0.0.1, port" in caplog.text


def test_a_stream_has_every_row_where_the_queue_is_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a batch that is run again is skipped."""
    from pyspark import TaskContext

    monkeypatch.setattr(TaskContext, "_taskContext", SimpleNamespace(getLocalProperty=_BATCH_0.get))
    for expected in (1, 0):
        write = writer(PLANNED, is_stream=True, serveAddress=HOST)
        with on_another_machine(path.parent, nothing):
            parts = stage(write, rows([b"1"]))
        assert len(parts.ids) == expected
        sent(write).commit([parts], 0)
    assert payloads(path) == [b"1"]


def test_what_a_message_asks_for_arrives(path: Path) -> None:
    """A priority and a delay, as from a task that sees the queue."""
    import pyarrow as pa
    from pyspark.sql.types import BinaryType, DoubleType, IntegerType

    schema = schema_of(payload=BinaryType(), priority=IntegerType(), delay=DoubleType())
    columns = {"priority": [None, 9, None], "delay": [None, None, 3600.0]}
    batch = pa.record_batch(
        {
            "payload": pa.array([b"a", b"b", b"c"], pa.binary()),
            "priority": pa.array(columns["priority"], pa.int32()),
            "delay": pa.array(columns["delay"], pa.float64()),
        }
    )
    write = writer(PLANNED, schema, serveAddress=HOST)
    with on_another_machine(path.parent, nothing):
        parts = stage(write, batch)
    commit(write, parts)
    with PersistentQueue(path, mode="exclusive") as queue:
        assert [queue.get(timeout=0) for _ in range(2)] == [b"b", b"a"]
        assert queue.stats().delayed == 1


def test_a_task_that_sees_the_queue_asks_no_server(path: Path) -> None:
    """Even if there is none any more; nor is one needed to commit."""
    write = writer(path, serveAddress=HOST)
    with servers_end():
        pass
    commit(write, stage(write, rows([b"1"])))
    assert payloads(path) == [b"1"]


def test_without_a_server_a_task_needs_the_directory(path: Path) -> None:
    """If it is off, and if no Spark on other machines is known."""
    for write in (writer(PLANNED), writer(PLANNED, serveAddress="off")):
        with on_another_machine(path.parent, nothing), pytest.raises(HoldfastError, match="each machine"):
            stage(write, rows([b"1"]))


def test_a_new_queue_is_written_to_from_machines_that_do_not_see_it(path: Path) -> None:
    """Nothing was put into it, so there is no log of which a machine may have an older copy."""
    write = writer(PLANNED.with_name("new"), create="true", serveAddress=HOST)
    with on_another_machine(path.parent, nothing):
        parts = stage(write, rows([b"1"]))
    commit(write, parts)
    assert payloads(path.with_name("new")) == [b"1"]


def test_a_queue_that_does_not_say_where_its_log_ends_is_planned_for(path: Path) -> None:
    """Only an older copy of it is told apart later, by the commit."""
    (path / "write.mark").write_bytes(bytes(100))
    assert writer(PLANNED, serveAddress=HOST)._sink._log_end is None


# -- Who may write there ---------------------------------------------------------------------------------------------


class _Refusing:
    """The disk of a machine where the queue cannot be written."""

    def __init__(self, **methods: Any) -> None:
        self._methods = methods
        self._storage = OsStorage()

    def __getattr__(self, name: str) -> Any:
        return self._methods.get(name) or getattr(self._storage, name)


def test_a_machine_that_may_only_read_the_queue_does_not_write_it(path: Path) -> None:
    """A mount that is read-only, and a user whose files the queue's owner could not read."""
    from holdfast.spark.writing.staging import LocalParts

    def read_only(where: Path, *, create: bool = False, writable: bool = True) -> Any:
        if writable:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(where))
        return OsStorage().open(where, create=create, writable=False)

    queue_id = write_grant(path).queue_id
    another: Any = _Refusing(directory_status=lambda _: DirectoryStatus(os.geteuid() + 1, 0o777))
    for storage, kind, reason in (
        (another, ConfigError, "belongs to user"),
        (_Refusing(open=read_only), StorageError, "Read-only file system"),
    ):
        with pytest.raises(kind, match=reason):
            LocalParts(path, queue_id, storage)
    assert staged(path) == []


def test_a_token_of_a_read_writes_nothing_and_one_of_a_write_reads_nothing(path: Path, server: Served) -> None:
    """Each plan may do what it is for."""
    from dataclasses import replace

    from holdfast.spark.remote.client import RangeClient
    from holdfast.spark.remote.parts import RemoteParts

    grant = write_grant(path)
    reads = RangeClient(server.place(replace(grant, write_id="")))
    writing: list[Callable[[], object]] = [
        lambda: reads.latest("app"),
        reads.release,
        lambda: RemoteParts(reads).stage(encoded([b"1"]), "app", 1),
    ]
    for ask in writing:
        with pytest.raises(RetryableError, match="reads only"):
            ask()
    writes = RangeClient(server.place(grant))
    name = DataFileName(1, 0)
    reading: list[Callable[[], object]] = [
        lambda: writes.open(name),
        lambda: list(writes.chunks(name, 0, 0)),
        lambda: writes.require_log(name),
    ]
    for ask in reading:
        with pytest.raises(RetryableError, match="writes only"):
            ask()
    assert staged(path) == []


def test_a_write_that_is_over_is_not_served_any_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that lingers is refused, behind the commit and behind an abort; of a stream no task may have reported."""
    from pyspark import TaskContext

    ends: list[tuple[bool, Callable[[Any], None]]] = [
        (False, commit),
        (False, lambda write: sent(write).abort([])),
        (True, lambda write: sent(write).commit([], 0)),
        (True, lambda write: sent(write).abort([None], 0)),
    ]
    monkeypatch.setattr(TaskContext, "_taskContext", SimpleNamespace(getLocalProperty=_BATCH_0.get))
    for is_stream, end in ends:
        write = writer(PLANNED, is_stream=is_stream, serveAddress=HOST)
        end(write)
        with on_another_machine(path.parent, nothing), pytest.raises(RetryableError, match="refuses the token"):
            stage(write, rows([b"late"]))
    assert (payloads(path), staged(path)) == ([], [])


def test_two_writes_of_one_process_end_for_themselves(path: Path) -> None:
    """They have one server, and tokens of their own."""
    first, second = (writer(PLANNED, serveAddress=HOST) for _ in range(2))
    with on_another_machine(path.parent, nothing):
        parts = [stage(first, rows([b"1"]))]
    commit(first, *parts)
    with on_another_machine(path.parent, nothing):
        parts = [stage(second, rows([b"2"]))]
    commit(second, *parts)
    assert payloads(path) == [b"1", b"2"]


def test_a_server_stays_for_a_write_until_that_is_over(path: Path) -> None:
    """Its planner ends long before its tasks; those of a second stage may come an hour behind the first."""
    from holdfast.spark.serving.grants import Grants
    from support.builders.clocks import FakeClock

    clock = FakeClock()
    grants = Grants(clock)
    write, read = write_grant(path), write_grant(path, write_id="")
    tokens = [grants.add(each, is_kept=True) for each in (write, read)]
    assert [grants.find(each) for each in tokens] == [write, read]
    grants.keep_writes()
    clock.advance(3600)
    assert grants.idle_seconds() == 0
    grants.release(write)
    assert grants.idle_seconds() == 3600
    assert [grants.find(each) for each in tokens] == [None, read]


# -- Tasks that fail, die, or come twice -----------------------------------------------------------------------------


def test_of_two_attempts_at_once_the_one_that_is_named_counts(path: Path, server: Served) -> None:
    """A speculative copy writes beside the first attempt; the commit lets go of what lost."""
    first, second = parts_of(server, path), parts_of(server, path)
    ids: list[tuple[str, ...]] = []

    def beside() -> Iterator[Any]:
        yield from encoded([b"1"])
        ids.append(second.stage(encoded([b"1"], [b"2"]), "app", 1))
        yield from encoded([b"2"])

    lost = first.stage(beside(), "app", 1)
    assert len(staged(path)) == 2
    commit_parts(path, ids[0])
    assert payloads(path) == [b"1", b"2"]
    assert staged(path) == []
    assert lost != ids[0]


def test_a_task_that_another_run_overtakes_stages_nothing(path: Path) -> None:
    """Two drivers run the same write: the slow one finds it done, through the server too."""
    slow, fast = (writer(PLANNED, txnid="t", serveAddress=HOST) for _ in range(2))

    def overtaken() -> Iterator[Any]:
        yield rows([b"slow"])
        commit(writer(path, txnid="t"), stage(writer(path, txnid="t"), rows([b"fast"])))

    with on_another_machine(path.parent, nothing):
        os.chdir(path.parent / "machine")
        message = sent(slow).write(overtaken())
        assert message.ids == ()
        assert stage(fast, rows([b"late"])).ids == ()
    commit(slow, message)
    assert payloads(path) == [b"fast"]
    assert staged(path) == []


def test_a_part_of_what_is_committed_is_too_late(path: Path, server: Served) -> None:
    """The server refuses it as the disk does."""
    parts = parts_of(server, path)

    def overtaken() -> Iterator[Any]:
        yield from encoded([b"slow"])
        commit_parts(path, ())

    with pytest.raises(TransactionStateError, match="too late"):
        parts.stage(overtaken(), "app", 1)
    assert staged(path) == []
    assert parts.latest("app") == 1


@pytest.mark.parametrize("fault", [RuntimeError("fault"), KeyboardInterrupt()])
def test_a_task_that_fails_leaves_nothing_staged(
    path: Path, server: Served, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    """Neither the parts that the server had prepared, nor the one that it was writing."""
    monkeypatch.setattr("holdfast.spark.writing.staging.Staging.__init__.__kwdefaults__", {"part_bytes": 100})
    most = []

    def failing() -> Iterator[Any]:
        yield from encoded([bytes(100)], [bytes(50)])
        end = time.monotonic() + LATER_SECONDS
        while len(staged(path)) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        most.append(len(staged(path)))
        raise fault

    with pytest.raises(type(fault)):
        parts_of(server, path).stage(failing(), "app", 1)
    assert most == [2]
    wait_until_nothing_is_staged(path)


_DYING = """
import os, sys, time
from holdfast.spark.remote.client import RangeClient
from holdfast.spark.remote.parts import RemoteParts
from holdfast.spark.remote.place import Place

def batches():
    yield [b"1", b"2"], {}
    os.write(1, b"sent")
    time.sleep(600)

RemoteParts(RangeClient(Place.from_text(sys.argv[1]))).stage(batches(), "app", 1)
"""


def test_what_a_task_has_sent_that_is_killed_is_never_admitted(path: Path, server: Served) -> None:
    """Its stream ends as that of a task which is done: only what is said to be whole is staged."""
    place = server.place(write_grant(path)).to_text()
    with subprocess.Popen([sys.executable, "-c", _DYING, place], stdout=subprocess.PIPE) as task:
        assert task.stdout is not None
        assert task.stdout.read(4) == b"sent"
        end = time.monotonic() + LATER_SECONDS
        while not staged(path) and time.monotonic() < end:
            time.sleep(0.01)
        (half,) = staged(path)
        assert half.endswith(".staging")
        task.send_signal(signal.SIGKILL)
    wait_until_nothing_is_staged(path)


@pytest.mark.parametrize("told", [None, 1, 3])
def test_a_stream_that_is_not_whole_is_discarded(path: Path, server: Served, told: int | None) -> None:
    """Two messages arrive; the task says nothing of how many there were, or another number."""
    from pyarrow import ArrowException, flight

    from holdfast.spark.remote.client import MESSAGES

    parts = parts_of(server, path)
    client = parts._client
    command = json.dumps({"application": "app", "version": 1}).encode()
    stream, answers = client._client.do_put(flight.FlightDescriptor.for_command(command), MESSAGES, client._options())
    from holdfast.spark.remote.parts import _chunks

    for chunk in _chunks([b"1", b"2"], {}):
        stream.write_batch(chunk)
    if told is not None:
        stream.write_metadata(str(told).encode())
    stream.done_writing()
    assert answers.read() is None
    with pytest.raises(ArrowException, match="behind 2 messages: they are discarded"):
        stream.close()
    assert staged(path) == []


def test_a_server_that_is_killed_in_the_middle_of_a_part_admits_none_of_it(path: Path) -> None:
    """Its task fails and says why, the next opening removes the rest, and the write that is run again is whole."""
    from holdfast.spark.remote import starting

    write = writer(PLANNED, txnid="t", serveAddress=HOST)

    def killing() -> Iterator[Any]:
        yield rows([b"1", b"2"])
        end = time.monotonic() + LATER_SECONDS
        while not staged(path) and time.monotonic() < end:
            time.sleep(0.01)
        for each in starting._servers.values():
            each._popen.kill()
            each._popen.wait()
        yield rows([b"3"])

    with on_another_machine(path.parent, nothing), pytest.raises(RetryableError, match="the range server at"):
        sent(write).write(killing())
    (half,) = staged(path)
    assert half.endswith(".staging")
    with pytest.raises(RetryableError, match="does not answer"), on_another_machine(path.parent, nothing):
        stage(write, rows([b"1", b"2", b"3"]))
    sent(write).abort([None])
    assert staged(path) == []
    again = writer(PLANNED, txnid="t", serveAddress=HOST)
    with on_another_machine(path.parent, nothing):
        parts = stage(again, rows([b"1", b"2", b"3"]))
    commit(again, parts)
    assert payloads(path) == [b"1", b"2", b"3"]


def test_what_a_driver_has_staged_that_is_killed_before_its_commit_is_let_go_by_the_next_run(path: Path) -> None:
    """Its server has ended with it, and each row is there once."""
    for number in range(2):
        write = writer(PLANNED, txnid="t", serveAddress=HOST)
        with on_another_machine(path.parent, nothing):
            parts = stage(write, rows([b"1", b"2"]), rows([b"3"]))
        assert len(staged(path)) == 1 + number
        with servers_end():
            pass
    commit(write, parts)
    assert payloads(path) == [b"1", b"2", b"3"]
    assert staged(path) == []


def test_a_commit_works_without_the_server(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was staged is in the directory."""
    caplog.set_level(logging.INFO, "holdfast")
    write = writer(PLANNED, serveAddress=HOST)
    with on_another_machine(path.parent, nothing):
        parts = stage(write, rows([b"1"]))
    with servers_end():
        pass
    commit(write, parts)
    assert payloads(path) == [b"1"]
    assert "was not told that it is over" in caplog.text


# -- What the server's disk and queue refuse -------------------------------------------------------------------------


def test_a_full_disk_there_is_the_error_here(path: Path) -> None:
    """With its own words and class; what was written before is removed."""
    from holdfast.spark.remote.client import RangeClient
    from holdfast.spark.remote.parts import RemoteParts

    class Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write_at(self, buffers: Any, position: int) -> int:
            if position:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(self._file.write_at(buffers, position))

    def opened(where: Path, *, create: bool = False, writable: bool = True) -> Any:
        file = OsStorage().open(where, create=create, writable=writable)
        return Full(file) if where.suffix == ".staging" else file

    storage: Any = _Refusing(open=opened)
    with served(storage) as server:
        parts = RemoteParts(RangeClient(server.place(write_grant(path))))
        with pytest.raises(DiskFullError, match=r"disk full while writing a batch: .*free disk space"):
            parts.stage(encoded(*[[bytes(2**20)] * 4] * 20), "app", 1)
    assert staged(path) == []


def test_what_the_queue_refuses_is_the_error_here(path: Path, server: Served) -> None:
    """A bounded queue without space, and a payload that is too large."""
    with PersistentQueue(path, mode="exclusive") as queue:
        queue.configure(maxsize=2, record_bytes_max=1000)
        queue.put(b"0")
    parts = parts_of(server, path)
    with pytest.raises(Full):
        parts.stage(encoded([b"1", b"2"]), "app", 1)
    with pytest.raises(RecordTooLargeError, match="1001"):
        parts.stage(encoded([bytes(1001)]), "app", 1)
    assert staged(path) == []


def test_an_error_that_is_none_of_ours_is_in_the_log_there(
    path: Path, server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """And the task is told where to look."""
    with pytest.raises(RetryableError, match="its lines in the driver's log say more"):
        parts_of(server, path).stage(encoded([b"1"]), "app", "one")
    assert "a request of a task failed: ValueError" in caplog.text
    assert staged(path) == []


def test_another_version_of_holdfast_is_told_apart(path: Path, server: Served) -> None:
    """Its messages may have other columns."""
    import pyarrow as pa

    client: Any = parts_of(server, path)._client
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.spark.remote.client.MESSAGES", pa.schema([pa.field("payload", pa.string())]))
        with pytest.raises(UsageError, match="install the same on each machine"):
            client.stage("app", 1, [])


# -- Bytes and time --------------------------------------------------------------------------------------------------


def test_a_task_with_many_rows_stages_several_parts_in_small_pieces(
    path: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is cut when it has enough, each piece that is sent too; all are committed as one, in order."""
    monkeypatch.setattr("holdfast.spark.writing.staging.Staging.__init__.__kwdefaults__", {"part_bytes": 5000})
    monkeypatch.setattr("holdfast.spark.remote.parts.CHUNK_BYTES", 100)
    body: list[bytes | Put] = [b"%04d" % number for number in range(4000)]
    body[77] = Put(b"large" * 100, headers={"kind": "x"})
    parts = parts_of(server, path)
    ids = parts.stage(encoded(body[:1500], body[1500:]), "app", 1)
    assert len(ids) == 4
    assert parts.stage(encoded(), "app", 2) == ()
    commit_parts(path, ids)
    found = messages(path)
    assert [each.payload for each in found] == [each.payload if isinstance(each, Put) else each for each in body]
    assert {place for place, each in enumerate(found) if each.headers} == {77}


def test_a_delay_counts_on_the_clock_of_the_queue(path: Path, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task's machine may be an hour behind."""
    real = time.time_ns
    monkeypatch.setattr("holdfast.spark.remote.parts.time", SimpleNamespace(time_ns=lambda: real() - 3600 * 10**9))
    with closing(parts_of(server, path)) as parts:
        assert abs(parts.clock.time_ns() - real()) > 3000 * 10**9
        assert parts.latest("app") is None
        assert abs(parts.clock.time_ns() - real()) < 100 * 10**9
