"""What a caller asks for if payloads are to be decoded. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

BODY = "body"
"""The column of decoded payloads."""

UNDECODABLE = "undecodable"
"""The column of the others, with the reasons."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How payloads become the columns ``body`` and ``undecodable``.

    Attributes
    ----------
    schema : pyarrow.Schema, pyarrow.StructType, pyspark.sql.types.StructType or str
        The fields of ``body``; for Spark its own type, or as in ``"id bigint, amount double"``.
    codec : str
        ``module:name`` of a ``Codec``, a ``TypedQueue`` or a ``Registry``, whose serializers, types and upcasts decode.
        Empty: JSON and MessagePack, by the headers of each message.
    descriptor : str, path-like or bytes
        For Protocol Buffers: a file of ``protoc --include_imports --descriptor_set_out``, or its bytes.
    message : str
        Full name of the Protocol Buffers message, for messages whose headers do not name it.

    References
    ----------
    docs/arrow.md, "Bodies"
    """

    schema: Any
    codec: str = ""
    descriptor: str | os.PathLike[str] | bytes = b""
    message: str = ""
