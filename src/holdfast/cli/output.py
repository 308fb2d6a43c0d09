"""What commands write to standard output: documents in JSON for programs, payloads as they are."""

from __future__ import annotations

import base64
import sys
from typing import Any

import click

from holdfast.messages import Message
from holdfast.persistence.format.report import Damage
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.inspect.dead_letters import DeadLetter

Document = dict[str, Any]


def write_json(document: Any) -> None:
    """Write one JSON document, as one line."""
    click.echo(json_line(document), nl=False)


def write_bytes(data: bytes) -> None:
    """Write all of it; Python writes a part and reports it if it runs unbuffered (``python -u``)."""
    left = memoryview(data)
    while left:
        written = sys.stdout.buffer.write(left)
        if not written:
            raise BlockingIOError("standard output is full, and is not waited for")
        left = left[written:]


def json_line(document: Any) -> bytes:
    """Return a JSON document as one line."""
    import msgspec

    return msgspec.json.encode(document) + b"\n"


def message_document(message: Message | Delivery | DeadLetter) -> Document:
    """Return a message with everything that is known of it.

    The payload is ``payload`` if it is JSON, else ``payload_text`` if it is UTF-8, else ``payload_base64``.
    """
    return {
        "offset": message.offset,
        "timestamp_ns": message.timestamp_ns,
        "delivery_count": message.delivery_count,
        "headers": dict(message.headers),
        **_payload_fields(message.payload),
    }


def _payload_fields(payload: bytes) -> Document:
    import msgspec

    try:
        msgspec.json.decode(payload)
        return {"payload": msgspec.Raw(msgspec.json.format(payload, indent=-1))}  # in one line, numbers as they are
    except (ValueError, RecursionError):
        pass
    try:
        return {"payload_text": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def span(offsets: range, count: int | None = None) -> Document:
    """Return a range of offsets; ``count``: how many of these are meant, if not all are."""
    return {
        "count": len(offsets) if count is None else count,
        "first_offset": offsets[0] if offsets else None,
        "last_offset": offsets[-1] if offsets else None,
    }


def damage_document(damage: Damage) -> Document:
    """Return one run of bytes that does not verify, and the offsets that are lost with it."""
    return {
        "path": str(damage.path),
        "position": damage.position,
        "size_bytes": damage.size_bytes,
        "offsets": span(damage.offsets),
        "verdict": damage.verdict,
        "reason": damage.reason,
    }
