"""Requests and replies as bytes: what is encoded comes back, and anything else is refused."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.queue.protocol.messages import (
    VERSION,
    AnyReply,
    AnyRequest,
    Arrived,
    Attach,
    Commit,
    Done,
    Hello,
    Offsets,
    Put,
    Refused,
    Resume,
    Settle,
    Take,
    Taken,
    UnreadableError,
    Verb,
    Welcome,
    decode_reply,
    decode_request,
    encode,
)

NONCE = bytes(range(16))
LAST = 2**64 - 1

REQUESTS: list[AnyRequest] = [
    Hello(VERSION, NONCE, 2**32 - 1, "0123456789abcdef.making"),
    Resume("default", [1, LAST]),
    Attach("default", {"maxsize": 5}, {}, True),
    Put(NONCE, True, "id", {0: b"h", 9: b""}, None),
    Commit(NONCE, "t", {}, 0.5, "default", [(LAST, 0), (1, 2**63)]),
    Arrived(NONCE[:8], LAST),
    Take("default", LAST, 1, None, 20.0),
    Settle("default", "nack", [(1, 0)], 0.0, ("", "", "", "")),
    Settle("default", "ack", [], None, None),
    Verb("", {"verb": "flush"}),
]
REPLIES: list[AnyReply] = [
    Welcome(1, NONCE),
    Offsets(0, 0),
    Taken([(0, -1, b"h", 3)], 60.0, 0),
    Done({"count": 1}),
    Refused("{}"),
]


def name_of(message: AnyRequest | AnyReply) -> str:
    """Return the name of a test."""
    return type(message).__name__


@pytest.mark.parametrize("request_", REQUESTS, ids=name_of)
def test_a_request_comes_back(request_: AnyRequest) -> None:
    """Whatever its fields."""
    assert decode_request(encode(request_)) == request_


def test_text_that_is_no_utf_8_is_sent_with_escapes() -> None:
    """Wherever it is; other fields come as they are."""
    text, escaped = "caf\udce9", r"caf\udce9"
    settle = Settle("default", "reject", [(1, 0)], None, ("rejected", text, "", text))
    assert decode_request(encode(settle)) == Settle(
        "default", "reject", [(1, 0)], None, ("rejected", escaped, "", escaped)
    )
    verb = Verb("", {"verb": "pause", text: [text, b"\xe9", 7], "until_ns": None})
    assert decode_request(encode(verb)) == Verb("", {"verb": "pause", escaped: [escaped, b"\xe9", 7], "until_ns": None})


@pytest.mark.parametrize("reply", REPLIES, ids=name_of)
def test_a_reply_comes_back(reply: AnyReply) -> None:
    """Whatever its fields."""
    assert decode_reply(encode(reply)) == reply


@pytest.mark.parametrize(
    "fields",
    [
        ["Put", NONCE[:15], False, "", {}, None],
        ["Put", NONCE, 1, "", {}, None],
        ["Put", NONCE, False, "x" * 256, {}, None],
        ["Put", NONCE, False, "", {-1: b""}, None],
        ["Put", NONCE, False, "", {}, -0.5],
        ["Put", NONCE, False, ""],
        ["Take", "g", 0, 1, None, None],
        ["Take", "g", 1, 0, None, None],
        ["Take", "g" * 101, 1, 1, None, None],
        ["Take", "g", 1, 1, -1.0, None],
        ["Hello", 1, NONCE, 2**32, ""],
        ["Hello", 1, NONCE[:8], 0, ""],
        ["Arrived", NONCE, 0],
        ["Settle", "g", "ack", [[0, 0]], None, None],
        ["Settle", "g", "ack", [[1, -1]], None, None],
        ["Settle", "g", "ack", [[1]], None, None],
        ["Welcome", 1, NONCE],
        ["Explode"],
        [],
        {},
        None,
    ],
    ids=str,
)
def test_fields_that_cannot_be_are_refused(fields: object) -> None:
    """Each has its type and its range."""
    with pytest.raises(UnreadableError, match="no request of this version"):
        decode_request(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x91", b"\x91\xa3Put", b"\x91\xa1\xff", b"\x91" * 5000], ids=lambda body: repr(body[:8])
)
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    """By an error of this module, whatever they are."""
    with pytest.raises(UnreadableError, match="no request"):
        decode_request(body)
    with pytest.raises(UnreadableError, match="no reply"):
        decode_reply(body)


def test_a_request_is_no_reply() -> None:
    """And the other way round."""
    with pytest.raises(UnreadableError):
        decode_reply(encode(REQUESTS[0]))
    with pytest.raises(UnreadableError):
        decode_request(encode(REPLIES[0]))
