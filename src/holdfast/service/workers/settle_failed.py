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

_NEVER = threading.Event()
"""Only the closing of its queue ends the wait for an owner that does not answer."""


def settle_failed(queue_name: str, settlement: Settlement, delivery: Delivery[Any]) -> None:
    """Settle by the outcome, unless the handler has settled its message itself, or a transaction will.

    One that is not settled here, or by the transaction, comes again when its lease runs out.
    """
    try:
        _report(queue_name, settlement, delivery)
        if not delivery.is_settled and delivery.holder is None:
            patiently(partial(carry_out, settlement, delivery), queue_name, _NEVER)
    except (LeaseError, ClosedError) as error:
        logger.warning("%s: offset %d may come again: %s", queue_name, delivery.offset, error)
    finally:
        delivery.is_open = False


def _report(queue_name: str, settlement: Settlement, delivery: Delivery[Any]) -> None:
    """Log that a message failed and comes again; a dead letter is logged by its queue."""
    if settlement.verb != NACK or delivery.is_last:
        return
    failure = delivery.redacted(settlement.failure)
    says = f"{failure.exception or failure.reason}: {failure.detail}".rstrip(": ")
    number = delivery.delivery_count
    logger.warning("%s: offset %d failed at delivery %d: %s", queue_name, delivery.offset, number, says)
