"""``drain``: everything that waits goes to files, by Arrow in this process or by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ending import DAMAGED, exit_with, say_line
from holdfast.cli.importing import import_named
from holdfast.cli.opening import group_option, json_option, queue_argument, require_queue
from holdfast.cli.output import damage_document, write_json
from holdfast.cli.spark_drain import SparkJob
from holdfast.errors import CorruptionError

if TYPE_CHECKING:
    from holdfast.arrow.draining.reports import DrainProgress, DrainReport


@click.command()
@queue_argument
@click.option("--out", required=True, metavar="DIR", help="The target directory; each batch becomes a directory in it.")
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
    help="Columns whose values become directories; date is the day of the put, in UTC.",
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
@click.option("--forever", is_flag=True, help="Wait for more messages, until SIGINT or SIGTERM.")
@click.option("--verbose", is_flag=True, help="Write the progress, the result, and what Spark says.")
@group_option
@json_option
def drain(
    path: Path,
    out: str,
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
    forever: bool,
    verbose: bool,
    group: str,
    as_json: bool,
) -> None:
    """Write messages to files, batch by batch, and acknowledge them: each exactly once.

    A batch is a directory batch_id=... below --out. The next drain runs an interrupted batch again, with the same
    messages under the same id, and replaces its output. A missing group is created. Nothing is printed if all is well.

    The exit code is 2 if messages are damaged, or do not fit --schema; all others were written.
    """
    require_queue(path)
    columns = [name.strip() for name in partition_by.split(",") if name.strip()]
    options: dict[str, Any] = {
        "max_bytes": max_bytes,
        "max_messages": max_messages,
        "group": group,
        "until": "forever" if forever else "snapshot",
        "on_progress": _show if verbose else None,
    }
    if codec_name is not None and schema_path is None:
        raise click.UsageError("--codec decodes what becomes columns: give --schema too")
    if engine == "arrow":
        for name, value in {"--master": master, "--conf": conf}.items():
            if value:
                raise click.UsageError(f"{name} is an option of Spark: give --engine spark too")
        report, unfit_count = _drain_by_arrow(path, out, file_format, columns, mode, schema_path, codec_name, options)
    else:
        job = SparkJob(master or "local[*]", _settings(conf), schema_path, codec_name, verbose)
        report, unfit_count = job.run(path, out, file_format, columns, mode, options)
    _write(report, unfit_count, as_json=as_json, verbose=verbose)
    if unfit_count:
        say_line(
            "unfit",
            f"{unfit_count} payloads do not fit the schema: they are in the column _payload, as they were put",
            as_json=as_json,
        )
    if report.damage:
        raise CorruptionError(
            f"{path} is damaged, {report.lost_count} messages are lost, and the others were drained: "
            f"{report.damage[0]}; `holdfast verify` reads all of it",
            path=str(report.damage[0].path),
            position=report.damage[0].position,
            offsets=[each.offsets for each in report.damage],
        )
    exit_with(DAMAGED if unfit_count else 0)


def _drain_by_arrow(
    path: Path,
    out: str,
    file_format: Any,
    partition_by: list[str],
    mode: Any,
    schema_path: Path | None,
    codec_name: str | None,
    options: dict[str, Any],
) -> tuple[DrainReport, int]:
    """Drain in this process; return the report, and how many payloads did not fit the schema."""
    from holdfast.arrow import Decoding, DirectoryWriter
    from holdfast.arrow import drain as drain_queue

    writer = DirectoryWriter(out, file_format, partition_by=partition_by, mode=mode)
    if schema_path is None:
        return drain_queue(path, writer, **options), 0
    from holdfast.arrow.decoding.schema_text import schema_of_text
    from holdfast.arrow.writing.payload_columns import PayloadColumns

    schema = schema_of_text(schema_path.read_text(encoding="utf-8"), str(schema_path))
    if codec_name is not None:
        import_named(codec_name, "MODULE:CODEC", "shop.events:codec", "Codec")  # the directory here has modules, too
    rows = PayloadColumns(writer, schema, partition_by)
    decode = Decoding(schema, codec=codec_name or "")
    return drain_queue(path, rows, columns=rows.columns, decode=decode, **options), rows.unfit_count


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
    click.echo(f"{progress.total_count:,} messages, {speed}, {progress.depth:,} left", err=True)


def _write(report: DrainReport, unfit_count: int, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        write_json(
            {
                "batch_ids": list(report.batch_ids),
                "message_count": report.message_count,
                "size_bytes": report.size_bytes,
                "seconds": round(report.seconds, 3),
                "resumed_count": report.resumed_count,
                "depth": report.depth,
                "unfit_count": unfit_count,
                "damage": [damage_document(each) for each in report.damage],
            }
        )
        return
    if not verbose:
        return
    batches = f"{len(report.batch_ids)} {'batch' if len(report.batch_ids) == 1 else 'batches'}"
    click.echo(f"{report.message_count:,} messages in {batches}, {report.depth:,} left")
