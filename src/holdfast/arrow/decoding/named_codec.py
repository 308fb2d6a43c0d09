"""Finds the codec of an application by ``module:name``, where it decodes: on the driver, and again in each task."""

from __future__ import annotations

import platform
from functools import reduce
from importlib import import_module
from typing import Any

from holdfast.errors import ConfigError
from holdfast.serializers.codec import Codec
from holdfast.serializers.registry import Registry


def codec_named(name: str) -> Codec[Any]:
    """Return a codec.

    Raises
    ------
    ConfigError
        It cannot be imported here, or is none.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"codec is module:name, as in shop.queues:customers, not {name!r}")
    try:
        found: Any = reduce(getattr, attribute.split("."), import_module(module))
    except Exception as error:  # an import runs the module, which may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"codec {name!r} cannot be imported on {platform.node()} ({reason}): every machine that decodes needs its "
            "module and what that imports; Spark ships a module with spark.submit.pyFiles"
        ) from error
    codec = Codec(found) if isinstance(found, Registry) else getattr(found, "codec", found)
    if not isinstance(codec, Codec):
        raise ConfigError(
            f"codec {name!r} is of the class {type(found).__name__}: name a Codec, a TypedQueue or a Registry"
        )
    return codec
