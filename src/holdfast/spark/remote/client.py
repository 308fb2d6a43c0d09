"""Asks a range server, over Arrow Flight: TLS with the server's certificate, and the plan's token in each request.

A server's refusal comes out as the error that it raised there. If it cannot be asked, :class:`RangeServerError` says
why, and what to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import flight

from holdfast.arrow.draining.loss_notes import damage_fields
from holdfast.errors import RetryableError
from holdfast.log import printable
from holdfast.persistence.filesystem.layout import DataFileName, data_file_name
from holdfast.persistence.format.report import Damage
from holdfast.queue.protocol.error_text import from_text
from holdfast.spark.remote.place import SERVER_NAME, Place

CHUNKS = pa.schema([pa.field("data", pa.binary()), pa.field("header", pa.binary())])
"""Bytes of a data file, and the header of the file as it was after they were read."""

MESSAGES = pa.schema([pa.field("payload", pa.binary(), nullable=False), pa.field("headers", pa.binary())])
"""Messages that a task stages; null: without headers."""

_HELLO_SECONDS = 10.0
_SECONDS = 120.0
"""How long a request may take that moves nothing large; a disk that syncs takes a part of that."""

_READ_AHEAD_BYTES = 16 * 2**20
_OPTIONS = [("grpc.http2.max_frame_size", 2**24 - 1), ("grpc.http2.lookahead_bytes", _READ_AHEAD_BYTES)]
"""Frames as large as HTTP/2 has them: measured, a fifth less of the processor for each byte."""

_ALIVE = [
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
]
"""A server that sends nothing for so long is asked whether it lives, and has so long to say so. A gRPC server ends
connections that ask it more often than each five minutes."""


class RangeServerError(RetryableError):
    """A range server cannot be asked."""

    code = "range_server"


class RangeClient:
    """Asks one range server for one plan. For one thread; made by :func:`client_for`.

    Parameters
    ----------
    place : Place
        Where it is.

    Raises
    ------
    RangeServerError
        No host of the place answers, or the server refuses the token.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._headers = [(b"authorization", f"Bearer {place.token}".encode())]
        self._client = self._connected()

    def _connected(self) -> Any:
        """Return a connection to the first host that answers."""
        failures: list[RangeServerError] = []
        for host in self._place.hosts:
            address = f"[{host}]" if ":" in host else host
            client = flight.FlightClient(
                f"grpc+tls://{address}:{self._place.port}",
                tls_root_certs=self._place.certificate,
                override_hostname=SERVER_NAME,
                generic_options=[*_OPTIONS, *_ALIVE],
            )
            try:
                with self._errors():
                    list(client.do_action(flight.Action("hello", b""), self._options(_HELLO_SECONDS)))
            except RangeServerError as error:
                client.close()
                failures.append(error)
            else:
                return client
        raise failures[-1]

    def _options(self, seconds: float | None = None) -> Any:
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers)

    def _ask(self, action: str, **fields: Any) -> list[bytes]:
        body = json.dumps(fields).encode()
        with self._errors():
            results = self._client.do_action(flight.Action(action, body), self._options(_SECONDS))
            return [result.body.to_pybytes() for result in results]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of Flight into those of Holdfast."""
        try:
            yield
        except flight.FlightError as error:
            told = bytes(error.extra_info or b"")
            if told:
                raise from_text(told.decode()) from None
            raise RangeServerError(self._advice(error)) from None
        except pa.ArrowException as error:  # a connection that breaks is an error of input or output there
            raise RangeServerError(self._advice(error)) from None

    def _advice(self, error: Exception) -> str:
        reason = printable(str(error).splitlines()[0] if str(error) else type(error).__name__)
        if isinstance(error, flight.FlightUnauthenticatedError):
            return (
                f"the range server at {self._place} refuses the token of this plan: plan again, with a new DataFrame, "
                "or run the write again"
            )
        if isinstance(error, flight.FlightUnavailableError | flight.FlightTimedOutError):
            return (
                f"the range server at {self._place} does not answer ({reason}): let tasks connect to that port (a "
                "fixed one: option serveAddress); if the server has ended, a new DataFrame starts another one"
            )
        return f"the range server at {self._place} failed ({reason}): its lines in the driver's log say more"

    # -- Reading -----------------------------------------------------------------------------------------------------

    def open(self, name: DataFileName) -> tuple[int, bytes]:
        """Return size and header of a data file.

        Raises
        ------
        FileNotFoundError
            The queue has no such file any more.
        HoldfastError
            The server does not see the queue, or cannot be asked.
        """
        found = self._ask("open", file=name)
        if not found:
            raise FileNotFoundError(str(name))
        return int(found[0]), found[1]

    def chunks(self, name: DataFileName, position: int, size: int) -> Iterator[tuple[memoryview, bytes]]:
        """Yield bytes of a data file from a position on, each with the file's header after they were read.

        At the end an empty chunk follows; of a file that is gone, one with an empty header is all.
        """
        ticket = flight.Ticket(json.dumps({"file": name, "position": position, "size": size}).encode())
        with self._errors():
            reader = self._client.do_get(ticket, self._options())
            try:
                for chunk in reader:
                    data, header = chunk.data.columns
                    yield memoryview(data[0].as_buffer()), header[0].as_py()
            finally:
                reader.cancel()

    def require_log(self, name: DataFileName) -> None:
        """Make sure that the queue is still there and its log once held a data file. Raises HoldfastError."""
        self._ask("require_log", file=name)

    def replacing(self, name: DataFileName) -> DataFileName | None:
        """Return the merged file that has taken the place of a data file; None if there is none."""
        found = self._ask("replacing", file=name)
        return data_file_name(found[0].decode()) if found else None

    def note_loss(self, damage: Damage) -> None:
        """Note lost messages of a drained batch, durably. Raises HoldfastError."""
        self._ask("note_loss", **damage_fields(damage))

    # -- Writing -----------------------------------------------------------------------------------------------------

    def latest(self, application: str) -> tuple[int | None, int]:
        """Return the version that an application has committed last, and the server's time. Raises HoldfastError."""
        (answer,) = self._ask("latest", application=application)
        latest, now_ns = json.loads(answer)
        return latest, now_ns

    def stage(self, application: str, version: int, chunks: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
        """Stage record batches of :data:`MESSAGES` for a joint commit; return the ids of the parts.

        Each is with the name of its queue; empty: that of the plan.

        The server is asked at once, and knows that it is needed even if the first row takes an hour.

        Raises
        ------
        HoldfastError, queue.Full
            What the server could not do, or it cannot be asked. It has discarded everything then, or it will.
        """
        command = json.dumps({"application": application, "version": version}).encode()
        with self._errors():
            writer, answers = self._client.do_put(
                flight.FlightDescriptor.for_command(command), MESSAGES, self._options()
            )
        try:
            count = 0
            for queue, chunk in chunks:
                with self._errors():
                    writer.write_with_metadata(chunk, queue.encode())
                count += chunk.num_rows
            with self._errors():
                writer.write_metadata(str(count).encode())
                writer.done_writing()
                answer = answers.read()
                writer.close()  # raises what the server has raised, if there is no answer
            return tuple(json.loads(answer.to_pybytes()))
        finally:
            with suppress(pa.ArrowException):
                writer.close()

    def release(self) -> None:
        """Have the server forget the token of a write that is over. Raises HoldfastError."""
        self._ask("release")


@lru_cache(maxsize=8)
def client_for(place: Place) -> RangeClient:
    """Return a client; the same one for all tasks of a plan that this process runs. Raises as :class:`RangeClient`."""
    return RangeClient(place)
