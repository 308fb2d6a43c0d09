"""The settings of a service's queue: from the program, completed by the configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.options.put_options import Seconds
from holdfast.queue.options.retry_policy import Backoff
from holdfast.serializers.serializer import Serializer


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
    mode: str
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
    expired: str
    lock_timeout: float
    any_file_system: bool


SUBMIT_OPTIONS = ("data_file_bytes", "record_bytes_max", "maxsize", "max_bytes", "dedup_window", "dedup_max")
"""What counts where the queue has no owner just then; the other options are about taking."""

_OF_CODEC = ("serializer", "version", "allow_pickle", "compress_bytes")


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
    """

    type: Any
    given: Mapping[str, Any]
    merged: Mapping[str, Any]

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
        for name, value in self.given.items():
            if name not in other.merged or other.merged[name] != value:
                return name
        return ""
