"""The headers that describe a message: those of CloudEvents over HTTP, if there is one."""

from __future__ import annotations

CONTENT_TYPE = "content-type"
"""Which serializer, such as ``application/json``."""

CONTENT_ENCODING = "content-encoding"
"""``zstd`` where the payload is compressed, else not there."""

SCHEMA = "ce-type"
"""Name of the schema: of the class, unless it says otherwise."""

SCHEMA_VERSION = "ce-schemaversion"
"""Version of the schema, from 1 on."""

RESERVED_HEADERS = frozenset({CONTENT_TYPE, CONTENT_ENCODING, SCHEMA, SCHEMA_VERSION})
"""Written by the codec; an application's own headers have other names."""
