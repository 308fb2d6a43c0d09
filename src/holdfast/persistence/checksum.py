"""CRC-32C (Castagnoli, polynomial 0x1EDC6F41, reflected, initial value and final XOR 0xFFFFFFFF).

google-crc32c computes it in hardware where its compiled form is installed; crcmod's ``crc-32c`` is the portable twin.
``tests/unit/persistence/test_checksum.py`` holds the two equal. docs/format.md, "Checksums".
"""

from __future__ import annotations

from collections.abc import Callable

Crc32c = Callable[[int, bytes], int]
"""``crc(seed, data)``: the checksum of ``data`` continued from ``seed``; a seed of 0 starts afresh."""


def compiled_crc32c() -> Crc32c | None:
    """Return google-crc32c's hardware form, or None where only its slow fallback is installed."""
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


crc32c: Crc32c = compiled_crc32c() or portable_crc32c()
