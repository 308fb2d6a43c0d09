"""What the web application and its worker have in common: the type of an order, and where the queues are."""

from __future__ import annotations

import os

import msgspec

from holdfast import QueueService


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What a customer has ordered."""

    number: int
    item: str


def open_service() -> QueueService:
    """Return the service of this process. It opens nothing yet, so a server may fork behind this."""
    return QueueService(os.environ.get("SHOP_DATA", "shop-data"))
