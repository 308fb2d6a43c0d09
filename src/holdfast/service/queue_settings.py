"""The settings of a service's queue: from the program, completed by the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, TypedDict

from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.options.put_options import Seconds
from holdfast.queue.options.queue_options import Mode
from holdfast.queue.options.retry_policy import Backoff
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.serializers.codec import Codec
from holdfast.serializers.serializer import Serializer
from holdfast.service.configuration.options import nearest


class QueueSettings(TypedDict, total=False):
    """The options that :meth:`QueueService.queue` takes beside the name and the type.

    The first five define the encoding (:class:`Codec`), ``also_read`` the directories of dead nodes that are read too;
    the others are options of :class:`PersistentQueue`.
    """

    serializer: str | Serializer | None
    version: int | Mapping[Any, int]
    allow_pickle: bool
    compress_bytes: int | None
    also_read: Sequence[str | os.PathLike[str]]
    mode: Mode
    group: str
    flush: FlushPolicy
    data_file_bytes: int
    record_bytes_max: int
    maxsize: int
    max_bytes: int | None
    dedup_window: Seconds
    dedup_max: int
    max_deliveries: int | None
    backoff: Backoff | Sequence[float]
    lease_seconds: Seconds
    dead_letter_seconds: Seconds
    expired: Literal["drop", "dead"]
    lock_timeout: float
    any_file_system: bool


SUBMIT_OPTIONS = ("data_file_bytes", "record_bytes_max", "maxsize", "max_bytes", "dedup_window", "dedup_max")
"""What counts where the queue has no owner just then; the other options are about taking."""

_OF_CODEC = ("serializer", "version", "allow_pickle", "compress_bytes")

_DEFAULTS: Mapping[str, Any] = {
    **(Codec.__init__.__kwdefaults__ or {}),
    **(PersistentQueue.__init__.__kwdefaults__ or {}),
    "also_read": (),
}

_SHOWN_MAX = 100
"""Characters of a value in an error."""


@dataclass(frozen=True)
class Settings:
    """The settings of one open queue.

    Attributes
    ----------
    type : object
        Of the bodies; None: not said.
    given : mapping
        The program's settings.
    merged : mapping
        The program's settings, completed by the configuration.
    place : str
        The file and line of the program that said them; empty if unknown.
    """

    type: Any
    given: Mapping[str, Any]
    merged: Mapping[str, Any]
    place: str = ""

    @property
    def codec_options(self) -> dict[str, Any]:
        """The arguments of :class:`Codec`."""
        options = {name: value for name, value in self.merged.items() if name in _OF_CODEC}
        return options if self.type is None else {"type": self.type, **options}

    @property
    def queue_options(self) -> dict[str, Any]:
        """The arguments of :class:`PersistentQueue`."""
        return {name: value for name, value in self.merged.items() if name not in (*_OF_CODEC, "also_read")}

    @property
    def also_read(self) -> Sequence[str | os.PathLike[str]]:
        """Directories of nodes that died."""
        paths: Sequence[str | os.PathLike[str]] = self.merged.get("also_read", ())
        return paths

    def differing(self, other: Settings) -> str:
        """Return the name of a setting that differs in the other one, among those set here; or nothing."""
        if self.type is not None and self.type != other.type:
            return "type"
        return next((name for name, value in self.given.items() if other.value(name) != value), "")

    def value(self, name: str) -> Any:
        """Return the value of a setting: as set, else its default."""
        return self.type if name == "type" else self.merged.get(name, _DEFAULTS[name])


def check_settings(settings: Iterable[str], verb: str, *others: str) -> None:
    """Refuse names that a verb of the service does not take; raises TypeError, as Python does.

    ``others`` are what it takes beside the settings.
    """
    for name in settings:
        if name not in QueueSettings.__annotations__:
            hint = nearest(name, (*QueueSettings.__annotations__, *others))
            raise TypeError(f"service.{verb}() has no option {name!r}; {hint}")


def place_of_call() -> str:
    """Return the file and line of the program that called into this package; empty if a task of asyncio did."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (package := str(frame.f_globals.get("__name__")).partition(".")[0]) != "asyncio":
        if package != "holdfast":
            return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def shown(value: Any) -> str:
    """Return a setting's value as an error shows it: short, on one line."""
    text = value.__qualname__ if isinstance(value, type) else repr(value)
    return " ".join(text.split())[:_SHOWN_MAX]
