"""Optional packages: imported when used; if one is missing, the error tells how to install it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from holdfast.errors import ConfigError


def import_extra(module: str, extra: str, purpose: str) -> ModuleType:
    """Return an optional module.

    Raises
    ------
    ConfigError
        It is not installed. Attribute: ``extra``.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs a package that is not installed: pip install 'holdfast[{extra}]'", extra=extra
        ) from error
