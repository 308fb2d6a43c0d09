"""The settings that count in one handle: what the disk has, compared with what the program asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from holdfast.errors import ConfigError, CorruptionError
from holdfast.persistence.log.flush_policy import FlushPolicy
from holdfast.queue.options.retry_policy import RetryPolicy
from holdfast.queue.options.settings import (
    DEFAULTS,
    GROUP_SETTINGS,
    QUEUE_SETTINGS,
    Settings,
    checked,
    read_stored,
    retry_of,
    shown,
    stored,
)

Document = Mapping[str, Any]


class HandleSettings:
    """The settings of one queue and one group.

    Parameters
    ----------
    root : Path
        The queue.
    given : Settings
        What the program asks for: it must agree with the disk.
    configured : Settings
        What the operator has chosen: the owner changes the disk to it.

    Attributes
    ----------
    values : Settings
        What counts: all of them.
    """

    def __init__(self, root: Path, given: Settings, configured: Settings) -> None:
        self._root = root
        self._given = given
        self._configured = cast(Settings, {name: value for name, value in configured.items() if name not in given})
        self.values: Settings = {**DEFAULTS, **self._configured, **given}

    @property
    def flush(self) -> FlushPolicy:
        """The durability of this handle: at least that of the queue."""
        return self._given.get("flush", self.values["flush"])

    @property
    def retry(self) -> RetryPolicy:
        """The rules of the group."""
        return retry_of(self.values)

    def of_new_queue(self) -> dict[str, Any]:
        """Return what a queue that this handle makes gets."""
        return stored({**self._configured, **self._given}, QUEUE_SETTINGS)

    def of_new_group(self) -> dict[str, Any]:
        """Return what a group that this handle makes gets."""
        return stored({**self._configured, **self._given}, GROUP_SETTINGS)

    def adopt_queue(self, document: Document | None, *, is_reader: bool = False) -> Document | None:
        """Take over the settings of the queue; return what an owner has to store, because the operator has changed it.

        Parameters
        ----------
        document : mapping or None
            What is stored; None: it was lost, which only a reader may ignore.
        is_reader : bool
            Whether this handle only looks.

        Raises
        ------
        ConfigError
            The program asks for another value.
        CorruptionError
            They were lost.
        UnsupportedVersionError
            A later version has set them.
        """
        if document is None and is_reader:
            return None
        return self._adopt(document, QUEUE_SETTINGS, self._root / "queue.json")

    def adopt_group(self, document: Document | None, path: Path) -> Document | None:
        """Take over the settings of the group at ``path``, as its owner; as :meth:`adopt_queue`."""
        return self._adopt(document, GROUP_SETTINGS, path / "group.json")

    def change(self, settings: Settings) -> None:
        """Take over settings that this handle has written."""
        self._given = cast(Settings, {name: value for name, value in self._given.items() if name not in settings})
        self.values = {**self.values, **settings}

    def check_may_change(self, names: Iterable[str]) -> None:
        """Refuse to change what the operator has chosen; raises ConfigError."""
        for name in names:
            if name in self._configured:
                raise ConfigError(f"{name} of {self._root} is set in the configuration: change it there", key=name)

    def _adopt(self, document: Document | None, names: frozenset[str], path: Path) -> Document | None:
        if document is None:
            raise CorruptionError(
                f"{path} was damaged and rebuilt without its settings, and the defaults could drop what they keep: set "
                f"them with `holdfast set {self._root} --rebuilt`, with those that are not the default behind it",
                path=str(path),
            )
        known: Settings = read_stored(document, path)
        known = {**known, **{name: value for name, value in self._configured.items() if name in names}}  # type: ignore[typeddict-item]
        for name in sorted(names):
            value = known.get(name, DEFAULTS[name])  # type: ignore[literal-required]
            if name in self._given and not _fits(self._given[name], value):  # type: ignore[literal-required]
                raise self._conflict(name, value, self._given[name], is_default=name not in known)  # type: ignore[literal-required]
            self.values[name] = value  # type: ignore[literal-required]
        checked(self.values)
        changed = stored(known, names)
        return changed if changed != document else None

    def _conflict(self, name: str, value: Any, asked: Any, *, is_default: bool) -> ConfigError:
        place = "the default" if is_default else "as it was set"
        return ConfigError(
            f"{self._root} has {name}={shown(value)} ({place}), not {shown(asked)}: leave {name} out to take that, or "
            f"change it with `holdfast set {self._root} {name}={shown(asked)}` or queue.configure()",
            key=name,
        )


def _fits(asked: Any, value: Any) -> bool:
    """Whether a handle may ask for a value: more durability than the queue's is its own business."""
    if isinstance(asked, FlushPolicy):
        return asked.covers(cast(FlushPolicy, value))
    return bool(asked == value)
