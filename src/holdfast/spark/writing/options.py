"""The options of a write, as Spark hands them over: strings, with names in lower case. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.persistence.filesystem.layout import check_name
from holdfast.queue.prepared.joint_resolver import check_part_of
from holdfast.spark.reading.options import address_option, local_path, number_option, queue_path, truth_option
from holdfast.spark.remote.starting import ServeAddress
from holdfast.spark.unknown_options import unknown_option

STAGED_RETENTION_SECONDS = 7 * 86400
"""What a dead write has left is kept so long: longer than any write takes, and short enough for the disk."""

SERIALIZERS = ("json", "msgpack")
"""Those that take a row of any columns."""

_NAMES = (
    "path",
    "create",
    "txnid",
    "txnversion",
    "serializer",
    "type",
    "typeVersion",
    "stagedRetentionSeconds",
    "queueColumn",
    "serveAddress",
)
_KNOWN = {name.lower(): name for name in _NAMES}
_CHECKPOINT = "checkpointlocation"
_OF_SPARK = {_CHECKPOINT, "queryname"}
"""Options of a stream that are Spark's own."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write.

    Attributes
    ----------
    path : Path
        The queue.
    create : bool
        Whether to create a missing queue.
    txnid : str or None
        Name of this write: of each name and version, one is written.
    txnversion : int
        Which of the writes of that name: each larger than the one before.
    serializer : str or None
        What makes a payload of a row; None: the column ``payload`` is one.
    type : str
        Name of the schema, in the headers; empty: none.
    type_version : int
        Its version.
    staged_retention_seconds : int
        Staged messages that were not committed after so long are discarded.
    checkpoint : Path or None
        Of a stream, if it is on this machine and an option of the stream.
    queue_column : str or None
        The column that chooses the queue of a row; None: a column ``queue`` does, if there is one.
    serve_address : ServeAddress or None
        Where tasks that cannot write into the queue send their rows; None: as the driver is reached.
    """

    path: Path
    create: bool = False
    txnid: str | None = None
    txnversion: int = 0
    serializer: str | None = None
    type: str = ""
    type_version: int = 1
    staged_retention_seconds: int = STAGED_RETENTION_SECONDS
    checkpoint: Path | None = None
    queue_column: str | None = None
    serve_address: ServeAddress | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
        """Return the options; raises ConfigError for one that is not known or cannot be."""
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(given) - set(_KNOWN) - (_OF_SPARK if is_stream else set()))
        if unknown:
            raise unknown_option(unknown[0], "writing into a queue", _NAMES)
        if not given.get("path"):
            raise ConfigError("which queue? say save('data/orders'), or start('data/orders') for a stream")
        _check_txn(given, is_stream=is_stream)
        _check_objects(given)
        return cls(
            path=queue_path(given),
            create=truth_option(given, "create", default=False),
            txnid=given.get("txnid"),
            txnversion=number_option(given, "txnversion", 0, 0),
            serializer=given.get("serializer"),
            type=given.get("type", ""),
            type_version=number_option(given, "typeVersion", 1, 1),
            staged_retention_seconds=number_option(given, "stagedRetentionSeconds", STAGED_RETENTION_SECONDS, 0),
            checkpoint=local_path(given[_CHECKPOINT]) if given.get(_CHECKPOINT) else None,
            queue_column=given.get("queuecolumn"),
            serve_address=address_option(given),
        )


def _check_txn(given: Mapping[str, str], *, is_stream: bool) -> None:
    if is_stream and ("txnid" in given or "txnversion" in given):
        raise ConfigError("a stream is told by its query and its batch: leave txnid and txnversion out")
    if "txnid" in given:
        check_part_of(check_name(given["txnid"], "txnid"), number_option(given, "txnversion", 0, 0))
    elif "txnversion" in given:
        raise ConfigError("txnversion says which write of a txnid it is: give txnid too")


def _check_objects(given: Mapping[str, str]) -> None:
    serializer = given.get("serializer")
    if serializer is not None and serializer not in SERIALIZERS:
        raise ConfigError(f"serializer is {' or '.join(SERIALIZERS)}, not {serializer!r}")
    for name in ("type", "typeVersion"):
        if name.lower() in given and serializer is None:
            raise ConfigError(f"{name} is about the objects that a serializer makes: give serializer too")
    if "typeversion" in given and not given.get("type"):
        raise ConfigError("typeVersion is the version of a type: give type too")
