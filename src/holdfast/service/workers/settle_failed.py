"""Carries out what was decided on a message that is not simply done, and says so in the log."""

from __future__ import annotations

import logging
from typing import Any

from holdfast.errors import ClosedError, LeaseError
from holdfast.queue.dispatch.delivery import Delivery
from holdfast.service.workers.verdict import NACK, Outcome, carry_out

logger = logging.getLogger("holdfast")


def settle_failed(queue_name: str, verdict: Outcome, delivery: Delivery[Any]) -> None:
    """Do as the verdict says, unless the handler has settled its message itself, or a transaction will."""
    _report(queue_name, verdict, delivery)
    if delivery.is_settled or delivery.holder is not None:
        return
    try:
        carry_out(verdict, delivery)
    except (LeaseError, ClosedError) as error:
        logger.warning("%s: offset %d may come again: %s", queue_name, delivery.offset, error)


def _report(queue_name: str, verdict: Outcome, delivery: Delivery[Any]) -> None:
    """Say that a message failed and comes again; of one that becomes a dead letter its queue says more."""
    if verdict.verb != NACK or delivery.is_last:
        return
    failure = delivery.redacted(verdict.failure)
    says = f"{failure.exception or failure.reason}: {failure.detail}".rstrip(": ")
    number = delivery.delivery_count
    logger.warning("%s: offset %d failed at delivery %d: %s", queue_name, delivery.offset, number, says)
