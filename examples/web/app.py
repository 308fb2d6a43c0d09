"""A web application of several processes that takes orders and handles them: ``gunicorn --workers 4 app:application``.

Each process puts orders, and handles orders in a thread (``gunicorn.conf.py``). One of them owns the queue and serves
the others; if it is killed, the next one does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from shop import Order, orders

from holdfast import HoldfastError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

BODY_BYTES_MAX = 10_000

PUT_SECONDS = 10.0
"""How long a customer waits for an answer."""

_decode = msgspec.json.Decoder(Order).decode


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer one request: ``POST /orders`` with an order as JSON."""
    status, answer = _answer(environ)
    body = msgspec.json.encode(answer)
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def _answer(environ: WSGIEnvironment) -> tuple[str, dict[str, object]]:
    if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) != ("POST", "/orders"):
        return "404 Not Found", {"error": "POST /orders takes orders"}
    size = int(environ.get("CONTENT_LENGTH") or 0)
    if size > BODY_BYTES_MAX:
        return "413 Content Too Large", {"error": f"an order has at most {BODY_BYTES_MAX} bytes"}
    try:
        order = _decode(environ["wsgi.input"].read(size))
    except msgspec.MsgspecError as error:
        return "400 Bad Request", {"error": str(error)}
    try:
        # The number as dedup_id: who got no answer and orders again has ordered once.
        offset = orders.put(order, timeout=PUT_SECONDS, dedup_id=f"order-{order.number}")
    except HoldfastError as error:
        return "503 Service Unavailable", {"error": str(error)}
    return "202 Accepted", {"offset": offset}  # durable: it survives a loss of power from here on
