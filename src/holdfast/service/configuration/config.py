"""The configuration of queues by operators: ``holdfast.toml`` in the service's directory, and environment variables.

docs/configuration.md. For each option the first of these counts: the argument in the program, the variable for the
queue, the variable for all queues, ``[queues.<name>]``, ``[defaults]``, the default. All of it is read and checked when
the service is opened: a mistake is found then, and not when some queue is used first.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from holdfast.compiled import PURE
from holdfast.errors import ConfigError, CorruptionError
from holdfast.persistence.filesystem.storage import OsStorage, read_whole
from holdfast.queue.options.setting_values import UnfitError, nearest, unfit, value_in_text
from holdfast.queue.options.settings import DEFAULTS
from holdfast.queue.options.settings import Settings as QueueSettings
from holdfast.service.configuration.lines import line_of_error, line_of_key, shown_key
from holdfast.service.configuration.options import OPTIONS, PROGRAM_OPTIONS, QUEUE_ONLY_OPTIONS, read_option
from holdfast.service.queue_names import CONFIG_NAME, check_queue_name

PREFIX = "HOLDFAST_"
TEST_PREFIX = "HOLDFAST_TEST_"
"""Of variables that our own tests read; nobody else's business."""

CONFIG_BYTES_MAX = 2**20
"""A larger file was not written by a person."""

_PROGRAMS_REASON = " is set by the program, in service.queue(); it cannot be configured"


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of one option, and its place for errors."""

    value: Any
    fail: Callable[[str], ConfigError]


Settings = dict[str, Setting]


@dataclass(frozen=True, slots=True)
class Config:
    """The configured options of all queues.

    Attributes
    ----------
    path : Path
        Of ``holdfast.toml``, whether it is there or not.
    defaults, queues
        From the file: for all queues, and by the name of the queue.
    environment, environment_queues
        From variables: for all queues, and by the name of the queue as variables have it.
    """

    path: Path
    defaults: Settings = field(default_factory=dict)
    queues: Mapping[str, Settings] = field(default_factory=dict)
    environment: Settings = field(default_factory=dict)
    environment_queues: Mapping[str, Settings] = field(default_factory=dict)

    def options(self, queue_name: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the keyword arguments for a queue: the configured values, overridden by the program's.

        Options that are not set are left out: then the queue's count, or the defaults. So only the queue can tell
        whether sizes work together.

        Raises
        ------
        ConfigError
            A name that cannot be a queue's.
        """
        check_queue_name(queue_name)
        configured = {name: setting.value for name, setting in self._settings(queue_name).items()}
        return {**configured, **(arguments or {})}

    def chosen(self, queue_name: str) -> QueueSettings:
        """Return the settings that the file has for a queue.

        The file belongs to the directory, and so counts for every process: the owner changes the queue to them.
        """
        return _settings_in({**self.defaults, **self.queues.get(queue_name, {})})

    def asked(self, queue_name: str, arguments: Mapping[str, Any]) -> QueueSettings:
        """Return the settings that this process asks for, by an argument or a variable: the queue has to have them."""
        variables = {**self.environment, **self.environment_queues.get(variable_part(queue_name), {})}
        given = {name: value for name, value in arguments.items() if name in DEFAULTS}
        return cast(QueueSettings, {**_settings_in(variables), **given})

    def place(self, queue_name: str, option: str) -> str:
        """Return the file and line, or the variable, that sets an option of a queue; empty if none does."""
        setting = self._settings(queue_name).get(option)
        return "" if setting is None else str(setting.fail(""))

    def placed(self, queue_name: str, option: str, error: ConfigError) -> ConfigError:
        """Return the error of a queue about an option, with the file and line, or the variable, that sets it."""
        setting = self._settings(queue_name).get(option)
        return error if setting is None else setting.fail(f": {error}")

    def _settings(self, queue_name: str) -> Settings:
        return {
            **self.defaults,
            **self.queues.get(queue_name, {}),
            **self.environment,
            **self.environment_queues.get(variable_part(queue_name), {}),
        }


def _settings_in(settings: Settings) -> QueueSettings:
    return cast(QueueSettings, {name: each.value for name, each in settings.items() if name in DEFAULTS})


def load_config(directory: Path, environment: Mapping[str, str]) -> Config:
    """Return the configuration from ``holdfast.toml`` in ``directory`` and the variables; both may be missing.

    Raises
    ------
    ConfigError
        A mistake. Attributes: ``path`` and ``line`` (None for a variable), ``key``.
    """
    variables, queue_variables = _read_environment(directory, environment)
    path = directory / CONFIG_NAME
    try:
        data = read_whole(OsStorage(), Path(os.path.realpath(path)), CONFIG_BYTES_MAX)  # a link to it is an operator's
    except FileNotFoundError:
        return Config(path, environment=variables, environment_queues=queue_variables)
    except NotADirectoryError:
        raise ConfigError(
            f"{directory} is a file, or below one; a service is a directory: choose another path"
        ) from None
    except (OSError, CorruptionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ConfigError(
            f"{path} cannot be read ({reason}); make it a file that this user may read",
            path=str(path),
            line=None,
            key=None,
        ) from None
    defaults, queues = _ConfigFile(path, data).read()
    return Config(path, defaults, queues, variables, queue_variables)


def variable_part(queue_name: str) -> str:
    """Return a queue's name as used in names of variables: upper case, and ``_`` for other characters."""
    return re.sub(r"[^A-Z0-9]", "_", queue_name.upper())


# -- holdfast.toml ---------------------------------------------------------------------------------------------------


class _ConfigFile:
    """One ``holdfast.toml``."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        try:
            self._text = data.decode().replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise self._error(line, "not UTF-8, which TOML has to be", None) from None

    def read(self) -> tuple[Settings, dict[str, Settings]]:
        """Return the settings for all queues, and those by queue."""
        try:
            document = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            line = line_of_error(self._text, error)
            raise self._error(line, f"no valid TOML: {re.sub(r' [(]at [^)]*[)]$', '', str(error))}", None) from None
        except (RecursionError, ValueError) as error:  # brackets without end, a number of thousands of digits
            raise self._error(None, f"no TOML that can be read: {error}", None) from None
        for key in document:
            if key not in ("defaults", "queues"):
                raise self._fail((key,), f" is no table of this file; {nearest(key, ('defaults', 'queues'))}")
        defaults = self._settings(("defaults",), document.get("defaults", {}), frozenset(OPTIONS) - QUEUE_ONLY_OPTIONS)
        named = document.get("queues", {})
        self._check_table(("queues",), named)
        queues = {}
        for name, table in named.items():
            try:
                check_queue_name(name)
            except ConfigError as error:
                raise self._fail(("queues", name), f": {error}") from None
            queues[name] = self._settings(("queues", name), table, frozenset(OPTIONS))
        return defaults, queues

    def _settings(self, path: tuple[str, ...], table: Any, known: frozenset[str]) -> Settings:
        self._check_table(path, table)
        settings = {}
        for name, value in table.items():
            key = (*path, name)
            if name not in known:
                raise self._fail(key, self._unknown(key, value, known))
            try:
                read = read_option(name, value)
            except UnfitError as error:
                raise self._fail((*key, *error.key), error.reason) from None
            settings[name] = Setting(_beside(self._path.parent, read), partial(self._fail, key))
        return settings

    def _check_table(self, path: tuple[str, ...], table: Any) -> None:
        if not isinstance(table, dict):
            raise self._fail(path, unfit(f"a table: [{shown_key(path)}]", table).reason)

    def _unknown(self, key: tuple[str, ...], value: Any, known: frozenset[str]) -> str:
        name = key[-1]
        if name in PROGRAM_OPTIONS:
            return _PROGRAMS_REASON
        if name in QUEUE_ONLY_OPTIONS:
            return " is for one queue: set it in [queues.<name>]"
        if isinstance(value, dict) and key[0] == "queues":
            return f' is no option; the name of a queue with a dot is quoted: [queues."{".".join(key[1:])}"]'
        return f" is no option; {nearest(name, known)}"

    def _fail(self, key: tuple[str, ...], reason: str) -> ConfigError:
        return self._error(line_of_key(self._text, key), f"{shown_key(key)}{reason}", shown_key(key))

    def _error(self, line: int | None, message: str, key: str | None) -> ConfigError:
        where = str(self._path) if line is None else f"{self._path}, line {line}"
        return ConfigError(f"{where}: {message}", path=str(self._path), line=line, key=key)


def _beside(directory: Path, value: Any) -> Any:
    """Return paths as seen from the service's directory; any other value as it is."""
    if isinstance(value, tuple) and value and isinstance(value[0], Path):
        return tuple(directory / path for path in value)
    return value


# -- Environment -----------------------------------------------------------------------------------------------------


def _read_environment(directory: Path, environment: Mapping[str, str]) -> tuple[Settings, dict[str, Settings]]:
    """Return the settings for all queues, and those by queue."""
    everywhere: Settings = {}
    queues: dict[str, Settings] = {}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable == PURE:
            continue
        queue, separator, option = variable.removeprefix(PREFIX).rpartition("__")
        name = option.lower()
        if variable.startswith(TEST_PREFIX) and not (separator and name in OPTIONS):
            continue
        _check_variable(variable, queue, separator, option)
        try:
            value = read_option(name, _variable_value(environment[variable]))
        except UnfitError as error:
            raise _variable_error(variable, error.reason, error.key) from None
        settings = queues.setdefault(queue, {}) if separator else everywhere
        settings[name] = Setting(_beside(directory, value), partial(_variable_error, variable))
    return everywhere, queues


def _check_variable(variable: str, queue: str, separator: str, option: str) -> None:
    """Refuse a variable that has no meaning here."""
    name = option.lower()
    known = frozenset(OPTIONS) if separator else frozenset(OPTIONS) - QUEUE_ONLY_OPTIONS
    if name in PROGRAM_OPTIONS:
        raise _variable_error(variable, _PROGRAMS_REASON)
    if not separator and name in QUEUE_ONLY_OPTIONS:
        raise _variable_error(variable, f" is for one queue: {PREFIX}<QUEUE>__{option}")
    if name not in known or option != option.upper() or (separator and not queue):
        hint = nearest(option.upper(), map(str.upper, known), f"{PREFIX}{queue}{separator}")
        raise _variable_error(variable, f" means nothing to Holdfast; {hint}")


def _variable_value(text: str) -> Any:
    """Return the value of a variable: a value as TOML has it, or a word."""
    try:
        return value_in_text(text)
    except UnfitError as error:
        raise UnfitError(f"{error.reason}, or unset it") from None


def _variable_error(variable: str, reason: str, key: tuple[str, ...] = ()) -> ConfigError:
    name = ".".join((variable, *key))
    return ConfigError(f"{name} in the environment{reason}", path=None, line=None, key=name)
