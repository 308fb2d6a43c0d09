"""zstd: smaller where it can be, and never more memory than is promised."""

from __future__ import annotations

import sys
import tracemalloc
from importlib import import_module
from typing import Any

import pytest

from holdfast import ConfigError
from holdfast.errors import DecodeError
from holdfast.serializers import compression
from holdfast.serializers.codec import Codec
from holdfast.serializers.compression import DECOMPRESSED_BYTES_MAX, compress, decompress
from holdfast.serializers.registry import Registry

zstd: Any = import_module(compression._MODULE)

HEADERS = {"content-type": "application/octet-stream", "content-encoding": "zstd"}


def codec(**options: Any) -> Codec[bytes]:
    """Return a codec of bytes."""
    return Codec(Registry(), type=bytes, **options)


def test_payloads_are_compressed_from_the_threshold_on() -> None:
    """And say so; shorter ones are as they were."""
    queue = codec(compress_bytes=1000)
    short, short_headers = queue.encode(b"x" * 999)
    long, long_headers = queue.encode(b"x" * 1000)
    assert short == b"x" * 999
    assert "content-encoding" not in short_headers
    assert len(long) < 100
    assert long_headers == {**short_headers, "content-encoding": "zstd"}
    assert queue.encode(b"y" * 2000)[1] is long_headers
    assert codec().decode(long, long_headers) == b"x" * 1000  # whoever reads need not ask for it


def test_what_compression_makes_no_smaller_is_left_alone() -> None:
    """Nobody has to decompress it then."""
    random = bytes(range(256))
    payload, headers = codec(compress_bytes=1).encode(random)
    assert payload == random
    assert "content-encoding" not in headers


def test_what_would_not_be_decompressed_again_is_not_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of readers is that of writers."""
    monkeypatch.setattr("holdfast.serializers.codec.DECOMPRESSED_BYTES_MAX", 5000)
    queue = codec(compress_bytes=1)
    assert queue.encode(b"x" * 5000)[1]["content-encoding"] == "zstd"
    assert queue.encode(b"x" * 5001) == (b"x" * 5001, codec().encode(b"")[1])


def test_as_much_as_is_allowed_comes_out_and_no_byte_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound, and one above."""
    monkeypatch.setattr(compression, "DECOMPRESSED_BYTES_MAX", 5000)
    assert decompress(compress(b"x" * 5000)) == b"x" * 5000
    with pytest.raises(ValueError, match="more than 5000 bytes"):
        decompress(compress(b"x" * 5001))


def test_a_bomb_does_not_take_all_memory() -> None:
    """A few kilobytes that stand for sixteen times the bound."""
    compressor = zstd.ZstdCompressor()
    chunk = bytes(DECOMPRESSED_BYTES_MAX)
    bomb = b"".join([*(compressor.compress(chunk) for _ in range(16)), compressor.flush()])
    assert len(bomb) < DECOMPRESSED_BYTES_MAX // 500
    del chunk
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="decompresses to more than"):
            codec().decode(bomb, HEADERS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * DECOMPRESSED_BYTES_MAX


def test_a_window_larger_than_the_bound_is_refused() -> None:
    """It is memory that would be taken before the first byte comes out."""
    options = {zstd.CompressionParameter.window_log: 30, zstd.CompressionParameter.content_size_flag: 0}
    compressor = zstd.ZstdCompressor(options=options)
    with pytest.raises(DecodeError, match="over 67108864 bytes"):
        codec().decode(compressor.compress(b"x" * 100) + compressor.flush(), HEADERS)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no zstd at all",
        compress(b"x" * 100)[:-1],
        compress(b"x" * 100) + b"more",
        compress(b"x") + compress(b"y"),
    ],
    ids=["empty", "garbage", "truncated", "trailing", "two"],
)
def test_what_zstd_did_not_make_is_refused(payload: bytes) -> None:
    """Whole, or not at all."""
    with pytest.raises(DecodeError):
        codec().decode(payload, HEADERS)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a queue asks for it, and when a message needs it; nothing else does."""
    monkeypatch.setitem(sys.modules, compression._MODULE, None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[zstd\]'"):
        codec(compress_bytes=100)
    with pytest.raises(DecodeError, match=r"pip install 'holdfast\[zstd\]'"):
        codec().decoder(HEADERS)
    assert codec().decode(*codec().encode(b"x")) == b"x"
