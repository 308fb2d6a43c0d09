"""The declared type of a queue: its types, the classes of their objects, and their names. Pure."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from holdfast.errors import ConfigError

_ALSO: dict[type, tuple[type, ...]] = {bytes: (bytearray, memoryview), float: (int,)}
"""Classes that stand in for another, as type checkers have it."""


def split(declared: Any) -> tuple[Any, ...]:
    """Return the types that a queue takes: of a tuple and of a union, each.

    Raises
    ------
    ConfigError
        Something that is no type.
    """
    found: list[Any] = []
    for each in _flat(declared):
        if not _is_type(each):
            raise ConfigError(
                f"type is a class, a generic such as list[int], a union, or a tuple of them; not {each!r}"
            )
        if each not in found:
            found.append(each)
    if not found:
        raise ConfigError("type is an empty tuple: name at least one type")
    if len(found) > 1 and Any in found:
        raise ConfigError("typing.Any takes every object: leave it out, or the types beside it")
    return tuple(found)


def _flat(declared: Any) -> list[Any]:
    if declared is None:
        return [NoneType]
    if declared is object:
        return [Any]
    if not isinstance(declared, tuple):
        if get_origin(declared) not in (Union, UnionType):
            return [declared]
        declared = get_args(declared)
    return [each for part in declared for each in _flat(part)]


def _is_type(declared: Any) -> bool:
    return declared is Any or isinstance(declared, type | NewType) or get_origin(declared) is not None


def classes_of(declared: Any) -> tuple[type, ...]:
    """Return the classes whose objects a type takes, the type's own first."""
    origin = get_origin(declared)
    if origin in (Union, UnionType):
        return tuple(each for part in get_args(declared) for each in classes_of(part))
    if origin is Annotated:
        return classes_of(get_args(declared)[0])
    if origin is Literal:
        return tuple(dict.fromkeys(type(value) for value in get_args(declared)))
    if isinstance(declared, NewType):
        return classes_of(declared.__supertype__)
    kind = origin or declared
    if hasattr(kind, "__required_keys__"):  # a TypedDict, of typing or of typing_extensions
        return (dict,)
    return (kind, *_ALSO.get(kind, ())) if isinstance(kind, type) else (object,)


def takes(declared: Any, kind: type) -> bool:
    """Whether a type takes objects of a class. ``True`` is no int here: the decoded object would be another one."""
    classes = classes_of(declared)
    return kind in classes if kind is bool else issubclass(kind, classes)


def holds(declared: Any, body: object) -> bool:
    """Whether an object is of a type, as far as its own class says; the items of a list are not checked."""
    return declared is Any or takes(declared, type(body))


def type_name(declared: Any) -> str:
    """Return the name of a type, which is the name of its schema.

    It is the full name of a protobuf message, the ``__schema__`` of a class, or its name without the module. So a
    class can move to another module.
    """
    if declared is NoneType:
        return "None"
    if get_origin(declared) is Annotated:
        return type_name(get_args(declared)[0])
    arguments = get_args(declared)
    if arguments and get_origin(declared) is not Literal:
        name = getattr(get_origin(declared), "__name__", str(get_origin(declared)))
        return f"{name}[{', '.join(type_name(argument) for argument in arguments)}]"
    if not isinstance(declared, type | NewType):
        return str(declared).removeprefix("typing.")
    full_name = getattr(getattr(declared, "DESCRIPTOR", None), "full_name", None)
    own_name = vars(declared).get("__schema__")  # not inherited: a subclass is another schema
    name = next((name for name in (full_name, own_name) if isinstance(name, str)), declared.__name__)
    return name
