"""``Codec``: turns one queue's objects into payload and headers, and back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from holdfast.errors import ConfigError, DecodeError, EncodeError
from holdfast.log import text_of
from holdfast.messages import CommonHeaders
from holdfast.serializers.compression import DECOMPRESSED_BYTES_MAX, ZSTD, check_available, compress, decompress
from holdfast.serializers.content_types.pickle_serializer import PickleSerializer
from holdfast.serializers.content_types.protobuf_serializer import ProtobufSerializer
from holdfast.serializers.headers import CONTENT_ENCODING, CONTENT_TYPE, SCHEMA, SCHEMA_VERSION
from holdfast.serializers.registry import Registry, check_serializer, media_type
from holdfast.serializers.schemas import Schema, Schemas
from holdfast.serializers.serializer import Decode, Encode, Serializer, decoder_of, encoder_of
from holdfast.serializers.upcasts import Upcasts, apply

__all__ = ["Codec"]

Body = TypeVar("Body")
Function = TypeVar("Function", bound=Callable[[Any], Any])

_VERSION_DIGITS_MAX = 9
"""Of a version in a header: enough for a date, and no number that takes time to read."""

_CLASSES_MAX = 256
"""Remembered with what encodes their objects: a program that makes classes as it goes must not fill the memory."""

_REASON_CHARACTERS_MAX = 500
"""Of somebody else's error in one of ours, which is one line."""


_Lane = tuple[Encode, CommonHeaders, CommonHeaders]
"""What the objects of one type need on their way out, made once: what encodes them, their headers, and those where they
are compressed. A plain tuple: taking apart any other takes longer than all the rest of a put here."""


class Codec(Generic[Body]):
    """Objects of one queue <-> payload and headers. Threads share it; it can be pickled if its types can.

    Parameters
    ----------
    registry : Registry
        The serializers of the service: the headers of a message name the one that it needs.
    type : type, generic, union, or tuple of types
        Of the objects; ``typing.Any`` for every type that the serializer takes and gives.
    serializer : str, Serializer or None
        What encodes, by name or itself; None: "raw" for bytes, else "json".
    version : int, or mapping of type to int
        Of the schemas, as this program knows them.
    allow_pickle : bool
        Whether payloads may be pickles.
    compress_bytes : int or None
        Size from which payloads are compressed, if that makes them smaller; None: never.

    Raises
    ------
    ConfigError
        An option that cannot work, a type that the serializer does not take, or a package that is missing.

    Attributes
    ----------
    content_type : str
        The content type that it writes.

    References
    ----------
    docs/serializers.md
    """

    def __init__(
        self,
        registry: Registry,
        *,
        type: Any = Any,
        serializer: str | Serializer | None = None,
        version: int | Mapping[type, int] = 1,
        allow_pickle: bool = False,
        compress_bytes: int | None = None,
    ) -> None:
        self._set_up((registry, type, serializer, version, allow_pickle, compress_bytes, Upcasts()))
        if allow_pickle:
            warnings.warn(
                "allow_pickle=True: everyone who can write to this queue's directory can run code in this process",
                stacklevel=2,
            )

    def _set_up(self, state: tuple[Registry, Any, Any, Any, bool, int | None, Upcasts]) -> None:
        self._state = state
        self._registry, declared, serializer, version, self._allow_pickle, compress_bytes, self._upcasts = state
        self._schemas = Schemas(declared, version)
        self._serializer = self._chosen(serializer)
        self._compress_from = _threshold(compress_bytes)
        self.content_type = self._serializer.content_type
        if isinstance(self._serializer, PickleSerializer) and not self._allow_pickle:
            raise ConfigError(
                "serializer 'pickle' runs whatever code its bytes ask for: use 'json' or 'msgpack', or say "
                "allow_pickle=True where everybody who can write to the queue is trusted"
            )
        lanes = {schema.name: self._lane(schema) for schema in self._schemas.all}
        self._decoders = {schema.name: decoder_of(self._serializer, schema.type) for schema in self._schemas.all}
        self._lanes = {kind: lanes[schema.name] for kind, schema in self._schemas.by_class().items()}
        self._lanes_by_name = lanes

    def _chosen(self, serializer: str | Serializer | None) -> Serializer:
        if serializer is None:
            only_bytes = [schema.type for schema in self._schemas.all] == [bytes]
            return self._registry.named("raw" if only_bytes else "json")
        if isinstance(serializer, str):
            return self._registry.named(serializer)
        check_serializer(serializer)
        return serializer

    def _lane(self, schema: Schema) -> _Lane:
        headers = {CONTENT_TYPE: self._serializer.content_type}
        if schema.name:
            headers[SCHEMA] = schema.name
        headers[SCHEMA_VERSION] = str(schema.version)
        encode = encoder_of(self._serializer, schema.type)
        return encode, CommonHeaders(headers), CommonHeaders({**headers, CONTENT_ENCODING: ZSTD})

    def __getstate__(self) -> tuple[Any, ...]:
        return self._state

    def __setstate__(self, state: tuple[Registry, Any, Any, Any, bool, int | None, Upcasts]) -> None:
        self._set_up(state)

    # -- Out -----------------------------------------------------------------------------------------------------------

    @property
    def takes_anything(self) -> bool:
        """Whether no type is declared."""
        return self._schemas.takes_anything

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of the objects, as they were declared; ``typing.Any`` for all."""
        return tuple(schema.type for schema in self._schemas.all)

    def encode(self, body: Body) -> tuple[bytes, CommonHeaders]:
        """Return payload and headers of an object.

        Raises
        ------
        EncodeError
            The queue does not take objects of this type, or the serializer cannot encode it.
        """
        try:
            encode, headers, compressed_headers = self._lanes[type(body)]
        except KeyError:
            encode, headers, compressed_headers = self._lane_of(type(body))
        try:
            payload = encode(body)
        except MemoryError:
            raise
        except Exception as error:
            raise self._encode_error(body, error) from error
        if self._compress_from and len(payload) >= self._compress_from and (smaller := _smaller(payload)) is not None:
            return smaller, compressed_headers
        return payload, headers

    def _lane_of(self, kind: type) -> _Lane:
        """Return the lane for a class that is not declared itself: a subclass, or nothing for this queue."""
        schema = self._schemas.of_class(kind)
        if schema is None:
            name = kind.__qualname__
            raise EncodeError(
                f"the queue takes {self._schemas.names}, not {name}; nothing was written. Declare its type too, or put "
                "it into another queue",
                content_type=self.content_type,
                type=name,
            ) from None
        lane = self._lanes_by_name[schema.name]
        if len(self._lanes) < _CLASSES_MAX:
            self._lanes[kind] = lane
        return lane

    def _encode_error(self, body: Body, error: Exception) -> EncodeError:
        kind = type(body).__qualname__
        return EncodeError(
            f"{self._serializer.name} cannot encode this {kind}; nothing was written. {_reason(error)}",
            content_type=self.content_type,
            type=kind,
        )

    # -- Back ----------------------------------------------------------------------------------------------------------

    def decode(self, payload: bytes, headers: Mapping[str, str]) -> Body:
        """Return the object of a message; raises as :meth:`decoder` and as what that returns."""
        return self.decoder(headers)(payload)

    def decoder(self, headers: Mapping[str, str]) -> Callable[[bytes], Body]:
        """Return a decoder for payloads with these headers; it raises DecodeError.

        Missing headers default to the queue's declarations. An upcast that is registered later counts too.

        Raises
        ------
        UnknownContentTypeError
            No serializer is registered for it.
        DecodeError
            A pickle that is not allowed, a schema that the queue does not take or a newer version of it, an unknown
            encoding, or a package that is missing. The payload was not read.
        """
        serializer = self._serializer_of(headers.get(CONTENT_TYPE))
        try:
            schema = self._schemas.named(headers.get(SCHEMA))
            decode = self._decoder(serializer, schema, headers.get(SCHEMA_VERSION))
            encoding = headers.get(CONTENT_ENCODING, "")
            if encoding:
                decode = _decompressed(encoding, decode)
        except DecodeError as error:
            raise _completed(error, serializer.content_type) from None
        except BaseException as error:  # any exception of a serializer: one message must not stop the queue
            if _is_from_outside(error):
                raise
            reason = str(error) if isinstance(error, ConfigError) else _reason(error)
            raise _completed(DecodeError(reason), serializer.content_type) from error
        return _guarded(decode, schema.name, serializer.content_type)

    def _serializer_of(self, content_type: str | None) -> Serializer:
        if content_type is None or media_type(content_type) == media_type(self.content_type):
            return self._serializer
        serializer = self._registry.of(content_type)
        if isinstance(serializer, PickleSerializer) and not self._allow_pickle:
            error = DecodeError(
                "the message is a pickle, which runs whatever code its bytes ask for: not decoded. Open the queue with "
                "allow_pickle=True if everyone who can write to it is trusted"
            )
            raise _completed(error, serializer.content_type)
        return serializer

    def _decoder(self, serializer: Serializer, schema: Schema, version_header: str | None) -> Decode:
        own = self._decoders.get(schema.name) if serializer is self._serializer else None
        decode = own or decoder_of(serializer, schema.type)
        if schema.version is None or version_header is None:
            return decode
        version = _version_of(version_header, schema.name, schema.version)
        return decode if version == schema.version else self._upcasting(serializer, schema, version, decode)

    def _upcasting(self, serializer: Serializer, schema: Schema, version: int, decode: Decode) -> Decode:
        """Return what decodes an older version: through plain data, if there is an upcast on the way."""

        def decode_older(payload: bytes) -> Any:
            chain = self._upcasts.chain(schema, version)
            if not chain:
                return decode(payload)
            plain = apply(chain, decoder_of(serializer, Any)(payload))
            return decode(serializer.encode(plain))

        return decode_older

    def upcast(
        self, from_version: int, to_version: int, *, schema: type | str | None = None
    ) -> Callable[[Function], Function]:
        """Have a function turn the plain data of an older version into that of a newer one.

        Parameters
        ----------
        from_version, to_version : int
            One function leads from each version. A version without one is decoded as it is: it differs by additions.
        schema : type or str or None
            Whose versions; None if the queue has one type.

        Raises
        ------
        ConfigError
            Versions that are no step forward or that the queue does not know, a second function from a version, or a
            serializer that has no plain data: protobuf.
        """
        if isinstance(self._serializer, ProtobufSerializer):
            raise ConfigError("protobuf has no plain data to upcast: its schemas grow by new field numbers")
        target = self._schemas.declared(schema)

        def register(function: Function) -> Function:
            self._upcasts.add(target, from_version, to_version, function)
            return function

        return register


def _threshold(compress_bytes: int | None) -> int | None:
    if compress_bytes is None:
        return None
    if type(compress_bytes) is not int or compress_bytes < 1:
        raise ConfigError(f"compress_bytes is a number of bytes from 1 on, or None for never; not {compress_bytes!r}")
    check_available()
    return compress_bytes


def _smaller(payload: bytes) -> bytes | None:
    """Return the payload compressed, or None if that is no gain."""
    if len(payload) > DECOMPRESSED_BYTES_MAX:  # it could not be decompressed again
        return None
    compressed = compress(payload)
    return compressed if len(compressed) < len(payload) else None


def _decompressed(encoding: str, decode: Decode) -> Decode:
    if encoding != ZSTD:
        raise DecodeError(f"the payload is encoded as {encoding!r}, and this version knows {ZSTD!r} only")
    check_available()
    return lambda payload: decode(decompress(payload))


def _version_of(header: str, name: str, known: int) -> int:
    """Return the version of a message; raises DecodeError for one that is newer than this program knows."""
    if not (header.isascii() and header.isdigit() and len(header) <= _VERSION_DIGITS_MAX and int(header)):
        raise DecodeError(f"the header {SCHEMA_VERSION} is a number from 1 on, not {header[:20]!r}")
    version = int(header)
    if version > known:
        raise DecodeError(
            f"{name or 'the message'} has version {version}, newer than version {known} of this program: update the "
            "program, then retry the dead letter"
        )
    return version


def _guarded(decode: Decode, name: str, content_type: str) -> Decode:
    """Return a decoder that returns objects, or raises only errors of Holdfast."""

    def decode_or_say_why(payload: bytes) -> Any:
        try:
            return decode(payload)
        except DecodeError as error:
            _completed(error, content_type)
            raise
        except BaseException as error:
            if _is_from_outside(error):
                raise
            what = f"this payload of {content_type} cannot be decoded{name and ' to '}{name}"
            raise _completed(DecodeError(f"{what}. {_reason(error)}"), content_type) from error

    return decode_or_say_why


def _completed(error: DecodeError, content_type: str) -> DecodeError:
    """Return the error with the attributes that it promises; the offset is known to the queue only."""
    error.context = {"content_type": content_type, "offset": None, **error.context}
    return error


def _is_from_outside(error: BaseException) -> bool:
    """Whether it says nothing about the payload. A panic of an extension in Rust does, and is no Exception."""
    if isinstance(error, Exception):
        return isinstance(error, MemoryError)
    return type(error).__name__ != "PanicException"  # each extension has its own


def _reason(error: BaseException) -> str:
    text = " ".join(text_of(error).split())[:_REASON_CHARACTERS_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
