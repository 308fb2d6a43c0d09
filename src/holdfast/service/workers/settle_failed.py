"""Settles a message that did not simply succeed, and logs it."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

from holdfast.errors import ClosedError, LeaseError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.workers.patience import patiently
from holdfast.service.workers.settlement import NACK, Settlement, carry_out

logger = logging.getLogger("holdfast")


def settle_failed(queue_name: str, settlement: Settlement, delivery: Delivery[Any], stopped: threading.Event) -> None:
    """Settle by the outcome, unless the handler has settled its message itself, or a transaction will.

    An owner that does not answer is asked again until ``stopped`` is set; then RetryableError comes out. A message that
    is not settled here, or by the transaction, comes again when its lease runs out.
    """
    try:
        if not delivery.is_settled and delivery.holder is None:
            patiently(partial(carry_out, settlement, delivery), queue_name, stopped)
    except (LeaseError, ClosedError) as error:
        note_left(queue_name, delivery, error)
    finally:
        delivery.is_open = False


def note_left(queue_name: str, delivery: Delivery[Any], error: BaseException) -> None:
    """Log that a message could not be settled."""
    logger.warning("%s: offset %d may come again: %s", queue_name, delivery.offset, error)


def report_failed(queue_name: str, settlement: Settlement, delivery: Delivery[Any]) -> None:
    """Log that a message failed and comes again; a dead letter is logged by its queue."""
    if settlement.verb != NACK or delivery.is_last:
        return
    failure = delivery.redacted(settlement.failure)
    says = f"{failure.exception or failure.reason}: {failure.detail}".rstrip(": ")
    number = delivery.delivery_count
    logger.warning("%s: offset %d failed at delivery %d: %s", queue_name, delivery.offset, number, says)
