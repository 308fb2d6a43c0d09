"""Batches as directories: whole or not there, each format readable, rows divided as Hive does."""

from __future__ import annotations

import base64
import datetime as dt
import errno
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import ConfigError, DiskFullError, PersistentQueue, Put, StorageError
from holdfast.arrow import DirectoryWriter, drain, scan
from holdfast.arrow.writing.storage_file import StorageFile
from support.models.crash_choices import ByKind
from support.storages.disk_operations import NameOperation, Rename
from support.storages.faults import FaultPlan
from support.storages.simulated_storage import SimulatedStorage

pytestmark = pytest.mark.extra("arrow")

ID = "drain-0"
OUT = Path("/out")
KEYS = ["a", "b/c=d", None, "é ü"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue of 40 messages with headers and order keys."""
    with PersistentQueue(tmp_path / "q") as queue:
        queue.put_many(
            [Put(bytes([number, 255]), headers={"n": str(number)}, order_key=KEYS[number % 4]) for number in range(40)]
        )
    return tmp_path / "q"


def table(**columns: Any) -> Any:
    """Return a reader of some rows, in two record batches."""
    import pyarrow as pa

    rows = pa.table(columns)
    return pa.Table.from_batches([*rows[:1].to_batches(), *rows[1:].to_batches()], rows.schema).to_reader()


def read(out: Path, file_format: str = "parquet") -> Any:
    """Return all rows below a directory, ordered by their offset."""
    from pyarrow import dataset

    return dataset.dataset(out, format=file_format, partitioning="hive").to_table().sort_by("offset")


def names(out: Path) -> list[str]:
    """Return the paths of all files below a directory."""
    return sorted(str(each.relative_to(out)) for each in out.rglob("*") if each.is_file())


# -- Formats -----------------------------------------------------------------------------------------------------------


def test_parquet_has_the_rows_of_the_queue(path: Path, tmp_path: Path) -> None:
    """All columns, in files that a batch is the directory of."""
    report = drain(path, DirectoryWriter(tmp_path / "out"), group="night", max_messages=30)
    written = read(tmp_path / "out")
    rows = scan(path, group=None).read_all()
    assert written["payload"].to_pylist() == rows["payload"].to_pylist()
    assert [dict(each) for each in written["headers"].to_pylist()] == [{"n": str(number)} for number in range(40)]
    assert set(written["batch_id"].to_pylist()) == set(report.batch_ids)
    assert names(tmp_path / "out") == sorted(
        f"batch_id={batch_id}/{name}" for batch_id in report.batch_ids for name in ("_SUCCESS", "part-0.parquet")
    )


def test_json_has_a_line_for_each_message(path: Path, tmp_path: Path) -> None:
    """Payloads in Base64, headers as an object, times in ISO 8601; nulls are left out."""
    DirectoryWriter(tmp_path / "out", "json")(scan(path), ID)
    lines = (tmp_path / "out" / f"batch_id={ID}" / "part-0.json").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [base64.b64decode(each["payload"]) for each in found] == [bytes([number, 255]) for number in range(40)]
    assert [each["headers"] for each in found] == [{"n": str(number)} for number in range(40)]
    assert [each.get("order_key") for each in found] == KEYS * 10
    assert "delivery_count" not in found[0]
    assert dt.datetime.fromisoformat(found[0]["timestamp"]).tzinfo == dt.UTC


def test_csv_has_a_line_of_names_and_one_for_each_message(path: Path, tmp_path: Path) -> None:
    """Payloads in Base64, headers as JSON."""
    DirectoryWriter(tmp_path / "out", "csv")(scan(path), ID)
    found = read(tmp_path / "out", "csv").to_pylist()
    assert [base64.b64decode(each["payload"]) for each in found] == [bytes([number, 255]) for number in range(40)]
    assert [json.loads(each["headers"]) for each in found] == [{"n": str(number)} for number in range(40)]


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
@pytest.mark.parametrize("partition_by", [[], ["part"]])
def test_other_layouts_of_text_and_bytes_are_written_as_the_plain_ones(
    tmp_path: Path, file_format: Any, partition_by: list[str]
) -> None:
    """Dictionaries, views, bytes of one size and runs of one value; bytes are Base64 in JSON and CSV."""
    import pyarrow as pa

    texts, raw = pa.array(["a", 'b"c', "a"]), pa.array([b"\xff1", b"22", b"\xff1"])
    columns = {
        "text": texts.dictionary_encode(),
        "text_view": texts.cast(pa.string_view()),
        "text_run": pa.RunEndEncodedArray.from_arrays([1, 2, 3], texts),
        "raw": raw.dictionary_encode(),
        "raw_sized": raw.cast(pa.binary(2)),
        "raw_sized_more": raw.cast(pa.binary(2)).dictionary_encode(),
        "raw_view": raw.cast(pa.binary_view()),
        "raw_run": pa.RunEndEncodedArray.from_arrays([1, 2, 3], raw),
    }
    rows = table(offset=[1, 2, 3], part=pa.array(["x"] * 3, pa.string_view()), **columns)
    DirectoryWriter(tmp_path / "out", file_format, partition_by=partition_by)(rows, ID)
    found = read(tmp_path / "out", file_format)
    assert found["part"].to_pylist() == ["x"] * 3
    plain = (
        raw.to_pylist() if file_format == "parquet" else [base64.b64encode(each).decode() for each in raw.to_pylist()]
    )
    for name in columns:
        assert found[name].to_pylist() == (plain if name.startswith("raw") else texts.to_pylist())


def test_csv_spells_nested_values_as_json(tmp_path: Path) -> None:
    """And leaves a null empty."""
    DirectoryWriter(tmp_path / "out", "csv")(table(a=[[1, 2], None, []], b=[{"c": 1}, None, {"c": None}]), ID)
    text = (tmp_path / "out" / f"batch_id={ID}" / "part-0.csv").read_text()
    assert text.splitlines()[1:] == ['"[1,2]","{""c"":1}"', ",", '"[]","{""c"":null}"']


def test_maps_are_objects_at_any_depth(tmp_path: Path) -> None:
    """In JSON lines and in the JSON of CSV: inside of structs, of lists and of each other; their keys are strings."""
    import pyarrow as pa

    counts = pa.map_(pa.string(), pa.int64())
    kind = pa.struct(
        [
            ("by_name", counts),
            ("listed", pa.list_(pa.struct([("more", counts), ("id", pa.int64())]))),
            ("nested", pa.map_(pa.int64(), pa.map_(pa.date32(), counts))),
            ("sized", pa.list_(counts, 1)),
        ]
    )
    rows = [
        {
            "by_name": [("a", 1)],
            "listed": [{"more": [("b", 2), ("c", None)], "id": 7}, None],
            "nested": [(5, [(dt.date(2026, 1, 2), [("d", 3)])])],
            "sized": [[("e", 4)]],
        },
        {"by_name": None, "listed": None, "nested": [], "sized": None},
        None,
    ]
    expected = [
        {
            "by_name": {"a": 1},
            "listed": [{"more": {"b": 2, "c": None}, "id": 7}, None],
            "nested": {"5": {"2026-01-02": {"d": 3}}},
            "sized": [{"e": 4}],
        },
        {"by_name": None, "listed": None, "nested": {}, "sized": None},
        None,
    ]
    keys = [[(True, b"x")], [(False, None)], []]
    columns = {"body": pa.array(rows, kind), "keys": pa.array(keys, pa.map_(pa.bool_(), pa.binary()))}
    for file_format in ("json", "csv"):
        DirectoryWriter(tmp_path / file_format, file_format)(table(offset=[0, 1, 2], **columns), ID)
    texts = read(tmp_path / "csv", "csv")["body"].to_pylist()
    assert [json.loads(each) if each else None for each in texts] == expected
    lines = (tmp_path / "json" / f"batch_id={ID}" / "part-0.json").read_text().splitlines()
    lines = [json.loads(line) for line in lines]
    assert [each.get("body") for each in lines] == expected
    assert [each["keys"] for each in lines] == [{"true": "eA=="}, {"false": None}, {}]


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_a_batch_without_rows_is_a_complete_directory(tmp_path: Path, file_format: Any) -> None:
    """Its file has the columns, where the format has columns."""
    import pyarrow as pa

    empty = pa.table({"offset": pa.array([], pa.int64())}).to_reader()
    DirectoryWriter(tmp_path / "out", file_format)(empty, ID)
    assert names(tmp_path / "out") == [f"batch_id={ID}/_SUCCESS", f"batch_id={ID}/part-0.{file_format}"]
    if file_format != "json":
        assert read(tmp_path / "out", file_format).num_rows == 0


def test_rows_are_collected_to_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one for each batch of a scan, which are small."""
    import pyarrow.parquet as pq

    from holdfast.arrow.writing import batch_files

    monkeypatch.setattr(batch_files, "GROUP_BYTES", 100)
    import pyarrow as pa

    batches = [pa.record_batch({"offset": [number] * 5}) for number in range(9)]  # 40 bytes each
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    DirectoryWriter(tmp_path / "out")(reader, ID)
    metadata = pq.read_metadata(tmp_path / "out" / f"batch_id={ID}" / "part-0.parquet")
    assert [metadata.row_group(each).num_rows for each in range(metadata.num_row_groups)] == [15, 15, 15]


# -- Partitions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
def test_rows_are_divided_by_values_as_hive_does(path: Path, tmp_path: Path, file_format: Any) -> None:
    """Whatever is in a value; null has a name of its own. Each directory has its rows in their order."""
    DirectoryWriter(tmp_path / "out", file_format, partition_by=["order_key"])(scan(path), ID)
    assert len(names(tmp_path / "out")) == 5
    written = read(tmp_path / "out", file_format)
    assert written["order_key"].to_pylist() == KEYS * 10
    for file in (tmp_path / "out").rglob(f"part-0.{file_format}"):
        offsets = read(file.parent, file_format)["offset"].to_pylist()
        assert offsets == sorted(offsets)
        assert len(offsets) == 10


@pytest.mark.parametrize(
    ("values", "spelled"),
    [
        ([True, False, None], ["__HIVE_DEFAULT_PARTITION__", "false", "true"]),
        ([b"a/b", "é ü".encode(), b""], ["__HIVE_DEFAULT_PARTITION__", "a%2Fb", "é ü"]),
        (
            ["12:30", "a=b{c]", "x\t'\"#%*?\\[^}\x7f"],
            ["12%3A30", "a%3Db%7Bc%5D", "x%09%27%22%23%25%2A%3F%5C%5B%5E}%7F"],
        ),
        ([-1, 20, 3], ["-1", "20", "3"]),
    ],
    ids=["booleans", "bytes", "text", "numbers"],
)
def test_values_are_spelled_as_spark_does_it(values: list[Any], spelled: list[str], tmp_path: Path) -> None:
    """Those that are spelled alike are in one directory."""
    DirectoryWriter(tmp_path / "out", partition_by=["v=w"])(table(**{"offset": [1, 2, 3], "v=w": values}), ID)
    assert sorted(each.name for each in (tmp_path / "out" / f"batch_id={ID}").glob("v*")) == [
        f"v%3Dw={each}" for each in spelled
    ]
    assert read(tmp_path / "out")["offset"].to_pylist() == [1, 2, 3]


def test_the_day_of_a_put_can_divide_rows(tmp_path: Path) -> None:
    """It is that of UTC. A column of that name goes first."""
    times = [dt.datetime(2026, 1, 31, 23, 59, 59, 999999, tzinfo=dt.UTC), dt.datetime(2026, 2, 1, tzinfo=dt.UTC)]
    DirectoryWriter(tmp_path / "a", partition_by=["date"])(table(offset=[1, 2], timestamp=times), ID)
    assert [each for each in names(tmp_path / "a") if "part" in each] == [
        f"batch_id={ID}/date=2026-01-31/part-0.parquet",
        f"batch_id={ID}/date=2026-02-01/part-0.parquet",
    ]
    DirectoryWriter(tmp_path / "b", partition_by=["date"])(table(offset=[1, 2], date=["x", ""], timestamp=times), ID)
    assert read(tmp_path / "b")["date"].to_pylist() == ["x", None]


def test_a_column_that_is_not_there_or_has_too_many_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of the batch is left."""
    from holdfast.arrow.writing import batch_files

    monkeypatch.setattr(batch_files, "PARTITIONS_MAX", 3)
    with pytest.raises(ConfigError, match="cannot be divided by 'day': they have offset"):
        DirectoryWriter(tmp_path / "out", partition_by=["day"])(table(offset=[1]), ID)
    with pytest.raises(ConfigError, match="more than 3 values of offset"):
        DirectoryWriter(tmp_path / "out", partition_by=["offset"])(table(offset=[1, 2, 3, 4], a=[1] * 4), ID)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_rows_that_the_files_would_not_have_are_refused(tmp_path: Path, file_format: Any) -> None:
    """A batch that was written is acknowledged: so nothing of it may be missing."""
    import pyarrow as pa

    def refused(rows: Any, match: str, *partition_by: str) -> None:
        with pytest.raises(ConfigError, match=match):
            DirectoryWriter(tmp_path / "out", file_format, partition_by=partition_by)(rows, ID)
        assert list((tmp_path / "out").iterdir()) == []

    refused(table(a=[1, 2], b=[3, 4]), "a column besides those that divide", "a", "b")
    refused(pa.Table.from_struct_array(pa.array([{}] * 3, pa.struct([]))).to_reader(), "a column besides those")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["b", "a", "a"])
    refused(twice.to_reader(), "a column 'a' twice")
    refused(twice.to_reader(), "a column 'a' twice", "a")
    refused(table(a=[b"x", b"\xff"], b=[1, 2]), r"divided by 'a': its value b'\\xff' is no text", "a")


def test_a_null_alone_in_a_line_of_csv_is_refused(tmp_path: Path) -> None:
    """Readers skip an empty line. An empty text is none, and beside another column a null is no empty line."""
    with pytest.raises(ConfigError, match="the column 'a' has a null, and is the only one"):
        DirectoryWriter(tmp_path / "out", "csv")(table(a=["x", None]), ID)
    with pytest.raises(ConfigError, match="the column 'a' has a null"):
        DirectoryWriter(tmp_path / "out", "csv", partition_by=["b"])(table(a=[1, None], b=[1, 1]), ID)
    assert list((tmp_path / "out").iterdir()) == []
    DirectoryWriter(tmp_path / "one", "csv")(table(offset=["x", "", "y"]), ID)
    assert read(tmp_path / "one", "csv")["offset"].to_pylist() == ["", "x", "y"]
    DirectoryWriter(tmp_path / "two", "csv")(table(offset=[1, 2], a=[None, None]), ID)
    assert read(tmp_path / "two", "csv").num_rows == 2


# -- Replacing ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_written_again_replaces_all_of_it(tmp_path: Path) -> None:
    """Though it was divided otherwise, or written by Spark, and left half done."""
    out = tmp_path / "out"
    DirectoryWriter(out, partition_by=["a"])(table(offset=[1, 2], a=[1, 2]), ID)
    (out / f"batch_id={ID}" / "_temporary" / "0").mkdir(parents=True)
    (out / f"batch_id={ID}" / "_temporary" / "0" / "part-7").write_bytes(b"half")
    (out / f"batch_id={ID}" / "link").symlink_to(tmp_path)
    DirectoryWriter(out)(table(offset=[1, 2]), ID)
    assert names(out) == [f"batch_id={ID}/_SUCCESS", f"batch_id={ID}/part-0.parquet"]
    assert tmp_path.exists()
    assert read(out)["offset"].to_pylist() == [1, 2]


def test_the_mode_error_keeps_what_is_there(tmp_path: Path) -> None:
    """The error names the directory."""
    out = tmp_path / "out"
    writer = DirectoryWriter(out, mode="error")
    writer(table(offset=[1]), ID)
    with pytest.raises(ConfigError, match=f"batch_id={ID} is there already"):
        writer(table(offset=[2]), ID)
    assert read(out)["offset"].to_pylist() == [1]


def test_rows_that_cannot_be_read_leave_the_earlier_batch(tmp_path: Path) -> None:
    """The error comes out as it was."""
    import pyarrow as pa

    def broken() -> Iterator[Any]:
        yield pa.record_batch({"offset": [2]})
        raise KeyError("struck")

    out = tmp_path / "out"
    DirectoryWriter(out)(table(offset=[1]), ID)
    reader = pa.RecordBatchReader.from_batches(pa.schema([("offset", pa.int64())]), broken())
    with pytest.raises(KeyError, match="struck"):
        DirectoryWriter(out)(reader, ID)
    assert [each.name for each in out.iterdir()] == [f"batch_id={ID}"]
    assert read(out)["offset"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("orc",), {}, "parquet, json, csv, not 'orc'"),
        ((), {"mode": "append"}, "'overwrite' or 'error', not 'append'"),
        ((), {"partition_by": "date"}, "a list of columns"),
        ((), {"partition_by": ["date", "a", "date"]}, "a column twice: date, a, date"),
    ],
)
def test_an_option_that_cannot_be_is_refused(
    tmp_path: Path, arguments: tuple[Any, ...], options: dict[str, Any], said: str
) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigError, match=said):
        DirectoryWriter(tmp_path / "out", *arguments, **options)
    assert not (tmp_path / "out").exists()


def test_a_batch_has_a_name(tmp_path: Path) -> None:
    """And no path."""
    with pytest.raises(ConfigError, match="batch"):
        DirectoryWriter(tmp_path / "out")(table(offset=[1]), "../x")


# -- The disk ----------------------------------------------------------------------------------------------------------


class WithoutRenames(ByKind):
    """Keeps all that was not synced, but for renames."""

    def keep_name(self, operation: NameOperation) -> bool:
        return not isinstance(operation, Rename)


def write(storage: SimulatedStorage, number: int) -> None:
    """Write a batch of one number, divided."""
    writer = DirectoryWriter(OUT, "json", partition_by=["a"], storage=storage)
    writer(table(offset=[number, number], a=[1, 2]), ID)


def complete(storage: SimulatedStorage) -> int | None:
    """Return the number of the batch under its name; None if there is none. It is never half a batch."""
    tree = storage.tree()
    place = OUT / f"batch_id={ID}"
    found = {path: content for path, content in tree.items() if place in path.parents}
    if place not in tree:
        return None
    assert found[place / "_SUCCESS"] == b""
    rows = [found[place / f"a={part}" / "part-0.json"] for part in (1, 2)]
    assert rows[0] == rows[1]
    assert rows[0] is not None
    return int(json.loads(rows[0])["offset"])


def test_what_is_written_survives_any_loss_of_power_and_is_never_half_there() -> None:
    """At every moment of a write and of a second one: the earlier batch, none, or the new one, whole."""
    storage = SimulatedStorage()
    write(storage, 1)
    for state in storage.crash_states():
        assert complete(state) == 1
    storage.replay_from_here()
    write(storage, 2)
    seen = set()
    for cut in storage.prefix_crashes():
        seen.add(complete(cut.storage))
        write(cut.storage, 3)
        assert complete(cut.storage) == 3
    assert seen == {1, 2, None}
    assert {complete(state) for state in storage.crash_states()} == {2}


def test_an_earlier_batch_that_a_killed_process_moved_away_stays_until_the_next_one_is_durable() -> None:
    """A loss of power gave it its name back, and its files were gone."""
    storage = SimulatedStorage()
    write(storage, 1)
    storage.replay_from_here()
    write(storage, 2)
    place = OUT / f"batch_id={ID}"
    moved = Rename(place, OUT / f".batch_id={ID}.old")
    killed = next(run.crash_keeping_all() for run in storage.replay() if run.log and run.log[-1] == moved)
    killed.replay_from_here()
    write(killed, 3)
    for run in killed.replay():
        for disk in (run.crash_dropping_unsynced(), run.crash(WithoutRenames(sectors=True, sizes=True, names=True))):
            assert complete(disk) in (1, 3, None)
    assert complete(killed.crash_dropping_unsynced()) == 3
    assert [path for path in killed.tree() if path.parent == OUT] == [place]


def test_any_call_to_the_disk_may_fail() -> None:
    """The error is ours; the earlier batch is there, or none, or the new one; the next attempt writes all of it."""
    template = SimulatedStorage()
    write(template, 1)
    struck_count = 0
    while True:
        storage = template.crash_keeping_all()
        storage.faults = plan = FaultPlan(struck_count + 1, error=errno.EIO)
        with suppress(StorageError):
            write(storage, 2)
        storage.faults = None
        if not plan.fired_count:
            break
        assert complete(storage) in (1, 2, None)
        write(storage, 3)
        dice = random.Random(struck_count)
        for state in (storage.crash_dropping_unsynced(), *(storage.random_crash(dice) for _ in range(5))):
            assert complete(state) == 3
        struck_count += 1
    assert struck_count > 20


def test_a_file_that_cannot_be_begun_leaves_nothing() -> None:
    """The disk is full when the format writes its first bytes."""
    storage = SimulatedStorage()
    storage.faults = FaultPlan(1, error=errno.ENOSPC, verbs=frozenset({"write_at"}))
    with pytest.raises(DiskFullError):
        DirectoryWriter(OUT, storage=storage)(table(offset=[1]), ID)
    assert storage.list(OUT) == []


def test_a_file_may_be_given_nothing_and_closed_twice() -> None:
    """As files of Python."""
    storage = SimulatedStorage()
    file = StorageFile(storage, Path("/file"))
    assert file.write(b"") == 0
    assert file.write(memoryview(b"ab")) == 2
    file.close()
    file.close()
    assert storage.tree()[Path("/file")] == b"ab"
