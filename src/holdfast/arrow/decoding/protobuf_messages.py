"""Messages of Protocol Buffers by a descriptor: their classes, and their fields as plain data."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, StorageError
from holdfast.serializers.extras import import_extra

_HOW = "make it with protoc --include_imports --descriptor_set_out=FILE"


def read_descriptor(descriptor: str | os.PathLike[str] | bytes, message: str) -> bytes:
    """Return the bytes of a descriptor set, which is read now, and not in a task.

    Raises
    ------
    ConfigError
        It is no descriptor set, or has no such message; the package is missing.
    StorageError
        The file cannot be read.
    """
    if isinstance(descriptor, bytes):
        data = descriptor
    else:
        try:
            data = Path(descriptor).read_bytes()
        except OSError as error:
            raise StorageError(f"the descriptor {os.fspath(descriptor)} cannot be read: {error.strerror}") from error
    if message and not data:
        raise ConfigError(f"message {message!r} needs a descriptor that describes it: {_HOW}")
    if data:
        _pool(data)
    if message:
        message_class(data, message)
    return data


def message_class(descriptor: bytes, name: str) -> Any:
    """Return the class of a message; raises ConfigError if the descriptor does not have it."""
    factory = import_extra("google.protobuf.message_factory", "protobuf", "decoding Protocol Buffers")
    try:
        return factory.GetMessageClass(_pool(descriptor).FindMessageTypeByName(name))
    except KeyError:
        raise ConfigError(f"the descriptor has no message {name!r}") from None


@lru_cache(maxsize=8)
def _pool(descriptor: bytes) -> Any:
    purpose = "decoding Protocol Buffers"
    descriptor_pb2 = import_extra("google.protobuf.descriptor_pb2", "protobuf", purpose)
    pool = import_extra("google.protobuf.descriptor_pool", "protobuf", purpose).DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor).file:
            pool.Add(file)
            pool.FindFileByName(file.name)
    except Exception as error:  # of protobuf, or of its parser in C
        reason = " ".join(str(error).split())
        raise ConfigError(f"the descriptor is no set of files with all that they import ({reason}): {_HOW}") from error
    return pool


def message_fields(message: Any) -> dict[str, Any]:
    """Return the fields of a message, by their names in the .proto file: a field that is not set has its default.

    A field that knows whether it is set, and is not, is left out. Enums are names; a value without a name is a number.
    """
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if is_map:
            of = field.message_type.fields_by_name["value"]
            fields[field.name] = {str(key): _plain(of, each) for key, each in value.items()}
        elif field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
            fields[field.name] = [_plain(field, each) for each in value]
        else:
            fields[field.name] = _plain(field, value)
    return fields


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Timestamp":
            return value.ToJsonString()
        return message_fields(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value
