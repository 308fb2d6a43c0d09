"""Many queues as one table: which they are, what each row says of its queue, and what tasks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, CorruptionError, PersistentQueue, QueueNotFoundError
from holdfast.arrow import scan
from holdfast.arrow.reading.many_queues import take_snapshots
from holdfast.arrow.reading.partitions import pack
from holdfast.arrow.reading.selection import Selection
from holdfast.persistence.filesystem.storage import OsStorage
from support.builders.small_queues import build

pytestmark = pytest.mark.extra("arrow")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of three queues, with files and directories that are none."""
    for place, name in enumerate(("orders-a", "orders-b", "returns")):
        with PersistentQueue(tmp_path / "data" / name) as queue:
            queue.put_many([f"{name} {number}".encode() for number in range(place + 2)])
    (tmp_path / "data" / "orders-file").write_text("no queue")
    (tmp_path / "data" / "orders-directory").mkdir()
    (tmp_path / "data" / ".orders-hidden").mkdir()
    return tmp_path / "data"


def found(data: Path, queues: str, **options: Any) -> list[tuple[str, int, bytes]]:
    """Return queue, offset and payload of each row."""
    rows = scan(data, queues=queues, columns=["queue", "offset", "payload"], **options).read_all().to_pylist()
    return [(row["queue"], row["offset"], row["payload"]) for row in rows]


def expected(**counts: int) -> list[tuple[str, int, bytes]]:
    """Return rows of so many messages of each queue."""
    names = {name.replace("_", "-"): count for name, count in counts.items()}
    return [(name, at, f"{name} {at}".encode()) for name, count in names.items() for at in range(count)]


@pytest.mark.parametrize(
    ("queues", "names"),
    [
        ("orders-*", {"orders_a": 2, "orders_b": 3}),
        ("*", {"orders_a": 2, "orders_b": 3, "returns": 4}),
        ("returns, orders-[b]", {"orders_b": 3, "returns": 4}),
        ("orders-?,orders-a", {"orders_a": 2, "orders_b": 3}),
        ("returns", {"returns": 4}),
    ],
)
def test_every_row_has_the_name_of_its_queue(data: Path, queues: str, names: dict[str, int]) -> None:
    """Queues come in the order of their names, each once, and what is no queue is left out."""
    assert found(data, queues) == expected(**names)


def test_offsets_and_groups_are_those_of_each_queue(data: Path) -> None:
    """The same bound for each of them; the group has to be in each."""
    assert found(data, "*", start=1, stop=3) == [row for row in expected(orders_a=2, orders_b=3, returns=3) if row[1]]
    for name in ("orders-a", "orders-b"):
        with PersistentQueue(data / name) as queue:
            queue.get(timeout=0)
    assert found(data, "orders-*", group="default") == [row for row in expected(orders_a=2, orders_b=3) if row[1]]


def test_a_filter_may_name_the_queue(data: Path) -> None:
    """As any column."""
    import pyarrow.compute as pc

    assert found(data, "*", filter=pc.field("queue") == "returns") == expected(returns=4)


@pytest.mark.parametrize(
    ("queues", "error", "said"),
    [
        ("order-*", QueueNotFoundError, "no queue of .* is called 'order-.': there are orders-a, orders-b, returns"),
        ("orders-a,orders-c", QueueNotFoundError, "no queue of .* is called 'orders-c'"),
        ("orders-file", QueueNotFoundError, "no queue of .* is called 'orders-file'"),
        ("orders-directory,*", QueueNotFoundError, "no queue of .* is called 'orders-directory'"),
        ("../data/*", ConfigError, "names in one directory"),
        (".orders-*", ConfigError, "names in one directory"),
        ("", ConfigError, "cannot name a queue"),
        ("orders a", ConfigError, "cannot name a queue"),
    ],
)
def test_a_pattern_that_names_no_queue_is_an_error(data: Path, queues: str, error: type[Exception], said: str) -> None:
    """It names the pattern, and what is there."""
    with pytest.raises(error, match=said):
        scan(data, queues=queues)


def test_a_directory_without_queues_and_a_missing_one_are_told_apart(tmp_path: Path) -> None:
    """Both are errors."""
    with pytest.raises(QueueNotFoundError, match="'x': there is no queue"):
        scan(tmp_path, queues="x")
    with pytest.raises(QueueNotFoundError, match="there is no directory"):
        scan(tmp_path / "missing", queues="*")


def test_of_very_many_queues_the_error_lists_some(tmp_path: Path) -> None:
    """And counts the others."""
    for number in range(12):
        (tmp_path / f"q{number:02d}").mkdir()
        (tmp_path / f"q{number:02d}" / "queue.json").touch()
    with pytest.raises(QueueNotFoundError, match=r"q00, .*q09 and 2 more"):
        scan(tmp_path, queues="orders")


def test_a_damaged_queue_is_an_error_and_none_is_left_out(data: Path) -> None:
    """A pattern does not hide that a queue cannot be read."""
    (data / "orders-b" / "queue.json").write_text("{")
    for entry in (*(data / "orders-b" / "data").iterdir(), data / "orders-b" / "write.mark"):
        entry.unlink()  # so nothing else has its id
    with pytest.raises(CorruptionError):
        scan(data, queues="orders-*")


def test_small_queues_share_tasks_and_each_message_is_in_one(tmp_path: Path) -> None:
    """Hundreds of queues do not make hundreds of tasks; a task has the parts of a queue in the order of the log."""
    storage = OsStorage()
    for number in range(40):
        build(tmp_path / f"q{number:02d}", storage, file_count=2)
    snapshots = take_snapshots(storage, Selection(tmp_path), "q*")
    queues = [(each.root, each.parts) for each in snapshots]
    assert len(queues) == 40
    assert len(pack(storage, queues, 2**30)) == 1
    tasks = pack(storage, queues, 2**17)
    assert 1 < len(tasks) < 40
    together = [(number, part) for task in tasks for number, parts in task for part in parts]
    assert together == [(number, part) for number, (_, parts) in enumerate(queues) for part in parts]
    assert any(len(task) > 1 for task in tasks)
    assert all(len({number for number, _ in task}) == len(task) for task in tasks)
