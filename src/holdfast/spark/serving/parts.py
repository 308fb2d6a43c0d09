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
from holdfast.spark.writing.staging import LocalParts


def latest(storage: Storage, grant: Grant, application: str) -> list[bytes]:
    """Return as JSON the version that an application has committed last, and the time here. Raises HoldfastError."""
    with closing(LocalParts(grant.root, grant.queue_id, storage)) as parts:
        return [json.dumps([parts.latest(application), parts.clock.time_ns()]).encode()]


def receive(storage: Storage, grant: Grant, command: Mapping[str, Any], reader: Any) -> bytes:
    """Stage what a task sends; return the ids of the parts, as JSON. Raises HoldfastError, queue.Full, FlightError."""
    if reader.schema != MESSAGES:
        raise UsageError("this task has another version of holdfast than its driver: install the same on each machine")
    with closing(LocalParts(grant.root, grant.queue_id, storage)) as parts:
        ids = parts.stage(_received(reader), str(command["application"]), int(command["version"]))
        return json.dumps(ids).encode()


def _received(reader: Any) -> Iterator[tuple[Sequence[bytes], Mapping[int, bytes]]]:
    """Yield the messages of a whole stream; raises FlightCancelledError if it is not whole."""
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
            yield payloads, {number: stored for number, stored in enumerate(headers) if stored}
    if told != count:
        raise flight.FlightCancelledError(f"the task has ended behind {count} messages: they are discarded")
