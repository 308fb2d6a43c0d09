"""The range server and its client: the same rows and the same errors as from a disk, and nothing without a token."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import ConfigError, HoldfastError, QueueNotFoundError
from holdfast.errors import RetryableError
from holdfast.persistence.filesystem.layout import DataFileName, open_directory
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.persistence.format.report import Damage
from support.arrow.range_rows import read_parts
from support.arrow.reused_files import OnRead, begin_anew
from support.builders.clocks import FakeClock
from support.builders.small_queues import SmallQueue, build, payload
from support.spark.range_servers import Served, served
from support.storages.simulated_storage import SimulatedStorage

pytestmark = pytest.mark.usefixtures("arrow_packages")


@pytest.fixture(scope="module")
def template() -> SmallQueue:
    """Return a closed queue of three data files; copy it, do not change it."""
    return build(Path("/queue"), SimulatedStorage(), taken_count=3)


@pytest.fixture
def queue(template: SmallQueue) -> SmallQueue:
    """Return such a queue to be damaged."""
    return template.copy()


def grant_for(queue: SmallQueue, **fields: Any) -> Any:
    """Return the right to read a queue."""
    from holdfast.spark.remote.grant import Grant

    _, queue_id, _ = open_directory(queue.storage, queue.root, create=False, writable=False)
    return Grant(queue.root, queue_id, **fields)


def client_of(place: Any) -> Any:
    """Return a client of a place."""
    from holdfast.spark.remote.client import RangeClient

    return RangeClient(place)


def files_of(server: Served, queue: SmallQueue) -> Any:
    """Return what opens the files of a queue through a server."""
    from holdfast.spark.remote.files import RemoteFiles

    return RemoteFiles(client_of(server.place(grant_for(queue))))


@pytest.fixture
def server(queue: SmallQueue) -> Iterator[Served]:
    """Return a server of the queue."""
    with served(queue.storage) as one:
        yield one


# -- As from a disk --------------------------------------------------------------------------------------------------


def test_every_message_is_read_once(queue: SmallQueue, server: Served) -> None:
    """As it was put; from any offset on, through the index of a seal too."""
    everything = {offset: payload(offset) for offset in range(queue.put_count)}
    files = files_of(server, queue)
    assert read_parts(queue.storage, queue.root, files=files) == (everything, [])
    for start in range(queue.put_count):
        assert min(read_parts(queue.storage, queue.root, files=files, offset_start=start)[0]) == start


def test_large_records_and_small_chunks_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a read, a message of the stream and a record begin and end with."""
    from holdfast.arrow.reading import file_range_reader
    from holdfast.spark.remote import files
    from holdfast.spark.serving import server as serving

    queue = build(tmp_path / "queue", OsStorage())
    with queue.open() as opened:
        opened.put(b"large" * 300)
    expected = read_parts(queue.storage, queue.root)
    with served(OsStorage()) as server:
        for read_bytes, sent_bytes in ((200, 77), (200, 2000), (5000, 333)):
            monkeypatch.setattr(file_range_reader, "CHUNK_BYTES", read_bytes)
            monkeypatch.setattr(files, "_STREAM_BYTES_MIN", read_bytes)
            monkeypatch.setattr(serving, "CHUNK_BYTES", sent_bytes)
            assert read_parts(queue.storage, queue.root, files=files_of(server, queue)) == expected


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_queue_gives_the_rows_and_the_losses_that_a_disk_gives(
    template: SmallQueue, data: st.DataObject
) -> None:
    """Bits are flipped, a file is cut or removed."""
    queue = template.copy()
    path = data.draw(st.sampled_from(queue.data_files()))
    size = len(queue.read(path))
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, 700) | st.integers(FRAMES_START, size - 1))
        queue.flip(path, position, data.draw(st.integers(0, 7)))
    if data.draw(st.booleans()):
        queue.write(path, queue.read(path)[: data.draw(st.integers(0, size))])
    start = data.draw(st.integers(0, queue.put_count))

    def read(files: Any) -> object:
        try:
            return read_parts(queue.storage, queue.root, files=files, offset_start=start)
        except HoldfastError as error:
            return type(error), str(error)

    with served(queue.storage) as server:
        assert read(files_of(server, queue)) == read(None)


@pytest.mark.parametrize("before", [True, False])
def test_a_file_that_is_reused_while_it_is_read_gives_no_row(queue: SmallQueue, before: bool) -> None:
    """The header that comes with the bytes was read after them."""
    path = queue.data_files()[1]
    storage: Any = OnRead(queue.storage, lambda: begin_anew(queue, path), before=before)
    with served(storage) as server, pytest.raises(RetryableError, match="was consumed"):
        read_parts(queue.storage, queue.root, files=files_of(server, queue), offset_start=first_of(queue, 1))


def test_a_file_that_is_reused_between_two_reads_gives_no_row_more(queue: SmallQueue) -> None:
    """What the stream has brought before counts for what it brought, and not for what a later one brings."""
    from holdfast.spark.remote.files import RemoteFiles

    path = queue.data_files()[1]
    with served(queue.storage) as server:
        file = RemoteFiles(client_of(server.place(grant_for(queue)))).open(path)
        old = file.read_at(FRAMES_START, 0)
        assert file.read_at(50, FRAMES_START) == queue.read(path)[FRAMES_START : FRAMES_START + 50]
        assert file.read_at(FRAMES_START, 0) == old
        begin_anew(queue, path)
        file.read_at(50, FRAMES_START + 100)
        assert file.read_at(FRAMES_START, 0) != old
        queue.storage.remove(path)
        assert (file.read_at(50, FRAMES_START), file.read_at(FRAMES_START, 0)) == (b"", b"")
        file.close()


def first_of(queue: SmallQueue, number: int) -> int:
    """Return the first offset of a data file."""
    return queue.header(queue.data_files()[number]).first_offset


def test_a_file_is_not_written_through_a_server(queue: SmallQueue, server: Served) -> None:
    """It has no verb for that."""
    with pytest.raises(OSError, match="Read-only"):
        files_of(server, queue).open(queue.data_files()[0], writable=True)


# -- Who may ask for what --------------------------------------------------------------------------------------------


def test_a_request_without_the_token_of_a_plan_is_refused(queue: SmallQueue, server: Served) -> None:
    """Whatever it asks for; that of a plan that is over too."""
    place = server.place(grant_for(queue))
    with pytest.raises(RetryableError, match="refuses the token of this plan: plan again"):
        client_of(replace(place, token="x" * 43))
    client = client_of(place)
    server.grants.forget(place.token)
    name = DataFileName(1, 0)
    asks = [lambda: client.open(name), lambda: list(client.chunks(name, 0, 0)), lambda: client.require_log(name)]
    for ask in asks:
        with pytest.raises(RetryableError, match="refuses the token"):
            ask()


def test_a_server_with_another_certificate_gets_no_token(queue: SmallQueue, server: Served) -> None:
    """It may be another process at a port that has become free."""
    place = server.place(grant_for(queue))
    with served(queue.storage) as other, pytest.raises(RetryableError, match="does not answer"):
        client_of(replace(place, port=other.server.port))


def test_of_several_hosts_the_one_that_answers_is_asked(queue: SmallQueue, server: Served) -> None:
    """A machine has names that others do not know."""
    place = replace(server.place(grant_for(queue)), hosts=("unknown.invalid", "127.0.0.1"))
    assert client_of(place).open(DataFileName(1, 0))[0] == len(queue.read(queue.data_files()[0]))


def test_a_token_is_good_for_its_own_queue(queue: SmallQueue, server: Served) -> None:
    """And for that one alone, if another one is in its place: nothing of that is sent."""
    other = client_of(server.place(replace(grant_for(queue), queue_id=bytes(16))))
    for ask in (lambda: other.open(DataFileName(1, 0)), lambda: list(other.chunks(DataFileName(1, 0), 0, 0))):
        with pytest.raises(ConfigError, match="is not the one that was planned"):
            ask()
    with pytest.raises(QueueNotFoundError, match="no queue at /elsewhere"):
        client_of(server.place(replace(grant_for(queue), root=Path("/elsewhere")))).open(DataFileName(1, 0))


def test_files_are_asked_for_by_number(queue: SmallQueue, server: Served) -> None:
    """A path is no number, and no other file of the machine is read."""
    client = client_of(server.place(grant_for(queue)))
    for wrong in ("../queue.json", ["../../etc/passwd", 0], [1, "0/../../x"], None):
        with pytest.raises(RetryableError, match="failed"):
            client._ask("open", file=wrong)
    with pytest.raises(RetryableError, match="failed"):
        client._ask("remove", file=DataFileName(1, 0))


def test_a_plan_that_is_no_drain_notes_no_loss(queue: SmallQueue, server: Served) -> None:
    """Notes would finish messages."""
    damage = Damage(queue.root, 1, 2, range(3, 5), "damaged", "rot")
    with pytest.raises(RetryableError, match="notes no losses"):
        client_of(server.place(grant_for(queue))).note_loss(damage)


def test_errors_of_the_disk_there_come_out_here(queue: SmallQueue) -> None:
    """With their own words and class."""

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(queue.storage, name)

        def open(self, path: Path, *, create: bool = False, writable: bool = True) -> Any:
            if path.suffix == ".data":
                raise OSError(5, "Input/output error", str(path))
            return queue.storage.open(path, create=create, writable=writable)

    storage: Any = Failing()
    with served(storage) as server:
        client = client_of(server.place(grant_for(queue)))
        for ask in (lambda: client.open(DataFileName(1, 0)), lambda: list(client.chunks(DataFileName(1, 0), 0, 0))):
            with pytest.raises(HoldfastError, match=r"reading failed: .*Input/output error") as raised:
                ask()
            assert raised.value.code == "storage"


def test_a_grant_travels_whole() -> None:
    """From driver to server, and a place from driver to task."""
    from holdfast.spark.remote.grant import Grant
    from holdfast.spark.remote.place import Place

    for grant in (Grant(Path("/q"), b"1" * 16), Grant(Path("/q"), b"1" * 16, Path("/q/groups/g"), "drain-1")):
        assert Grant.from_text(grant.to_text()) == grant
    place = Place(("a", "b"), 7, b"certificate", "secret")
    assert Place.from_text(place.to_text()) == place
    assert "secret" not in f"{place} {place!r}"


# -- How long a server stays -----------------------------------------------------------------------------------------


def test_a_server_is_needed_until_some_time_after_the_last_request(queue: SmallQueue) -> None:
    """A plan that was not asked for yet may be, however late; a request that is under way is not over."""
    from holdfast.spark.serving.grants import Grants

    clock = FakeClock()
    grants = Grants(clock)
    clock.advance(5)
    assert grants.idle_seconds() == 5
    token = grants.add(grant_for(queue), is_kept=False)
    clock.advance(5000)
    assert grants.idle_seconds() == 0
    assert grants.find(token) == grant_for(queue)
    with grants.request():
        clock.advance(70)
        assert grants.idle_seconds() == 0
    clock.advance(20)
    assert grants.idle_seconds() == 20
    assert grants.add(grant_for(queue), is_kept=False) == token, "the plan of the next batch is like this one"
    assert grants.idle_seconds() == 0
    assert grants.find("another") is None


def test_a_plan_is_kept_until_it_is_forgotten_or_its_process_has_ended(queue: SmallQueue) -> None:
    """A drain may read its batch again after an hour."""
    from holdfast.spark.serving.grants import Grants

    clock = FakeClock()
    grants = Grants(clock)
    tokens = [grants.add(grant_for(queue, batch_id=each), is_kept=True) for each in ("a", "b")]
    for token in tokens:
        grants.find(token)
    clock.advance(3600)
    grants.forget(tokens[0])
    assert grants.idle_seconds() == 0
    grants.keep_writes()
    assert grants.idle_seconds() == 3600


def test_a_plan_that_no_task_asks_for_waits_for_a_bounded_time_once_its_process_has_ended(queue: SmallQueue) -> None:
    """All of its tasks may see the queue; and each process that plans takes a port."""
    from holdfast.spark.serving.grants import UNASKED_SECONDS, Grants

    clock = FakeClock()
    grants = Grants(clock)
    grants.add(grant_for(queue), is_kept=False)
    write = grants.add(grant_for(queue, write_id="write"), is_kept=True)
    clock.advance(2 * UNASKED_SECONDS)
    grants.keep_writes()
    grants.forget(write)
    clock.advance(UNASKED_SECONDS - 1)
    assert grants.idle_seconds() == 0
    clock.advance(1)
    assert grants.idle_seconds() == 3 * UNASKED_SECONDS


def started(driver: int, idle_seconds: float, host: str = "127.0.0.1", port: int = 0) -> Any:
    """Start the process of a range server."""
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.spark.serving", host, str(port), "2", str(driver), str(idle_seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_process_ends_when_it_is_not_needed_any_more() -> None:
    """By itself."""
    process = started(os.getpid(), 0.1)
    assert b"port" in process.stdout.readline()
    assert process.wait(60) == 0
    process.communicate()


def test_the_process_ends_with_its_driver(queue: SmallQueue) -> None:
    """Even if a plan of it waits for its first request."""
    import json

    driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = started(driver.pid, 3600)
    process.stdout.readline()
    asked = {"grant": grant_for(queue).to_text(), "is_kept": True, "number": 1}
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["number"] == 1
    driver.communicate(b"\n")
    assert process.wait(60) == 0
    process.communicate()


def test_a_port_that_is_taken_is_passed_over_and_without_a_free_one_the_process_says_so() -> None:
    """Each process that plans has a server of its own."""
    import json

    first = started(os.getpid(), 3600, port=0)
    taken = json.loads(first.stdout.readline())["port"]
    second = started(os.getpid(), 0.1, port=taken)
    assert json.loads(second.stdout.readline())["port"] == taken + 1
    second.communicate()
    lost = started(os.getpid(), 0.1, host="192.0.2.1", port=taken)
    assert b"a range server cannot listen at 192.0.2.1, ports" in lost.communicate()[1]
    first.kill()
    first.communicate()


# -- When one is started ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("me", "me", 0),
        ("me:70", "me", 70),
        (":70", "", 70),
        ("::1", "::1", 0),
        ("[::1]", "::1", 0),
        ("[::1]:70", "::1", 70),
    ],
)
def test_an_address_to_serve_at_is_host_and_port(text: str, host: str, port: int) -> None:
    """Or one of them."""
    from holdfast.spark.remote.starting import ServeAddress

    assert ServeAddress.parse(text) == ServeAddress(host=host, port=port)


@pytest.mark.parametrize("text", ["", ":", "[]", "me:", "me:port", "me:0", "me:70000", "http://me", "a b"])
def test_any_other_address_is_refused(text: str) -> None:
    """When the read is planned."""
    from holdfast.spark.remote.starting import ServeAddress

    with pytest.raises(ConfigError, match="serveAddress is HOST, HOST:PORT, :PORT or off"):
        ServeAddress.parse(text)


@pytest.mark.parametrize(
    ("words", "is_local", "host"),
    [
        (["org.apache.spark.deploy.SparkSubmit", "--conf", "spark.master=local[2]", "pyspark-shell"], True, ""),
        (["org.apache.spark.deploy.SparkSubmit", "--master", "local", "app.py"], True, ""),
        (["org.apache.spark.deploy.SparkSubmit", "--master", "local-cluster[2,1,512]", "app.py"], False, ""),
        (
            ["org.apache.spark.", "--master", "local", "--conf", "spark.master=spark://me", "-Dspark.driver.host=me"],
            False,
            "me",
        ),
        (["org.apache.spark.deploy.SparkSubmit", "pyspark-shell"], False, ""),
    ],
)
def test_a_planner_knows_from_the_command_line_above_it_where_tasks_run(
    words: list[str], is_local: bool, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it does not say, they may run anywhere."""
    from holdfast.spark.remote import driver

    lines = {os.getppid(): "\0".join(["/usr/bin/java", "-cp", "jars/*", *words])}
    monkeypatch.setattr(driver, "_words", lambda process: lines.get(process, "python"))
    found = driver.planning_driver()
    assert found is not None
    assert (found.process, found.is_local, found.host) == (os.getppid(), is_local, host)
    assert found.hosts if host == "" else found.hosts == (host,)


def test_a_process_that_no_spark_has_started_plans_for_none() -> None:
    """As this one."""
    from holdfast.spark.remote.driver import planning_driver

    assert planning_driver() is None


def test_a_server_that_cannot_start_is_an_error_only_if_it_was_asked_for(
    queue: SmallQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else all machines may see the queue, and the log warns of those that do not."""
    from holdfast.spark.remote import starting
    from holdfast.spark.remote.driver import Driver

    monkeypatch.setattr(sys, "executable", "/bin/false")
    driver = Driver(os.getpid(), is_local=False)
    assert starting.announce(grant_for(queue), driver, None) is None
    assert "the range server did not start" in caplog.text
    assert starting.announce(grant_for(queue), replace(driver, is_local=True), None) is None
    with pytest.raises(HoldfastError, match="the range server did not start"):
        starting.announce(grant_for(queue), driver, starting.ServeAddress(host="127.0.0.1"))
