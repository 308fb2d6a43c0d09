"""How a queue is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.errors import ConfigError
from holdfast.persistence.format.constants import DEDUP_SLOTS_MAX
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.options.retry_policy import RetryPolicy

Mode = Literal["both", "produce", "consume", "look", "submit"]
MODES = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Options:
    """The options with which a queue is opened: see :class:`PersistentQueue`."""

    mode: str
    group: str
    flush: FlushPolicy
    data_file_bytes: int
    lock_timeout: float
    is_visitor: bool = False
    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009  # immutable
    dedup_window_ns: int = 300 * 10**9
    dedup_max: int = 100_000
    redact: Callable[[str], str] | None = None
    any_file_system: bool = False
    maxsize: int = 0
    max_bytes: int | None = None

    @property
    def writes(self) -> bool:
        """Whether this handle owns the write side."""
        return self.mode in ("both", "produce")

    @property
    def reads(self) -> bool:
        """Whether this handle owns the read side of its group."""
        return self.mode in ("both", "consume")

    @property
    def looks(self) -> bool:
        """Whether this handle owns no side."""
        return self.mode in ("look", "submit")


def check_options(options: Options) -> None:
    """Refuse what cannot work; raises ConfigError."""
    if options.mode not in MODES:
        raise ConfigError(f"mode is one of {', '.join(MODES)}, not {options.mode!r}")
    if not isinstance(options.flush, FlushPolicy):
        raise ConfigError("flush takes FlushPolicy.every_commit(), .every(...) or .never()")
    if options.redact is not None and not callable(options.redact):
        raise ConfigError(f"redact takes a function from str to str, not {options.redact!r}")
    if not 1 <= options.dedup_max <= DEDUP_SLOTS_MAX:
        raise ConfigError(f"dedup_max is from 1 to {DEDUP_SLOTS_MAX}, not {options.dedup_max!r}")
