"""A handler with all it needs to work on a message, wherever it runs: in a thread, or in another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.options.retry_policy import RetryPolicy
from holdfast.serializers.codec import Codec
from holdfast.service.workers.settlement import Settlement, check_result, settlement_of


@dataclass(frozen=True, slots=True)
class Job:
    """The handling of the messages of one queue. Can be pickled if the handler and the queue's types can.

    Attributes
    ----------
    queue_name : str
        Whose messages.
    handler : callable
        Takes the object, or object and delivery.
    takes_delivery : bool
        Whether it takes both.
    retry : RetryPolicy or None
        The consumer's own back-off.
    codec : Codec
        Decodes the messages.
    """

    queue_name: str
    handler: Callable[..., Any]
    takes_delivery: bool
    retry: RetryPolicy | None
    codec: Codec[Any]

    def handle(self, delivery: Delivery[Any]) -> Settlement | None:
        """Call the handler; None if it has returned, and the message is done."""
        try:
            result = self.handler(delivery.body, delivery) if self.takes_delivery else self.handler(delivery.body)
            if result is not None:
                check_result(result)
        except BaseException as error:  # sys.exit() in a handler fails a message, not the worker
            return settlement_of(error, delivery.delivery_count, self.retry)
        return None
