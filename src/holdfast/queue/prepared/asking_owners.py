"""Asks the owner of a shared queue in another process for an outcome, as a client without a session file.

Each wait is bounded. No thread that serves clients comes here: two owners would wait for each other.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.persistence.filesystem.storage import Storage
from holdfast.persistence.ownership.owner_lock import OwnerNote, read_owner_note
from holdfast.queue.engine.coordinators import Outcome
from holdfast.queue.protocol.frames import REQUEST, encode_frame
from holdfast.queue.protocol.messages import VERSION, AnyReply, AnyRequest, Done, Hello, Welcome, decode_reply, encode
from holdfast.queue.protocol.prepared_verbs import AskOutcome, as_request
from holdfast.queue.transport.connection import Connection, ConnectionLostError
from holdfast.queue.transport.endpoint import connect

ASK_SECONDS = 1.0
"""For each step: an owner that recovers, or is stopped, leaves the transaction in doubt until somebody looks again."""


def ask_owner(storage: Storage, root: Path, queue_id: bytes, nonce: bytes) -> Outcome | None:
    """Return the outcome that the owner of the queue at ``root`` knows; None if none answers."""
    try:
        note = read_owner_note(storage, root)
        return None if note is None or note.socket is None else _ask(note, note.socket, queue_id, nonce)
    except (OSError, ConnectionLostError, HoldfastError, ValueError):  # ValueError: no outcome of this version
        return None


def _ask(note: OwnerNote, socket: Path, queue_id: bytes, nonce: bytes) -> Outcome | None:
    with closing(Connection(connect(socket, ASK_SECONDS))) as connection:
        greeting = _exchange(connection, Hello(VERSION, note.epoch, 0, ""))
        if not isinstance(greeting, Welcome) or greeting.queue_id != queue_id:
            return None
        reply = _exchange(connection, as_request(AskOutcome(nonce)))
        return Outcome(reply.result["outcome"]) if isinstance(reply, Done) else None


def _exchange(connection: Connection, request: AnyRequest) -> AnyReply:
    request_id = connection.next_id()
    return decode_reply(
        connection.ask(request_id, encode_frame(REQUEST, request_id, encode(request)), ASK_SECONDS).body
    )
