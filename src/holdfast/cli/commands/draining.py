"""``drain``: everything that waits goes to Parquet or JSON, by Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ending import DAMAGED, exit_with, say_line
from holdfast.cli.importing import import_named
from holdfast.cli.opening import group_option, json_option, queue_argument, require_queue
from holdfast.cli.output import damage_document, write_json
from holdfast.cli.spark_output import SparkOutput
from holdfast.errors import CorruptionError
from holdfast.serializers.codec import Codec

if TYPE_CHECKING:
    from holdfast.arrow.draining.reports import DrainProgress, DrainReport

_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


@click.command()
@queue_argument
@click.option("--to", required=True, type=click.Choice(["parquet", "json"]), help="What to write.")
@click.option("--out", required=True, metavar="DIR", help="The target directory; each batch becomes a directory in it.")
@click.option(
    "--schema",
    "schema_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file: the fields of payloads, which become columns; as `id BIGINT, name STRING`, or Spark's JSON.",
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
@group_option
@json_option
def drain(
    path: Path,
    to: str,
    out: str,
    schema_path: Path | None,
    codec_name: str | None,
    max_bytes: int,
    max_messages: int | None,
    forever: bool,
    group: str,
    as_json: bool,
) -> None:
    """Write messages with Spark, batch by batch, and acknowledge them: each exactly once.

    A batch is a directory batch_id=... below --out. The next drain runs an interrupted batch again, with the same
    messages under the same id, and replaces its output. A missing group is created.

    The exit code is 2 if messages are damaged, or do not fit --schema; all others were written.
    """
    require_queue(path)
    from holdfast.spark.draining.directories import DirectoryWriter, read_schema
    from holdfast.spark.draining.drainer import drain as drain_queue
    from holdfast.spark.session import local_session

    if codec_name is not None and schema_path is None:
        raise click.UsageError("--codec decodes what becomes columns: give --schema too")
    codec = None if codec_name is None else _find_codec(codec_name)
    output = SparkOutput()
    with output.taken():
        spark = local_session(app_name=f"holdfast drain {path.name}", settings=_QUIET)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        schema = None if schema_path is None else read_schema(schema_path)
        writer = DirectoryWriter(out, to, schema, codec=codec)
        report = drain_queue(
            path,
            spark,
            writer,
            max_bytes=max_bytes,
            max_messages=max_messages,
            group=group,
            until="forever" if forever else "snapshot",
            on_progress=_show if sys.stderr.isatty() else None,
        )
    finally:
        output.drop()
        spark.stop()
    _write(report, writer.unfit_count, as_json=as_json)
    if writer.unfit_count:
        say_line(
            "unfit",
            f"{writer.unfit_count} payloads do not fit the schema: they are in the column _payload, as they were put",
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
    exit_with(DAMAGED if writer.unfit_count else 0)


def _find_codec(target: str) -> Codec[Any]:
    """Return the codec that ``module:attribute`` names; tasks import its module too."""
    found = import_named(target, "MODULE:CODEC", "shop.events:codec", "Codec")
    if not isinstance(found, Codec):
        raise click.UsageError(f"{target} is no Codec: it is {found!r}")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    return found


def _show(progress: DrainProgress) -> None:
    speed = f"{progress.megabytes_per_second:.1f} MB/s"
    click.echo(f"{progress.total_count:,} messages, {speed}, {progress.depth:,} left", err=True)


def _write(report: DrainReport, unfit_count: int, *, as_json: bool) -> None:
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
    batches = f"{len(report.batch_ids)} {'batch' if len(report.batch_ids) == 1 else 'batches'}"
    click.echo(f"{report.message_count:,} messages in {batches}, {report.depth:,} left")
