"""The options with which a service opens a queue: from the program, completed by the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from holdfast.queue.options.queue_options import Mode
from holdfast.queue.options.setting_values import nearest
from holdfast.queue.options.settings import DEFAULTS, Settings, checked, shown
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.serializers.codec import Codec
from holdfast.serializers.serializer import Serializer


class QueueOptions(Settings, total=False):
    """The options that :meth:`QueueService.queue` takes beside the name and the type.

    The first four define the encoding (:class:`Codec`), ``also_read`` the directories of dead nodes that are read too;
    the others are options of :class:`PersistentQueue`, with the settings of the queue among them.
    """

    serializer: str | Serializer | None
    version: int | Mapping[Any, int]
    allow_pickle: bool
    compress_bytes: int | None
    also_read: Sequence[str | os.PathLike[str]]
    mode: Mode
    can_own: bool
    group: str
    lock_timeout: float
    any_file_system: bool


QUEUE_OPTIONS = (*Settings.__annotations__, *QueueOptions.__annotations__)

_OF_CODEC = ("serializer", "version", "allow_pickle", "compress_bytes")

_DEFAULTS: Mapping[str, Any] = {
    **(Codec.__init__.__kwdefaults__ or {}),
    **(PersistentQueue.__init__.__kwdefaults__ or {}),
    **DEFAULTS,
    "also_read": (),
}

DEFAULT_MODE: Mode = _DEFAULTS["mode"]
"""The mode of a queue if the program says none: that of :class:`PersistentQueue`."""

_NOTHING: Mapping[str, Any] = {}

_SHOWN_MAX = 100
"""Characters of a value in an error."""


@dataclass(frozen=True)
class OpenedWith:
    """The options of one open queue.

    Attributes
    ----------
    type : object
        Of the bodies; None: not said.
    given : mapping
        The program's options.
    merged : mapping
        The program's options, completed by the configuration.
    asked, configured : Settings
        Those settings among them that the program and variables ask for, and those that ``holdfast.toml`` has chosen.
    place : str
        The file and line of the program that said them; empty if unknown.
    """

    type: Any
    given: Mapping[str, Any]
    merged: Mapping[str, Any]
    asked: Settings
    configured: Settings
    place: str = ""

    @property
    def codec_options(self) -> dict[str, Any]:
        """The arguments of :class:`Codec`."""
        options = {name: value for name, value in self.merged.items() if name in _OF_CODEC}
        return options if self.type is None else {"type": self.type, **options}

    @property
    def queue_options(self) -> dict[str, Any]:
        """The arguments of :class:`PersistentQueue`."""
        return {**self.handle_options, **self.asked, "configured": self.configured}

    @property
    def handle_options(self) -> dict[str, Any]:
        """Those without settings: for a queue that has its own."""
        others = {*_OF_CODEC, "also_read", *DEFAULTS}
        return {name: value for name, value in self.merged.items() if name not in others}

    @property
    def also_read(self) -> Sequence[str | os.PathLike[str]]:
        """Directories of nodes that died."""
        paths: Sequence[str | os.PathLike[str]] = self.merged.get("also_read", ())
        return paths

    def differing(self, other: OpenedWith, actual: Mapping[str, Any]) -> str:
        """Return the name of an option that differs in the other one, among those given here; or nothing.

        ``actual`` has the settings of the queue.
        """
        if self.type is not None and self.type != other.type:
            return "type"
        given = {**self.given, **checked({name: value for name, value in self.given.items() if name in DEFAULTS})}
        return next((name for name, value in given.items() if other.value(name, actual) != value), "")

    def value(self, name: str, actual: Mapping[str, Any] = _NOTHING) -> Any:
        """Return the value of an option: the actual one, else as it was set, else its default."""
        if name == "type":
            return self.type
        if name in actual and not (name == "flush" and name in self.merged):  # a handle may have a stronger policy
            return actual[name]
        return self.merged.get(name, _DEFAULTS.get(name))


def check_settings(settings: Iterable[str], verb: str, *others: str) -> None:
    """Refuse names that a verb of the service does not take; raises TypeError, as Python does.

    ``others`` are what it takes beside the settings.
    """
    for name in settings:
        if name not in QUEUE_OPTIONS:
            hint = nearest(name, (*QUEUE_OPTIONS, *others))
            raise TypeError(f"service.{verb}() has no option {name!r}; {hint}")


def place_of_call() -> str:
    """Return the file and line of the program that called into this package; empty if a task of asyncio did."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (package := str(frame.f_globals.get("__name__")).partition(".")[0]) != "asyncio":
        if package != "holdfast":
            return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def shown_option(value: Any) -> str:
    """Return an option's value as an error shows it: short, on one line."""
    text = value.__qualname__ if isinstance(value, type) else repr(value) if isinstance(value, str) else shown(value)
    return " ".join(text.split())[:_SHOWN_MAX]
