"""The worker of the shop: ``holdfast work tasks:service``. It owns the queue, and is one process."""

from __future__ import annotations

import os

from shop import Order, open_service

from holdfast import Reject

LEDGER = os.environ.get("SHOP_LEDGER", "shop-ledger.txt")

service = open_service()


@service.consumer("orders", concurrency=4, retry=[0.1, 1, 10])
def handle(order: Order) -> None:
    """Enter an order into the ledger. May run twice for one order, where the worker dies in between."""
    if not order.item:
        raise Reject("nothing was ordered")
    line = f"{order.number} {order.item}\n".encode()
    file = os.open(LEDGER, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.write(file, line)  # one call, so that lines of several threads do not mix
    finally:
        os.close(file)


if __name__ == "__main__":
    with service:
        service.run()
