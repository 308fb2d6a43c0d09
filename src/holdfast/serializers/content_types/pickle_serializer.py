"""Pickle: any Python object, and any code that the writer of the bytes wants to run. Refused unless allowed."""

from __future__ import annotations

import pickle
from typing import Any

from holdfast.serializers.declared_types import holds, type_name

_PROTOCOL = 5
"""What every Python that Holdfast runs on reads, so that a queue survives its upgrade and its downgrade."""


class PickleSerializer:
    """Any object whose class can be imported. A codec refuses it unless ``allow_pickle=True``."""

    name = "pickle"
    content_type = "application/x-python-pickle"

    def encode(self, body: Any) -> bytes:
        return pickle.dumps(body, _PROTOCOL)

    def decode(self, payload: bytes, type: Any) -> Any:
        try:
            body = pickle.loads(payload)  # noqa: S301 # a codec comes here only if it was allowed
        except MemoryError as error:  # a few bytes can claim to be followed by terabytes
            raise ValueError("it asks for more memory than there is") from error
        if not holds(type, body):
            raise TypeError(f"the pickle holds {body.__class__.__name__}, not {type_name(type)}")
        return body
