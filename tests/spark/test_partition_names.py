"""Directories of ``partition_by`` have the names that Spark gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.arrow import DirectoryWriter

pytestmark = [pytest.mark.spark, pytest.mark.extra("arrow")]

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False, None],
    "binary": [b"a/b", "é ü".encode(), b"", b"12:30", b"a=b{c]", None],
    "string": ["12:30", "a=b{c]", "x\t'\"#%*?\\[^}\x7f", "é ü", "", "a.b~c;d,e@f$g&h!(i)|<j>", None],
    "bigint": [-1, 20, None],
    "date": ["2026-01-31"],
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_spelled_as_spark_does_it(spark: Any, kind: str, tmp_path: Path) -> None:
    """Of every type that a queue's columns and most payloads have."""
    import pyarrow as pa

    values = VALUES[kind]
    rows = spark.createDataFrame(
        [(n, v) for n, v in enumerate(values)], f"n INT, v {'string' if kind == 'date' else kind}"
    )
    if kind == "date":
        rows = rows.withColumn("v", rows.v.cast("date"))
    rows.write.partitionBy("v").parquet(str(tmp_path / "spark"))
    column = pa.array(values, pa.string()).cast(pa.date32()) if kind == "date" else pa.array(values)
    reader = pa.table({"n": list(range(len(values))), "v": column}).to_reader()
    DirectoryWriter(tmp_path / "arrow", partition_by=["v"])(reader, "one")
    found = {each.name for each in (tmp_path / "arrow" / "batch_id=one").glob("v=*")}
    assert found == {each.name for each in (tmp_path / "spark").glob("v=*")}
