"""How a queue is opened."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigError
from holdfast.persistence.flush_policy import FlushPolicy

MODES = ("both", "produce", "consume", "look", "submit")


@dataclass(frozen=True, slots=True)
class Options:
    """How a queue is opened: see :class:`PersistentQueue`."""

    mode: str
    group: str
    flush: FlushPolicy
    data_file_bytes: int
    lock_timeout: float
    is_visitor: bool = False

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
