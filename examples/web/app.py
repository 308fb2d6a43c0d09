"""A web application of several processes that takes orders: ``gunicorn --workers 2 app:application``.

Each process puts with ``mode="submit"``, through whichever process owns the queue: the worker of tasks.py. While
it is away the web processes write by themselves, and orders wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from shop import Order, open_service

from holdfast import HoldfastError
from holdfast.service.typed_queue import TypedQueue

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

BODY_BYTES_MAX = 10_000

PUT_SECONDS = 10.0
"""How long a customer waits for an answer."""

service = open_service()
_opening = threading.Lock()
_decode = msgspec.json.Decoder(Order).decode


def orders() -> TypedQueue[Order]:
    """Return the queue, opened by the first request of this process, which is behind the fork."""
    with _opening:
        return service.queue("orders", type=Order, mode="submit")


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
        offset = orders().put(order, timeout=PUT_SECONDS, dedup_id=f"order-{order.number}")
    except HoldfastError as error:
        return "503 Service Unavailable", {"error": str(error)}
    return "202 Accepted", {"offset": offset}  # durable: it survives a loss of power from here on
