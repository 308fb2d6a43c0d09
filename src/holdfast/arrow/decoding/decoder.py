"""Decodes the payloads of a batch to a column, and says of each other one why it cannot be."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.arrow.decoding.body_types import check_of, has_map, python_type, with_pairs
from holdfast.arrow.decoding.decoding import Decoding
from holdfast.arrow.decoding.named_codec import codec_named
from holdfast.arrow.decoding.protobuf_messages import message_class, message_fields, read_descriptor
from holdfast.errors import ConfigError, DecodeError, SerializationError
from holdfast.persistence.format.message_headers import decode_headers
from holdfast.serializers.codec import Codec
from holdfast.serializers.content_types.msgspec_types import encode_other
from holdfast.serializers.content_types.protobuf_serializer import ProtobufSerializer
from holdfast.serializers.headers import CONTENT_ENCODING, CONTENT_TYPE, SCHEMA
from holdfast.serializers.registry import Registry, media_type

_DISTINCT_MAX = 4096
_REASON_CHARACTERS_MAX = 500

_Decode = Callable[[bytes], Any]


class BodyDecoder:
    """Decodes to one type. Can be pickled; what it builds is built again in each process.

    Parameters
    ----------
    kind : pyarrow.StructType
        Of the column.
    decoding : Decoding
        The codec, and the descriptor; its schema is ``kind`` in the caller's words.

    Raises
    ------
    ConfigError
        A type that no payload has, a codec or a descriptor that is none, or a package that is missing.
    """

    def __init__(self, kind: Any, decoding: Decoding) -> None:
        descriptor = read_descriptor(decoding.descriptor, decoding.message)
        self._set_up((kind, decoding.codec, descriptor, decoding.message))

    def _set_up(self, state: tuple[Any, str, bytes, str]) -> None:
        self._state = state
        self.kind, codec, self._descriptor, self._message = state
        if not pa.types.is_struct(self.kind) or not self.kind.num_fields:
            raise ConfigError(f"the schema of bodies is a struct of one field or more, not {self.kind}")
        self._type = python_type(self.kind)
        self._check = check_of(self.kind)
        self._has_map = has_map(self.kind)
        self._own = codec_named(codec) if codec else None
        self._plain: Codec[Any] = Codec(Registry(), type=self._type)
        self._decoders: dict[bytes, _Decode] = {}

    def __getstate__(self) -> tuple[Any, str, bytes, str]:
        return self._state

    def __setstate__(self, state: tuple[Any, str, bytes, str]) -> None:
        self._set_up(state)

    def decode(self, payloads: Sequence[bytes], headers: Iterable[bytes]) -> tuple[Any, dict[int, str]]:
        """Return bodies as Arrow, null if there is none; and by place why there is none.

        Parameters
        ----------
        payloads, headers
            Of each message; headers as in the data file.

        Raises
        ------
        ConfigError
            A package is missing here, which is no fault of the payload.
        """
        bodies: list[Any] = []
        reasons: dict[int, str] = {}
        for place, (payload, encoded) in enumerate(zip(payloads, headers, strict=True)):
            decode = self._decoders.get(encoded) or self._decoder(encoded)
            try:
                body = decode(payload)
                if self._check is not None:
                    self._check(body)
                bodies.append(body)
            except MemoryError:
                raise
            except Exception as error:  # any exception of a class of the application
                bodies.append(None)
                reasons[place] = _reason(error)
        return self._column(bodies, reasons), reasons

    def _column(self, bodies: list[Any], reasons: dict[int, str]) -> Any:
        """Return bodies as Arrow; a value that Arrow refuses takes its message to the others."""
        if self._has_map:
            bodies = [with_pairs(body, self.kind) for body in bodies]
        try:
            return pa.array(bodies, self.kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            pass
        for place, body in enumerate(bodies):
            try:
                pa.array([body], self.kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                bodies[place], reasons[place] = None, _reason(error)
        return pa.array(bodies, self.kind)

    # -- How messages with some headers are decoded --------------------------------------------------------------------

    def _decoder(self, encoded: bytes) -> _Decode:
        if len(self._decoders) >= _DISTINCT_MAX:
            self._decoders.clear()
        try:
            found = self._decoder_by(decode_headers(encoded))
        except SerializationError as error:
            if getattr(error.__cause__, "extra", None):
                raise error.__cause__ from None  # type: ignore[misc]  # a package is missing here
            found = _refusing(_reason(error))
        self._decoders[encoded] = found
        return found

    def _decoder_by(self, headers: Mapping[str, str]) -> _Decode:
        """Return what decodes messages with these headers. Raises as ``Codec.decoder``."""
        known = {name: headers[name] for name in (CONTENT_TYPE, CONTENT_ENCODING) if name in headers}
        is_protobuf = media_type(headers.get(CONTENT_TYPE, "")) == ProtobufSerializer.content_type
        if is_protobuf and self._own is None:
            return self._of_protobuf(headers.get(SCHEMA) or self._message, known)
        if self._own is None:
            return self._plain.decoder(known)  # the schema is that of the caller, under any name and version
        decode = self._own.decoder(headers)
        if is_protobuf:
            return lambda payload: self._fitted(message_fields(decode(payload)))
        return lambda payload: self._fitted(decode(payload))

    def _of_protobuf(self, name: str, headers: dict[str, str]) -> _Decode:
        if not self._descriptor:
            raise DecodeError("a payload of Protocol Buffers needs a descriptor, and none was given")
        if not name:
            raise DecodeError("the headers do not name the message of Protocol Buffers, and no other name was given")
        try:
            kind = message_class(self._descriptor, name)
        except ConfigError as error:
            raise DecodeError(str(error)) from error
        decode = Codec[Any](Registry(), type=kind, serializer=ProtobufSerializer.name).decoder(headers)
        return lambda payload: self._fitted(message_fields(decode(payload)))

    def _fitted(self, body: Any) -> Any:
        """Return an object as the fields of the schema."""
        plain = msgspec.to_builtins(body, builtin_types=_KEPT, str_keys=True, enc_hook=encode_other)
        return msgspec.convert(plain, self._type)


_KEPT = (bytes, bytearray, dt.datetime, dt.date, dt.timedelta, Decimal)
"""Values that Arrow takes as they are, and that need no text between."""


def _refusing(reason: str) -> _Decode:
    def decode(_: bytes) -> Any:
        raise DecodeError(reason)

    return decode


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_REASON_CHARACTERS_MAX]
