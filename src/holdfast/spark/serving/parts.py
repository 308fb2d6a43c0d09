"""Receives the parts of a write, and stages them as a task on this machine does.

A task that dies ends its stream as one that is done would. So the last thing that is sent is how many messages there
were: a stream without that, or with another number of messages, is given up with everything that it has staged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from pyarrow import flight

from holdfast.errors import UsageError
from holdfast.persistence.filesystem.storage import Storage
from holdfast.spark.remote.client import MESSAGES
from holdfast.spark.remote.grant import Grant
from holdfast.spark.writing.many_parts import ManyParts
from holdfast.spark.writing.staging import LocalParts


def latest(storage: Storage, grant: Grant, application: str) -> list[bytes]:
    """Return as JSON the version that an application has committed last, and the time here. Raises HoldfastError."""
    with closing(_opened(storage, grant)) as parts:
        return [json.dumps([parts.latest(application), parts.clock.time_ns()]).encode()]


def receive(storage: Storage, grant: Grant, command: Mapping[str, Any], reader: Any) -> bytes:
    """Stage what a task sends; return the ids of the parts, as JSON. Raises HoldfastError, queue.Full, FlightError."""
    if reader.schema != MESSAGES:
        raise UsageError("this task has another version of holdfast than its driver: install the same on each machine")
    application, version, received = str(command["application"]), int(command["version"]), _received(reader)
    with closing(_opened(storage, grant)) as parts:
        if isinstance(parts, ManyParts):
            ids = parts.stage_into(received, application, version)
        else:
            ids = parts.stage(((payloads, headers) for _, payloads, headers in received), application, version)
        return json.dumps(ids).encode()


def _opened(storage: Storage, grant: Grant) -> LocalParts | ManyParts:
    """Return what stages in the queue of a grant, or in the queues of its directory."""
    if grant.column:
        return ManyParts(grant.root, grant.queue_id, grant.column, create=grant.create, storage=storage)
    return LocalParts(grant.root, grant.queue_id, storage)


def _received(reader: Any) -> Iterator[tuple[str, Sequence[bytes], Mapping[int, bytes]]]:
    """Yield the messages of a stream with the name of their queue; raises FlightCancelledError if it is not whole."""
    count, told = 0, -1
    while told < 0:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            break
        if chunk.data is None:
            told = int(chunk.app_metadata.to_pybytes())
        else:
            payloads, headers = (column.to_pylist() for column in chunk.data.columns)
            count += len(payloads)
            queue = b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes()
            yield queue.decode(), payloads, {number: stored for number, stored in enumerate(headers) if stored}
    if told != count:
        raise flight.FlightCancelledError(f"the task has ended behind {count} messages: they are discarded")
