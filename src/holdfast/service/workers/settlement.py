"""The outcome of a message after its handler: decided by the handler's exception, carried out elsewhere."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from holdfast.log import text_of
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.queue.options.failure import GIVEN_BACK, SEEN_CHARACTERS_MAX, Failure, failure_of
from holdfast.queue.options.put_options import as_seconds
from holdfast.queue.options.retry_policy import RetryPolicy
from holdfast.service.workers.handler_errors import Reject, Retry

NACK = "nack"
REJECT = "reject"
PARK = "park"
RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Settlement:
    """Anything but an acknowledgement; for that there is None. Can be pickled: worker processes send it.

    Attributes
    ----------
    verb : str
        The verb of the delivery.
    delay : float or None, seconds
        How long a message that failed waits; None: after the queue's back-off.
    failure : Failure
        The details that are kept if it becomes a dead letter.
    """

    verb: str
    delay: float | None = None
    failure: Failure = GIVEN_BACK


def check_result(result: object) -> None:
    """Refuse a result that is work still to be done, as behind a decorator; raises TypeError."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()  # so that Python does not warn of it too
        raise TypeError(
            f"the handler returned before its work was done ({type(result).__name__}): await it in an `async def`, "
            "which an AsyncQueueService runs"
        )


def settlement_of(error: BaseException, delivery_count: int, retry: RetryPolicy | None) -> Settlement:
    """Return the outcome of a message whose handler has raised.

    The exception is code of the program's: if its text or its delay is faulty, the message has failed because of that.

    Parameters
    ----------
    error : BaseException
        The exception: :class:`Reject` and :class:`Retry` define the outcome themselves.
    delivery_count : int
        How often the message was delivered.
    retry : RetryPolicy or None
        The consumer's own back-off.
    """
    try:
        if isinstance(error, Reject):
            return Settlement(REJECT, failure=Failure("rejected", text_of(error.reason)[:SEEN_CHARACTERS_MAX]))
        if isinstance(error, Retry):
            is_from = error.__cause__ is not None or error.__suppress_context__
            reason = error.__cause__ if is_from else error.__context__
            failure = GIVEN_BACK if reason is None else failure_of(reason)
            if error.delay is not None:
                return Settlement(NACK, as_seconds(error.delay, "delay"), failure)
        else:
            failure = failure_of(error)
    except BaseException as faulty:
        failure = failure_of(faulty)
    return Settlement(NACK, None if retry is None else retry.wait_seconds(delivery_count), failure)


def carry_out(settlement: Settlement, delivery: Delivery) -> None:
    """Settle a delivery by the outcome; raises as :meth:`Delivery.nack`."""
    if settlement.verb == NACK:
        delivery.nack(settlement.delay, error=settlement.failure)
    elif settlement.verb == REJECT:
        delivery.reject(settlement.failure.detail)
    elif settlement.verb == PARK:
        delivery.park(settlement.failure)
    else:
        delivery.release()
