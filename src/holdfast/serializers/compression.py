"""zstd: ``compression.zstd`` from Python 3.14 on, before that ``backports.zstd``, the extra ``holdfast[zstd]``."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.serializers.extras import import_extra

ZSTD = "zstd"
"""What stands in the header ``content-encoding``."""

DECOMPRESSED_BYTES_MAX = 64 * 2**20
"""What a payload may decompress to, and the most that is compressed: four times the default of ``record_bytes_max``.

A few bytes can ask for terabytes, and whoever writes to a queue must not choose how much memory its readers take.
"""

_WINDOW_LOG_MAX = DECOMPRESSED_BYTES_MAX.bit_length() - 1
"""zstd's own buffer, as a power of two: no larger than what may come out of it."""

_MODULE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def compress(payload: bytes) -> bytes:
    """Return the payload compressed; raises ConfigError if zstd is missing."""
    compressed: bytes = _zstd().compress(payload)
    return compressed


def decompress(payload: bytes) -> bytes:
    """Return what :func:`compress` was given.

    Raises
    ------
    ConfigError
        zstd is missing.
    ValueError
        The bytes are no zstd, end too early, continue behind the end, or give more than ``DECOMPRESSED_BYTES_MAX``.
    """
    zstd = _zstd()
    bounds = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
    decompressor = zstd.ZstdDecompressor(options=bounds)
    try:
        plain: bytes = decompressor.decompress(payload, DECOMPRESSED_BYTES_MAX + 1)
    except zstd.ZstdError as error:
        raise ValueError(f"not what zstd made, or over {DECOMPRESSED_BYTES_MAX} bytes: {error}") from error
    if len(plain) > DECOMPRESSED_BYTES_MAX:
        raise ValueError(f"it decompresses to more than {DECOMPRESSED_BYTES_MAX} bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("the compressed bytes end too early, or continue behind their end")
    return plain


def check_available() -> None:
    """Refuse compression before the first message; raises ConfigError if zstd is missing."""
    _zstd()


def _zstd() -> Any:
    return import_extra(_MODULE, "zstd", "compression with zstd")
