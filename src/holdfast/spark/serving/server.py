"""Answers tasks, over Arrow Flight; each request carries the token of a plan, which says what it may ask for."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from holdfast.arrow.draining.loss_notes import LossNotes, damage_of
from holdfast.arrow.reading.task_walk import replacing_file, require_log_here, require_queue_here
from holdfast.errors import Full, HoldfastError
from holdfast.persistence.filesystem.layout import DataFileName, queue_directory
from holdfast.persistence.filesystem.storage import MISSING, OsStorage, Storage, storage_errors
from holdfast.persistence.format.constants import FRAMES_START
from holdfast.queue.protocol.error_text import as_text
from holdfast.spark.remote.client import CHUNKS
from holdfast.spark.remote.grant import Grant
from holdfast.spark.serving import parts
from holdfast.spark.serving.grants import Grants

logger = logging.getLogger("holdfast")

CHUNK_BYTES = 2 * 2**20
"""Half of what a task reads at once: it verifies the one half while the other is under way."""

_BEARER = "Bearer "

_OF_ALL, _OF_WRITES = ("hello",), ("latest", "release")
"""Actions that take each token, and those that take the token of a write; others take that of a read."""


class RangeServer(flight.FlightServerBase):
    """Serves the queues of its grants.

    Parameters
    ----------
    location : str
        Where to listen, as Flight spells it.
    certificate, key : bytes
        Its own, in PEM.
    grants : Grants
        Which tokens are known.
    storage : Storage or None
        Where the queues are; None: on the disks of this machine.
    """

    def __init__(
        self, location: str, certificate: bytes, key: bytes, grants: Grants, storage: Storage | None = None
    ) -> None:
        super().__init__(
            location, tls_certificates=[(certificate, key)], middleware={"grant": _TokensAreChecked(grants)}
        )
        self._storage = storage or OsStorage()
        self._grants = grants
        self._actions: dict[str, Callable[[Grant, dict[str, Any]], list[bytes]]] = {
            "hello": lambda _grant, _fields: [],
            "open": self._open,
            "require_log": self._require_log,
            "replacing": self._replacing,
            "note_loss": self._note_loss,
            "latest": lambda grant, fields: parts.latest(self._storage, grant, str(fields["application"])),
            "release": self._release,
        }

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Answer a request that moves nothing large."""
        grant = _granted(context, is_write=None if action.type in _OF_ALL else action.type in _OF_WRITES)
        with self._grants.request(), _told():
            body = action.body.to_pybytes()
            return self._actions[action.type](grant, json.loads(body) if body else {})

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Send bytes of a data file."""
        grant = _granted(context, is_write=False)
        return flight.GeneratorStream(CHUNKS, self._chunks(grant, json.loads(ticket.ticket)))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Stage the messages of a task, and answer with the ids of their parts."""
        grant = _granted(context, is_write=True)
        with self._grants.request(), _told():
            writer.write(parts.receive(self._storage, grant, json.loads(descriptor.command), reader))

    # -- Reading -----------------------------------------------------------------------------------------------------

    def _open(self, grant: Grant, fields: dict[str, Any]) -> list[bytes]:
        path = self._path(grant, fields)
        require_queue_here(self._storage, grant.root, grant.queue_id)
        with storage_errors("reading", path):
            try:
                file = self._storage.open(path, writable=False)
            except MISSING:
                return []
            with closing(file):
                return [str(file.size()).encode(), file.read_at(FRAMES_START, 0)]

    def _chunks(self, grant: Grant, fields: dict[str, Any]) -> Iterator[Any]:
        path, position, left = self._path(grant, fields), int(fields["position"]), int(fields["size"])
        with self._grants.request(), _told(), storage_errors("reading", path):
            require_queue_here(self._storage, grant.root, grant.queue_id)
            try:
                file = self._storage.open(path, writable=False)
            except MISSING:
                yield _chunk(b"", b"")
                return
            with closing(file):
                is_endless, data = not left, b" "
                while data:
                    data = file.read_at(CHUNK_BYTES if is_endless else min(left, CHUNK_BYTES), position)
                    yield _chunk(data, file.read_at(FRAMES_START, 0))  # in this order: the header proves the bytes
                    position += len(data)
                    left -= len(data)

    def _require_log(self, grant: Grant, fields: dict[str, Any]) -> list[bytes]:
        require_log_here(self._storage, grant.root, grant.queue_id, _name(fields))
        return []

    def _replacing(self, grant: Grant, fields: dict[str, Any]) -> list[bytes]:
        directory = require_queue_here(self._storage, grant.root, grant.queue_id)
        merged = replacing_file(self._storage, directory, _name(fields))
        return [] if merged is None else [str(merged).encode()]

    def _note_loss(self, grant: Grant, fields: dict[str, Any]) -> list[bytes]:
        if grant.notes is None:
            raise flight.FlightUnauthorizedError("this plan notes no losses")
        LossNotes(self._storage, grant.notes).write(grant.batch_id, damage_of(fields))
        return []

    def _release(self, grant: Grant, _fields: dict[str, Any]) -> list[bytes]:
        self._grants.release(grant)
        return []

    @staticmethod
    def _path(grant: Grant, fields: dict[str, Any]) -> Path:
        """Return the path of the data file that a request names, by two numbers."""
        return queue_directory(grant.root).data_file(_name(fields))


def _name(fields: dict[str, Any]) -> DataFileName:
    sequence, first_offset, replaced_before, generation = map(int, fields["file"])
    return DataFileName(sequence, first_offset, replaced_before, generation)


def _chunk(data: bytes, header: bytes) -> Any:
    """Return one row of :data:`CHUNKS`, whose bytes are not copied."""
    bounds = pa.py_buffer(bytes(4) + len(data).to_bytes(4, "little"))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, bounds, pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([column, pa.array([header], pa.binary())], schema=CHUNKS)


# -- Tokens ----------------------------------------------------------------------------------------------------------


class _TokensAreChecked(flight.ServerMiddlewareFactory):
    """Refuses each request that carries no known token."""

    def __init__(self, grants: Grants) -> None:
        super().__init__()
        self._grants = grants

    def start_call(self, _info: Any, headers: dict[str, list[str]]) -> _Granted:
        (value,) = headers.get("authorization", [""])[:1]
        grant = self._grants.find(value.removeprefix(_BEARER)) if value.startswith(_BEARER) else None
        if grant is None:
            raise flight.FlightUnauthenticatedError("unknown token")
        return _Granted(grant)


class _Granted(flight.ServerMiddleware):
    """What a request's token allows."""

    def __init__(self, grant: Grant) -> None:
        super().__init__()
        self.grant = grant


def _granted(context: Any, *, is_write: bool | None) -> Grant:
    """Return what a token allows; refuses the token of a read for a write, and the other way round."""
    grant: Grant = context.get_middleware("grant").grant
    if is_write is not None and is_write != bool(grant.write_id):
        raise flight.FlightUnauthorizedError(f"the token of this plan {'reads' if is_write else 'writes'} only")
    return grant


class _told:  # noqa: N801 - a block
    """Tells the client the error that a block raises."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, HoldfastError | Full):
            raise flight.FlightServerError(str(error), as_text(error).encode()) from error
        if isinstance(error, Exception) and not isinstance(error, flight.FlightError):
            logger.error("a request of a task failed: %r", error, exc_info=error)
