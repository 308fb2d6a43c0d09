"""The retry policy: how often a message is delivered, how long it waits in between, and its end. Pure."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import ConfigError, UsageError
from holdfast.persistence.groups.position_entry import DELIVERY_COUNT_MAX
from holdfast.queue.options.arguments import SECONDS_MAX
from holdfast.queue.options.put_options import Seconds, as_seconds

_WAITS_MAX = 1000
"""A longer list would not fit into ``group.json`` beside the ranges that it has."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a message waits before it is delivered again: twice as long after each failure.

    Attributes
    ----------
    base, cap : float, seconds
        The wait after the first failure, and the longest one.
    jitter : bool
        Whether each wait is a random part of that, from half of it to all: so messages that failed together do not
        come again together.
    """

    base: float = 1
    cap: float = 3600
    jitter: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.base <= self.cap <= sys.float_info.max:
            raise ConfigError(f"Backoff takes 0 <= base <= cap, in seconds; not base={self.base!r}, cap={self.cap!r}")

    def seconds(self, failure_count: int) -> float:
        """Return the wait after so many failures, at least one."""
        doublings = min(failure_count - 1, 64)  # beyond that any cap is reached, and floats end
        wait = min(self.cap, self.base * 2.0**doublings, SECONDS_MAX)
        return random.uniform(wait / 2, wait) if self.jitter else wait  # noqa: S311 # it need not be hard to guess


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The rules of a consumer group for failing messages.

    Attributes
    ----------
    max_deliveries : int or None
        How often a message is delivered; then it becomes a dead letter. None: for ever.
    backoff : Backoff or sequence of float, seconds
        The waits between deliveries; the last one of a list is used for all later failures. An empty list: none.
    lease_seconds : float
        How long a delivery is its receiver's, unless ``receive`` overrides it.
    dead_letter_seconds : float
        How long dead letters are kept.
    expired : "drop" or "dead"
        The end of a message that has expired: dropped, or a dead letter.
    """

    max_deliveries: int | None = 5
    backoff: Backoff | Sequence[float] = Backoff()  # immutable
    lease_seconds: float = 30
    dead_letter_seconds: float = 14 * 86400
    expired: str = "drop"

    @property
    def keeps_expired(self) -> bool:
        """Whether a message that has expired becomes a dead letter."""
        return self.expired == "dead"

    def is_last(self, delivery_count: int) -> bool:
        """Whether a message that was delivered so often is not delivered again."""
        return self.max_deliveries is not None and delivery_count >= self.max_deliveries

    def wait_seconds(self, failure_count: int) -> float:
        """Return how long a message waits after so many failures."""
        if isinstance(self.backoff, Backoff):
            return self.backoff.seconds(failure_count)
        return self.backoff[min(failure_count, len(self.backoff)) - 1] if self.backoff else 0.0


def retry_policy(
    max_deliveries: int | None,
    backoff: Backoff | Sequence[float],
    lease_seconds: Seconds,
    dead_letter_seconds: Seconds,
    expired: str,
) -> RetryPolicy:
    """Return the policy that these options of a queue make; raises ConfigError if it cannot work."""
    if max_deliveries is not None and (type(max_deliveries) is not int or max_deliveries < 1):
        raise ConfigError(f"max_deliveries is a number from 1 on, or None for no bound; not {max_deliveries!r}")
    if max_deliveries is not None:
        max_deliveries = min(max_deliveries, DELIVERY_COUNT_MAX)  # no count on the disk is larger
    if not isinstance(backoff, Backoff):
        if isinstance(backoff, str | bytes) or not isinstance(backoff, Sequence):
            raise ConfigError(f"backoff takes a Backoff or a list of seconds, not {backoff!r}")
        if len(backoff) > _WAITS_MAX:
            raise ConfigError(f"backoff takes up to {_WAITS_MAX} waits, not {len(backoff)}: the last one is repeated")
        try:
            backoff = tuple(as_seconds(wait, "backoff") for wait in backoff)
        except (TypeError, UsageError):
            raise ConfigError(f"backoff takes seconds from 0 on, not {list(backoff)!r}") from None
    if expired not in ("drop", "dead"):
        raise ConfigError(f'expired is "drop" or "dead", not {expired!r}')
    times = {"lease_seconds": lease_seconds, "dead_letter_seconds": dead_letter_seconds}
    lease, dead_letter = (_above_zero(value, name) for name, value in times.items())
    return RetryPolicy(max_deliveries, backoff, lease, dead_letter, expired)


def _above_zero(value: Seconds, name: str) -> float:
    try:
        seconds = as_seconds(value, name)
    except (TypeError, UsageError) as error:
        raise ConfigError(str(error)) from None
    if not seconds:
        raise ConfigError(f"{name} is a number of seconds above 0, not {value!r}")
    return seconds
