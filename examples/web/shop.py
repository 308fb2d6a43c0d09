"""The shop behind the web application: the type of an order, where orders wait, and what happens to each.

Every process that imports this may put orders and handle them: the web processes, and any number of workers beside
them (``holdfast work shop:service``). None of them has to be there first, and none has to stay.
"""

from __future__ import annotations

import os

import msgspec

from holdfast import QueueService, Reject

LEDGER = os.environ.get("SHOP_LEDGER", "shop-ledger.txt")


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What a customer has ordered."""

    number: int
    item: str


service = QueueService(os.environ.get("SHOP_DATA", "shop-data"))
orders = service.queue("orders", type=Order)


@service.consumer(orders, concurrency=2, retry=[0.1, 1, 10])
def handle(order: Order) -> None:
    """Enter an order into the ledger. May run twice for one order, if its process dies in between."""
    if not order.item:
        raise Reject("nothing was ordered")
    line = f"{order.number} {order.item} {os.getpid()}\n".encode()
    file = os.open(LEDGER, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.write(file, line)  # one call, so that lines of several threads and processes do not mix
    finally:
        os.close(file)
