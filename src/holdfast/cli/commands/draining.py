"""``drain``: everything that waits goes to files, by Arrow in this process or by Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.drained import Drained, drained_by
from holdfast.cli.ending import DAMAGED, FAILED, exit_code_of, exit_with, say, say_line, worst
from holdfast.cli.importing import import_named
from holdfast.cli.opening import group_option, json_option, queue_argument, require_queue
from holdfast.cli.output import damage_document, write_json
from holdfast.cli.seconds import Seconds
from holdfast.cli.spark_drain import SparkJob
from holdfast.errors import CorruptionError, DrainError, HoldfastError

if TYPE_CHECKING:
    from holdfast.arrow.draining.reports import DrainProgress, DrainReport


@click.command()
@queue_argument
@click.option("--out", required=True, metavar="DIR", help="The target directory; each batch becomes a directory in it.")
@click.option(
    "--queues",
    metavar="NAME,...",
    help="QUEUE is a directory of queues: drain these, one after the other; names may have *, ? and [...].",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "json", "csv"]),
    default="parquet",
    show_default=True,
    help="What to write; json is a line for each message.",
)
@click.option(
    "--engine",
    type=click.Choice(["arrow", "spark"]),
    default="arrow",
    show_default=True,
    help="What runs the batches: Arrow, in this process; or Spark, which needs Java.",
)
@click.option(
    "--partition-by",
    metavar="COLUMN,...",
    default="",
    help="Columns whose values become directories; date is the day of the put, in UTC; with --queues, queue is one.",
)
@click.option(
    "--mode",
    type=click.Choice(["overwrite", "error"]),
    default="overwrite",
    show_default=True,
    help="The output of an earlier attempt at a batch: replace it, or fail.",
)
@click.option("--master", metavar="URL", help="With Spark: where tasks run; default: local[*].")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="With Spark: a setting of it; may be repeated.")
@click.option(
    "--schema",
    "schema_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file: fields of payloads, which become columns; as `id BIGINT, name STRING`, or the JSON of Spark.",
)
@click.option(
    "--codec",
    "codec_name",
    metavar="MODULE:CODEC",
    help="With --schema: decodes payloads, with its upcasts; default: by their headers alone.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    default=256 * 2**20,
    show_default=True,
    help="Bytes of payloads in one batch.",
)
@click.option("--max-messages", type=click.IntRange(min=1), help="Messages of one batch.")
@click.option(
    "--lock-timeout",
    type=Seconds(),
    default=0.0,
    show_default=True,
    help="Seconds to wait for another drain of the group, or for a program that has a queue open alone.",
)
@click.option("--forever", is_flag=True, help="Wait for more messages, until SIGINT or SIGTERM.")
@click.option("--verbose", is_flag=True, help="Write the progress, the result, and what Spark says.")
@group_option
@json_option
def drain(
    path: Path,
    out: str,
    queues: str | None,
    file_format: Any,
    engine: str,
    partition_by: str,
    mode: Any,
    master: str | None,
    conf: tuple[str, ...],
    schema_path: Path | None,
    codec_name: str | None,
    max_bytes: int,
    max_messages: int | None,
    lock_timeout: float,
    forever: bool,
    verbose: bool,
    group: str,
    as_json: bool,
) -> None:
    """Write messages to files, batch by batch, and acknowledge them: each exactly once.

    A batch is a directory batch_id=... below --out. The next drain runs an interrupted batch again, with the same
    messages under the same id, and replaces its output. A missing group is created. Nothing is printed if all is well.

    The exit code is 2 if messages are damaged, or do not fit --schema; all others were written. With --queues a queue
    that fails keeps no other one from being drained; the last line names it.
    """
    if queues is None:
        require_queue(path)
    columns = [name.strip() for name in partition_by.split(",") if name.strip()]
    options: dict[str, Any] = {
        "queues": queues,
        "max_bytes": max_bytes,
        "max_messages": max_messages,
        "group": group,
        "lock_timeout": lock_timeout,
        "until": "forever" if forever else "snapshot",
        "on_progress": _show if verbose else None,
    }
    if len(set(columns)) < len(columns):
        raise click.UsageError(f"--partition-by has a column twice: {partition_by}")
    if codec_name is not None and schema_path is None:
        raise click.UsageError("--codec decodes what becomes columns: give --schema too")
    if engine == "arrow":
        for name, value in {"--master": master, "--conf": conf}.items():
            if value:
                raise click.UsageError(f"{name} is an option of Spark: give --engine spark too")
        drained = _drain_by_arrow(path, out, file_format, columns, mode, schema_path, codec_name, options)
    else:
        job = SparkJob(master or "local[*]", _settings(conf), schema_path, codec_name, verbose)
        drained = job.run(path, out, file_format, columns, mode, options)
    if as_json:
        write_json(_document(drained.report) | {"unfit_count": drained.unfit_count})
    elif verbose:
        _write(drained.report)
    exit_with(worst([_say(path, drained, as_json=as_json), *_say_failed(drained.error, as_json=as_json)]))


def _say(path: Path, drained: Drained, *, as_json: bool) -> int:
    """Say what is not in the files, or is there as it was put; return the exit code of that."""
    if drained.unfit_count:
        say_line(
            "unfit",
            f"{drained.unfit_count} payloads do not fit the schema: they are in the column _payload, as they were put",
            as_json=as_json,
        )
    for name, report in (drained.report.queues or {"": drained.report}).items():
        if report.damage:
            say_line(
                CorruptionError.code,
                f"{path / name} is damaged, {report.lost_count} messages are lost, and the others were drained: "
                f"{report.damage[0]}; `holdfast verify` reads all of it",
                as_json=as_json,
            )
    return DAMAGED if drained.unfit_count or drained.report.damage else 0


def _say_failed(error: DrainError | None, *, as_json: bool) -> Iterator[int]:
    """Say which queues failed; yield the exit code of each."""
    if error is not None:
        say(error, as_json=as_json)
        for each in error.errors.values():
            yield exit_code_of(each) if isinstance(each, HoldfastError) else FAILED


def _drain_by_arrow(
    path: Path,
    out: str,
    file_format: Any,
    partition_by: list[str],
    mode: Any,
    schema_path: Path | None,
    codec_name: str | None,
    options: dict[str, Any],
) -> Drained:
    """Drain in this process."""
    from holdfast.arrow import Decoding, DirectoryWriter
    from holdfast.arrow import drain as drain_queue

    writer = DirectoryWriter(out, file_format, partition_by=partition_by, mode=mode)
    if schema_path is None:
        return drained_by(lambda: drain_queue(path, writer, **options))
    from holdfast.arrow.decoding.schema_text import schema_of_text
    from holdfast.arrow.writing.payload_columns import PayloadColumns

    schema = schema_of_text(schema_path.read_text(encoding="utf-8"), str(schema_path))
    if codec_name is not None:
        import_named(codec_name, "MODULE:CODEC", "shop.events:codec", "Codec")  # the directory here has modules, too
    rows = PayloadColumns(writer, schema, partition_by, has_queue=options["queues"] is not None)
    decode = Decoding(schema, codec=codec_name or "")
    drained = drained_by(lambda: drain_queue(path, rows, columns=rows.columns, decode=decode, **options))
    return replace(drained, unfit_count=rows.unfit_count)


def _settings(conf: tuple[str, ...]) -> dict[str, str]:
    """Return settings of Spark by name."""
    found = {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--conf is NAME=VALUE, as spark.executor.memory=4g; not {each!r}")
        found[name] = value
    return found


def _show(progress: DrainProgress) -> None:
    speed = f"{progress.megabytes_per_second:.1f} MB/s"
    click.echo(f"{progress.queue}: {progress.total_count:,} messages, {speed}, {progress.depth:,} left", err=True)


def _document(report: DrainReport) -> dict[str, Any]:
    document = {
        "batch_ids": list(report.batch_ids),
        "message_count": report.message_count,
        "size_bytes": report.size_bytes,
        "seconds": round(report.seconds, 3),
        "resumed_count": report.resumed_count,
        "depth": report.depth,
        "damage": [damage_document(each) for each in report.damage],
    }
    return document | ({"queues": {n: _document(each) for n, each in report.queues.items()}} if report.queues else {})


def _write(report: DrainReport) -> None:
    for name, each in report.queues.items():
        click.echo(f"{name}: {_summary(each)}")
    click.echo(_summary(report))


def _summary(report: DrainReport) -> str:
    batches = f"{len(report.batch_ids)} {'batch' if len(report.batch_ids) == 1 else 'batches'}"
    return f"{report.message_count:,} messages in {batches}, {report.depth:,} left"
