"""Optional packages: imported when used; if one is missing, the error tells how to install it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
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
        raise _missing(extra, purpose) from error


def is_installed(module: str) -> bool:
    """Whether an optional module of the top level can be imported; it is not, for that may take long."""
    return find_spec(module) is not None


def require_extra(module: str, extra: str, purpose: str) -> None:
    """Make sure that an optional module can be imported, without doing so; raises as :func:`import_extra`."""
    if not is_installed(module):
        raise _missing(extra, purpose)


def _missing(extra: str, purpose: str) -> ConfigError:
    advice = f"pip install 'holdfast[{extra}]'"
    return ConfigError(f"{purpose} needs a package that is not installed: {advice}", extra=extra)
