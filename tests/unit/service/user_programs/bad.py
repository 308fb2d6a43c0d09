"""Mistakes of a user; both type checkers refuse each line that says so, and no other."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast import AsyncQueueService, Delivery, PersistentQueue, QueueService


@dataclass
class Order:
    """A message."""

    number: int


@dataclass
class Refund:
    """A message."""

    number: int


service = QueueService("data")
orders = service.queue("orders", type=Order)
several = service.queue("several", type=(Order, int))

orders.put(Refund(1))  # refused
orders.put(Order(1), delya=5)  # refused
several.put("text")  # refused
orders.put_many([Refund(1)])  # refused
text: str = orders.get()  # refused

jobs = PersistentQueue("jobs", mode="read")  # refused
jobs = PersistentQueue("jobs", mode="exclusive", expired="keep")  # refused
jobs.put("text")  # refused
jobs.browse("all")  # refused


@service.consumer(orders)  # refused
def handle(refund: Refund) -> None:
    """Do the work."""
    print(refund)


@service.consumer(several)  # refused
def handle_one_of_two(order: Order, delivery: Delivery[Order]) -> None:
    """Do the work."""
    print(order, delivery)


async def run() -> None:
    """Do the work."""
    tasks = AsyncQueueService("data2")
    queue = await tasks.queue("orders", type=Order)
    await queue.put(Refund(1))  # refused

    @tasks.consumer(queue)  # refused
    async def handle_in_a_task(refund: Refund) -> None:
        """Do the work."""
        print(refund)
