"""CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected, initial value and final XOR 0xFFFFFFFF).

The C extension computes it; without one, google-crc32c does it in hardware if its compiled form is installed. crcmod's
``crc-32c`` (from the distribution crcmod-plus) is the portable twin of both.
``tests/unit/format/test_checksum.py`` holds them equal. docs/format.md, "Checksums".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from holdfast.compiled import compiled_form

Crc32c = Callable[[int, bytes], int]
"""``crc(seed, data)``: the checksum of ``data`` continued from ``seed``; a seed of 0 starts afresh."""


def compiled_crc32c() -> Crc32c | None:
    """Return google-crc32c's hardware form, or None if only its slow fallback is installed."""
    try:
        import google_crc32c
    except ImportError:
        return None
    if google_crc32c.implementation != "c":
        return None
    extend: Crc32c = google_crc32c.extend
    return extend


def portable_crc32c() -> Crc32c:
    """Return crcmod's form of the same polynomial."""
    import crcmod.predefined

    crc = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

    def extend(seed: int, data: bytes) -> int:
        return int(crc(data, seed))

    return extend


crc32c: Crc32c = compiled_form("crc32c") or compiled_crc32c() or portable_crc32c()


def reseed(crc: int, seed: int, new_seed: int, size: int) -> int:
    """Return the checksum that ``size`` bytes would have from ``new_seed``, given the one they have from ``seed``.

    A checksum is affine in its seed: two seeds give two checksums whose XOR depends only on the XOR of the seeds and on
    how many bytes followed. So the bytes are not needed again. Costs as many steps as ``size`` has binary digits.
    """
    difference = seed ^ new_seed
    power = 0
    while size:
        if size & 1:
            difference = _apply(_zeros_matrix(power), difference)
        size >>= 1
        power += 1
    return crc ^ difference


_Matrix = tuple[int, ...]
"""What becomes of each of the 32 bits of a difference."""


@cache
def _zeros_matrix(power: int) -> _Matrix:
    """Return what ``2 ** power`` zero bytes do to a difference between two checksums."""
    if power == 0:
        return tuple(crc32c(1 << bit, b"\0") ^ crc32c(0, b"\0") for bit in range(32))
    half = _zeros_matrix(power - 1)
    return tuple(_apply(half, column) for column in half)


def _apply(matrix: _Matrix, difference: int) -> int:
    result = 0
    for column in matrix:
        if difference & 1:
            result ^= column
        difference >>= 1
    return result
