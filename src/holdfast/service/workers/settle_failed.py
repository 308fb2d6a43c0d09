"""Carries out what was decided on a message that is not simply done, and says so in the log."""

from __future__ import annotations

import logging
from typing import Any

from holdfast.errors import ClosedError, LeaseError
from holdfast.queue.delivery import Delivery
from holdfast.service.workers.verdict import NACK, RELEASE, Verdict, carry_out

logger = logging.getLogger("holdfast")


def settle_failed(queue_name: str, verdict: Verdict, delivery: Delivery[Any]) -> None:
    """Do as the verdict says, unless the handler has settled its message itself, or a transaction will."""
    _report(queue_name, verdict, delivery)
    if delivery.is_settled or delivery.holder is not None:
        return
    try:
        carry_out(verdict, delivery)
    except (LeaseError, ClosedError) as error:
        logger.warning("%s: offset %d may come again: %s", queue_name, delivery.offset, error)


def _report(queue_name: str, verdict: Verdict, delivery: Delivery[Any]) -> None:
    if verdict.verb == RELEASE:
        return
    failure = verdict.failure
    says = f"{failure.exception or failure.reason}: {failure.detail}".rstrip(": ")
    what = "failed at delivery" if verdict.verb == NACK else "is a dead letter at delivery"
    logger.warning("%s: offset %d %s %d: %s", queue_name, delivery.offset, what, delivery.delivery_count, says)
