"""``set``: shows the settings of a queue and a consumer group, or changes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from holdfast.cli.display import write_table
from holdfast.cli.ending import DAMAGED, exit_with
from holdfast.cli.opening import group_option, json_option, queue_argument, require_queue
from holdfast.cli.output import write_json
from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, QueueLockedError
from holdfast.persistence.filesystem.layout import check_name
from holdfast.persistence.filesystem.storage import OsStorage
from holdfast.persistence.ownership.owner_lock import is_owned
from holdfast.queue.engine.configuring import StoredSetting, configure_closed, stored_settings
from holdfast.queue.options.arguments import absolute_path
from holdfast.queue.options.setting_values import UnfitError, nearest, read_setting, value_in_text
from holdfast.queue.options.settings import DEFAULTS, Settings, as_json, shown
from holdfast.queue.persistent_queue import PersistentQueue
from holdfast.service.configuration.config import load_config


@click.command("set")
@queue_argument
@click.argument("values", metavar="[NAME=VALUE]...", nargs=-1)
@group_option
@click.option("--reset", multiple=True, metavar="NAME", help="Give a setting its default again; may be repeated.")
@click.option("--rebuilt", is_flag=True, help="The settings were lost: those that are not given get their defaults.")
@json_option
def set_(path: Path, values: Sequence[str], group: str, reset: Sequence[str], rebuilt: bool, as_json: bool) -> None:
    """Show the settings of a queue and a group; with NAME=VALUE or --reset, change them first.

    Values are as in holdfast.toml; a word needs no quotes. To change them the queue has to be closed, or shared.
    """
    require_queue(path, is_rebuilt=rebuilt)
    check_name(group, "group")
    root, storage = absolute_path(path, "queue"), OsStorage()
    settings = _read(values)
    for name in reset:
        _check_known(name)
    if settings or reset or rebuilt:
        _refuse_configured(root, [*settings, *reset])
        try:
            configure_closed(storage, SystemClock(), root, settings, reset, group=group, is_rebuilt=rebuilt)
        except QueueLockedError:
            if rebuilt or not is_owned(storage, root):
                raise
            with PersistentQueue(root, mode="shared", group=group) as queue:
                queue.configure(reset=reset, **settings)
    found = stored_settings(storage, root, group)
    if as_json:
        write_json([_document(each) for each in found])
    else:
        write_table(("SETTING", "VALUE", "STATE", "OF"), [_row(each) for each in found])
    exit_with(DAMAGED if any(each.state == "lost" for each in found) else 0)


def _read(values: Sequence[str]) -> Settings:
    """Return the settings that the arguments name; raises ConfigError."""
    settings: dict[str, Any] = {}
    for each in values:
        name, separator, text = each.partition("=")
        if not separator:
            raise ConfigError(f"{each!r} sets nothing: write {name}=VALUE, or --reset {name}", key=name)
        _check_known(name)
        if name in settings:
            raise ConfigError(f"{name} is given twice: choose one value", key=name)
        try:
            settings[name] = read_setting(name, value_in_text(text))
        except UnfitError as error:
            key = ".".join((name, *error.key))
            raise ConfigError(f"{key}{error.reason}", key=key) from None
    return cast(Settings, settings)


def _check_known(name: str) -> None:
    if name not in DEFAULTS:
        raise ConfigError(f"{name!r} is no setting; {nearest(name, DEFAULTS)}", key=name)


def _refuse_configured(root: Path, names: Sequence[str]) -> None:
    """Refuse to change what ``holdfast.toml`` has chosen: the next owner would change it back. Raises ConfigError."""
    config = load_config(root.parent, {})  # variables belong to a process, and not to the queue
    for name in names:
        if place := config.place(root.name, name):
            raise ConfigError(f"{name} of {root} is set in {place}: change it there", key=name)


def _document(setting: StoredSetting) -> dict[str, Any]:
    value = None if setting.state == "lost" else as_json(setting.value)
    return {"name": setting.name, "value": value, "state": setting.state, "group": setting.group}


def _row(setting: StoredSetting) -> tuple[str, ...]:
    value = "-" if setting.state == "lost" else shown(setting.value)
    return (setting.name, value, setting.state, "queue" if setting.group is None else f"group {setting.group}")
