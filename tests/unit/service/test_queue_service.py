"""What a service opens, refuses, and closes."""

import os
import stat
from itertools import count
from pathlib import Path

import pytest

from holdfast import ClosedError, ConfigError, ForkedError, PersistentQueue, QueueLockedError
from holdfast.service.queue_service import QueueService
from support.processes.children import Child
from support.processes.interruptions import without_hanging
from support.storages.simulated_storage import SimulatedStorage


def test_queues_are_directories_of_the_service(service: QueueService) -> None:
    """Plain queues that are private to their owner, each opened once."""
    orders = service.queue("orders")
    assert orders.path == service.path / "orders"
    assert service.queue("orders") is orders
    assert service.queues == {"orders": orders}
    assert stat.S_IMODE(os.stat(service.path).st_mode) == 0o700
    orders.put({"number": 1})
    service.close()
    with PersistentQueue(orders.path, mode="exclusive") as raw:
        assert raw.get() == b'{"number":1}'


def test_a_service_locks_and_makes_nothing_before_a_queue_is_opened(tmp_path: Path) -> None:
    """So a module may make one where it is imported."""
    with QueueService(tmp_path / "data", mode="exclusive"):
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "", "a\0b", "x" * 101, "catalog.db", "holdfast.toml", 7])
def test_a_name_that_cannot_be_a_queues_is_refused(service: QueueService, name: str) -> None:
    """Nothing is made."""
    with pytest.raises(ConfigError, match="queue"):
        service.queue(name)
    assert not service.path.exists()


def test_a_queue_may_be_named_again_with_what_it_was_opened_with(service: QueueService) -> None:
    """Or with less; anything else is refused by name."""
    orders = service.queue("orders", type=dict, lease_seconds=5)
    assert service.queue("orders", type=dict) is orders
    assert service.queue("orders", lease_seconds=5) is orders
    with pytest.raises(
        ConfigError, match=r"lease_seconds=5 \(\S+test_queue_service.py, line \d+\), not with lease_seconds=6:"
    ):
        service.queue("orders", lease_seconds=6)
    with pytest.raises(ConfigError, match=r"type=dict \(\S+test_queue_service.py, line \d+\), not with type=list:"):
        service.queue("orders", type=list)
    with pytest.raises(ConfigError, match=r"max_deliveries=5 \(the default\), not with max_deliveries=3:"):
        service.queue("orders", max_deliveries=3)


def test_the_configuration_counts_where_the_program_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file for operators, and variables."""
    tmp_path.joinpath("holdfast.toml").write_text("[queues.mail]\nbackoff = []\n")
    monkeypatch.setenv("HOLDFAST_MAIL__MAXSIZE", "1")
    with QueueService(tmp_path, mode="exclusive", catalog=False) as service:
        mail = service.queue("mail", max_deliveries=2)
        mail.put("one")
        assert mail.raw.full()
        mail.receive(timeout=0).nack()
        assert len(mail.dead) == 0
        mail.receive(timeout=0).nack()
        assert len(mail.dead) == 1


def test_a_bad_configuration_is_found_when_the_service_is_made(tmp_path: Path) -> None:
    """With its file, line and key."""
    tmp_path.joinpath("holdfast.toml").write_text('[defaults]\nlease_seconds = "soon"\n')
    with pytest.raises(ConfigError, match=r"holdfast\.toml, line 2: defaults\.lease_seconds"):
        QueueService(tmp_path, mode="exclusive")


def test_a_serializer_of_ones_own_is_named_like_the_others(tmp_path: Path) -> None:
    """One class, one argument."""

    class Reversed:
        name = "reversed"
        content_type = "text/x-reversed"

        def encode(self, body: str) -> bytes:
            return body[::-1].encode()

        def decode(self, payload: bytes, type: object) -> str:
            return payload.decode()[::-1]

    with QueueService(tmp_path, mode="exclusive", serializers=[Reversed()], catalog=False) as service:
        words = service.queue("words", serializer="reversed")
        words.put("stressed")
        assert words.raw.peek()[0].payload == b"desserts"
        assert words.receive(timeout=0).body == "stressed"


def test_an_unknown_serializer_is_refused_before_anything_is_made(service: QueueService) -> None:
    """With the names of those that are known."""
    with pytest.raises(ConfigError, match="json"):
        service.queue("orders", serializer="yaml")
    assert not service.path.exists()


def test_pickles_are_refused_unless_they_are_allowed(service: QueueService) -> None:
    """Naming the serializer is not enough, and allowing it warns."""
    with pytest.raises(ConfigError, match="allow_pickle"):
        service.queue("jobs", serializer="pickle")
    with pytest.warns(UserWarning, match="pickle"):
        jobs = service.queue("jobs", serializer="pickle", allow_pickle=True)
    jobs.put({1, 2})
    assert jobs.receive(timeout=0).body == {1, 2}


def test_a_pickle_that_nobody_asked_for_is_a_dead_letter(service: QueueService) -> None:
    """It is not looked into."""
    with pytest.warns(UserWarning, match="pickle"):
        jobs = service.queue("jobs", serializer="pickle", allow_pickle=True)
    jobs.put({1, 2})
    service.close()
    with QueueService(service.path, mode="exclusive", catalog=False) as other:
        plain = other.queue("jobs")
        plain.put("next")
        assert plain.receive(timeout=0).body == "next"
        assert "allow_pickle" in plain.dead.list(reason="undecodable")[0].detail


def test_an_unknown_content_type_is_a_dead_letter_that_says_which(service: QueueService) -> None:
    """Bytes of somebody else's serializer."""
    queue = service.queue("orders")
    queue.raw.put(b"- yaml", headers={"content-type": "application/yaml"})
    queue.put("next")
    assert queue.receive(timeout=0).body == "next"
    assert "application/yaml" in queue.dead.list(reason="undecodable")[0].detail


def test_a_queue_that_another_process_owns_is_refused_and_may_be_opened_later(service: QueueService) -> None:
    """The failed attempt leaves nothing behind."""
    with PersistentQueue(service.path.parent / "owner", mode="exclusive") as owner:
        (service.path).mkdir()
        (service.path / "orders").symlink_to(owner.path)
        with pytest.raises(Exception, match="symbolic link"):
            service.queue("orders")
    with PersistentQueue(service.path / "jobs", mode="exclusive"), pytest.raises(QueueLockedError):
        service.queue("jobs")
    assert service.queue("jobs").stats().depth == 0


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """It stays as it is."""
    tmp_path.joinpath("data").write_text("mine")
    with (
        pytest.raises(Exception, match="data"),
        QueueService(tmp_path / "data", mode="exclusive", catalog=False) as service,
    ):
        service.queue("orders")
    assert tmp_path.joinpath("data").read_text() == "mine"


def test_a_closed_service_says_so(service: QueueService) -> None:
    """Its queues too; closing again does nothing."""
    orders = service.queue("orders")
    service.close()
    service.close()
    for call in (lambda: service.queue("orders"), service.transaction, lambda: orders.put(1), orders.receive):
        with pytest.raises(ClosedError):
            call()
    assert "closed" in repr(service)


def test_the_default_mode_is_that_of_the_queue_below(tmp_path: Path) -> None:
    """It is said there only; a queue may have another one than its service."""
    with (
        PersistentQueue(tmp_path / "plain") as plain,
        QueueService(tmp_path / "data", catalog=False) as service,
        QueueService(tmp_path / "shared", mode="shared", catalog=False) as shared,
    ):
        assert service.queue("orders").raw.mode == plain.mode
        assert shared.queue("orders").raw.mode == "shared"
        assert shared.queue("mine", mode="exclusive").raw.mode == "exclusive"


def test_modes_are_those_of_the_queue_below(tmp_path: Path) -> None:
    """Two share a queue, and a third looks; one that owns a queue alone keeps others out."""
    with (
        QueueService(tmp_path, mode="shared", catalog=False) as service,
        QueueService(tmp_path, mode="shared", catalog=False) as other,
        QueueService(tmp_path, mode="read_only", catalog=False) as third,
    ):
        service.queue("orders").put(1)
        assert other.queue("orders").receive(timeout=5).body == 1
        service.queue("orders").put(2)
        assert third.queue("orders").peek(2)[-1].payload == b"2"
        other.queue("mine", mode="exclusive")
        with pytest.raises(QueueLockedError, match="mode='shared'"):
            service.queue("mine")


def test_closing_again_closes_what_an_interruption_has_left_open(
    service: QueueService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its locks would be held until the process ends."""
    orders = service.queue("orders")
    close = orders.close
    calls = count()

    def interrupted() -> None:
        if not next(calls):
            raise KeyboardInterrupt
        close()

    monkeypatch.setattr(orders, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        service.close()
    service.close()
    PersistentQueue(orders.path, mode="exclusive").close()


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(service: QueueService) -> None:
    """One that is opening a queue just then; the child hears that the queues are its parent's."""
    orders = service.queue("orders")

    def use() -> None:
        with pytest.raises(ForkedError):
            service.queue("orders").put(1)
        service.close()

    with service._lock:
        child = Child(lambda: without_hanging(use))
    assert child.wait() == 0
    orders.put(2)


@pytest.mark.parametrize("path", ["/data", "/deep/below/data"])
def test_a_new_service_directory_survives_a_loss_of_power_with_its_first_put(path: str) -> None:
    """The names of the directories that the service made are on the disk before the put returns."""
    storage = SimulatedStorage()
    with QueueService(path, mode="exclusive", storage=storage, catalog=False) as service:
        service.queue("orders").put("order")
        lost = storage.crash_dropping_unsynced()
    with QueueService(path, mode="exclusive", storage=lost, catalog=False) as service:
        assert service.queue("orders").get(timeout=0) == "order"


@pytest.mark.parametrize(("bits", "is_refused"), [(0o777, True), (0o1777, True), (0o775, False), (0o700, False)])
def test_a_service_is_not_kept_where_every_user_may_write(tmp_path: Path, bits: int, is_refused: bool) -> None:
    """Each could put a configuration there; one that only looks changes nothing, and takes that for what it is."""
    tmp_path.chmod(bits)
    with QueueService(tmp_path) as service:
        if is_refused:
            with pytest.raises(ConfigError, match=f"chmod o-w {tmp_path}"):
                service.queue("q")
            assert list(tmp_path.iterdir()) == []
        else:
            service.queue("q").put(1)
