"""Things of a program that a command is told by name, as ``shop.tasks:service``."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

import click

from holdfast.errors import ConfigError


def import_named(target: str, form: str, example: str, what: str) -> Any:
    """Return what ``module:attribute`` names.

    Parameters
    ----------
    target : str
        The name.
    form, example, what : str
        How the command calls such a name, one of them, and what it names.

    Raises
    ------
    UsageError
        Of click: there is no such module or attribute. An error inside of the module is raised unchanged.
    """
    module_name, _, path = target.partition(":")
    if not (module_name and path):
        raise click.UsageError(f"{form} is a module and a name in it, as {example}, not {target!r}")
    found: Any = _import(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise click.UsageError(f"{module_name} has no {path!r}: name its {what}") from None
    return found


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # that is what the module wants to import
        raise click.UsageError(f"no module named {error.name!r}, neither in {here} nor installed") from None
    except TypeError as error:  # a name that begins with a dot
        raise ConfigError(f"{name!r} cannot name a module: {error}") from None
