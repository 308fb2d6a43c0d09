"""Runs ``holdfast drain --engine spark``: a session, its noise, and the writer of batches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from holdfast.cli.drained import Drained, drained_by
from holdfast.cli.importing import import_named
from holdfast.cli.spark_output import SparkOutput
from holdfast.serializers.codec import Codec

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True, slots=True)
class SparkJob:
    """What the command says about Spark.

    Attributes
    ----------
    master : str
        Where tasks run.
    conf : mapping of str to str
        Settings of Spark, over those of the command.
    schema_path : Path or None
        A file with the fields of payloads.
    codec_name : str or None
        ``module:codec``, which decodes payloads.
    verbose : bool
        Whether Spark's own output is shown while it works; else only if the drain fails.
    """

    master: str
    conf: Mapping[str, str]
    schema_path: Path | None
    codec_name: str | None
    verbose: bool

    def run(
        self, path: Path, out: str, file_format: str, partition_by: Sequence[str], mode: str, options: dict[str, Any]
    ) -> Drained:
        """Drain; what Spark has said is shown if something fails."""
        from holdfast.spark.draining.directories import DirectoryWriter, read_schema
        from holdfast.spark.draining.drainer import drain
        from holdfast.spark.session import local_session

        codec = None if self.codec_name is None else _find_codec(self.codec_name)
        output = SparkOutput(is_shown=self.verbose)
        try:
            with output.taken():
                settings = {**_SETTINGS, **self.conf}
                spark = local_session(self.master, app_name=f"holdfast drain {path.name}", settings=settings)
            spark.sparkContext.setLogLevel("ERROR")
            try:
                schema = None if self.schema_path is None else read_schema(self.schema_path)
                writer = DirectoryWriter(out, file_format, schema, codec=codec, partition_by=partition_by, mode=mode)
                drained = drained_by(lambda: drain(path, spark, writer, **options))
            finally:
                output.end()  # its workers complain when they are stopped
                spark.stop()
        except BaseException:
            output.show()
            raise
        if drained.error is not None:
            output.show()
        return replace(drained, unfit_count=writer.unfit_count)


def _find_codec(target: str) -> Codec[Any]:
    """Return the codec that ``module:attribute`` names; tasks import its module too."""
    found = import_named(target, "MODULE:CODEC", "shop.events:codec", "Codec")
    if not isinstance(found, Codec):
        raise click.UsageError(f"{target} is no Codec: it is {found!r}")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    return found
