"""A program of a user that both type checkers accept; each ``reveal_type`` is compared."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import reveal_type

from holdfast import AsyncDelivery, AsyncQueue, AsyncQueueService, Delivery, PersistentQueue, QueueService, TypedQueue


@dataclass
class Order:
    """A message."""

    number: int


@dataclass
class Refund:
    """A message."""

    number: int


service = QueueService("data")
orders = service.queue("orders", type=Order, mode="exclusive", max_deliveries=3)
either: TypedQueue[Order | Refund] = service.queue("either", type=Order | Refund)
several = service.queue("several", type=(Order, Refund))
pairs = service.queue("pairs", type=tuple[int, str])
anything = service.queue("anything")

reveal_type(orders.get())  # Order
reveal_type(several.get())  # Order | Refund
reveal_type(pairs.get())  # tuple[int, str]
orders.put(Order(1), delay=timedelta(seconds=5), headers={"tenant": "acme"})
either.put(Refund(1))
several.put_many([Order(1), Refund(2)])
pairs.put((1, "one"))
anything.put({"number": 1})
with orders.receive(timeout=5) as message:
    reveal_type(message.body)  # Order
for order in orders:
    reveal_type(order)  # Order
print(orders.qsize(), orders.purge())


@service.consumer(orders, concurrency=2)
def handle(order: Order) -> None:
    """Do the work."""
    print(order.number)


@service.consumer(several)
def handle_either(body: Order | Refund, delivery: Delivery[Order | Refund]) -> None:
    """Do the work."""
    print(body.number, delivery.delivery_count)


@service.consumer("anything", lease_seconds=20)
def handle_anything(body: dict[str, int]) -> None:
    """Do the work."""
    print(body)


@service.consumer(pairs)
def handle_objects(body: object) -> None:
    """Do the work."""
    print(body)


handle(Order(1))
handle_anything({"number": 1})


async def run() -> None:
    """Do the work."""
    async with AsyncQueueService("data2") as tasks:
        queue: AsyncQueue[Order] = await tasks.queue("orders", type=Order)

        @tasks.consumer(queue)
        async def handle_in_a_task(order: Order, delivery: AsyncDelivery[Order]) -> None:
            """Do the work."""
            print(order, delivery.body)

        await queue.put(Order(1))
        reveal_type(await queue.get())  # Order
        async for order in queue:
            reveal_type(order)  # Order
        await tasks.run()


with PersistentQueue("jobs", mode="exclusive", expired="dead") as jobs:
    reveal_type(jobs.get())  # bytes
    print(jobs.browse("leased"))
