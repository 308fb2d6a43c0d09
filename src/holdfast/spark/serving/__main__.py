"""The process of a range server: its driver tells it plans by lines on standard input, and it answers by lines.

The first line that it writes says where it listens, and its certificate. It ends with the driver, or when it was not
needed for some time. docs/spark.md.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import select
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.spark.remote.grant import Grant
from holdfast.spark.serving.certificate import make_certificate
from holdfast.spark.serving.grants import Grants
from holdfast.spark.serving.server import RangeServer
from holdfast.spark.worker_memory import keep_freed_memory

_LOOK_SECONDS = 1.0
"""How long it takes to see that the driver has ended."""


def main(host: str, port: int, port_count: int, driver: int, idle_seconds: float) -> None:
    """Serve until the server is not needed any more; in-flight requests end with it, as with a kill.

    Parameters
    ----------
    host, port, port_count
        Where to listen, and how many ports to try from that one on; port 0: any.
    driver : int
        The process with whose end this one ends.
    idle_seconds : float
        How long to stay without being needed.
    """
    keep_freed_memory()
    grants = Grants(SystemClock())
    certificate, key = make_certificate(dt.datetime.now(dt.UTC))
    server = _listening(host, range(port, port + port_count) if port else range(1), certificate, key, grants)
    _say({"port": server.port, "certificate": certificate.decode()})
    for line in _lines():
        if line:
            fields = json.loads(line)
            token = fields.get("forget")
            if token is None:
                token = grants.add(Grant.from_text(fields["grant"]), is_kept=fields["is_kept"])
            else:
                grants.forget(token)
            _say({"number": fields["number"], "token": token})
        elif line is None:
            grants.keep_writes()
        if not _lives(driver) or grants.idle_seconds() >= idle_seconds:
            break
    os._exit(0)  # threads of requests end with the process


def _listening(host: str, ports: range, certificate: bytes, key: bytes, grants: Grants) -> RangeServer:
    """Return a server at the first port that is free."""
    for port in ports:
        location = f"grpc+tls://{f'[{host}]' if ':' in host else host}:{port}"
        try:
            return RangeServer(location, certificate, key, grants)
        except (pa.ArrowException, OSError) as error:
            failure = error
    sys.exit(f"holdfast: a range server cannot listen at {host}, ports {ports.start} to {ports.stop - 1}: {failure}")


def _lines() -> Iterator[str | None]:
    """Yield what the driver says; an empty text when there is time to look around; None once, behind the last line."""
    pending, is_open = b"", True
    while True:
        if not is_open:
            select.select([], [], [], _LOOK_SECONDS)
        elif select.select([sys.stdin.fileno()], [], [], _LOOK_SECONDS)[0]:
            data = os.read(sys.stdin.fileno(), 2**16)
            is_open = bool(data)
            *lines, pending = (pending + data).split(b"\n")
            yield from (each.decode() for each in lines)
            if not is_open:
                yield None
                continue
        yield ""


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:  # it is another user's, and lives
        return True
    except ProcessLookupError:
        return False
    return True


def _say(fields: dict[str, Any]) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
