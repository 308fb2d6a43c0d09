"""How a queue is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from holdfast.errors import ConfigError
from holdfast.persistence.groups.group_files import DEFAULT_GROUP
from holdfast.queue.options.arguments import check_lock_timeout
from holdfast.queue.options.settings import Settings

Mode = Literal["exclusive", "shared", "read_only"]
MODES = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Options:
    """What one handle asks for: see :class:`PersistentQueue`. ``settings`` are those that the program has given.

    An owner opens its parts with two more modes: "write_side", and "read_side" for a group beside it. A visitor has the
    write side for a moment only, and others wait for its end.
    """

    mode: str
    group: str
    settings: Settings = field(default_factory=Settings)
    configured: Settings = field(default_factory=Settings)
    lock_timeout: float = 0
    redact: Callable[[str], str] | None = None
    any_file_system: bool = False
    can_own: bool = True
    is_visitor: bool = False

    @property
    def writes(self) -> bool:
        """Whether this handle owns the write side."""
        return self.mode in ("exclusive", "write_side")

    @property
    def reads(self) -> bool:
        """Whether this handle owns the read side of its group."""
        return self.mode in ("exclusive", "read_side")

    @property
    def takes(self) -> bool:
        """Whether this handle takes messages: by its read side, or through an owner."""
        return self.reads or self.mode == "shared"

    @property
    def looks(self) -> bool:
        """Whether this handle owns no side."""
        return self.mode in ("shared", "read_only")

    def as_owner(self) -> Options:
        """Return how the owner behind a handle opens the write side: without settings of its own."""
        return Options(
            "write_side", DEFAULT_GROUP, lock_timeout=self.lock_timeout, any_file_system=self.any_file_system
        )


def check_options(options: Options) -> None:
    """Refuse what cannot work; raises ConfigError."""
    if options.mode not in MODES:
        raise ConfigError(f"mode is one of {', '.join(MODES)}, not {options.mode!r}")
    if options.redact is not None and not callable(options.redact):
        raise ConfigError(f"redact takes a function from str to str, not {options.redact!r}")
    if not options.can_own and options.mode != "shared":
        raise ConfigError(f"can_own=False is for mode='shared': a handle of mode={options.mode!r} owns what it opens")
    check_lock_timeout(options.lock_timeout)
