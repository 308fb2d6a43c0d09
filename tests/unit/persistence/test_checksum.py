"""CRC-32C: two libraries, one polynomial."""

from __future__ import annotations

import random

import pytest

from holdfast.persistence.checksum import Crc32c, compiled_crc32c, crc32c, portable_crc32c

FORMS = {"portable": portable_crc32c(), "chosen": crc32c, "compiled": compiled_crc32c() or crc32c}


@pytest.fixture(params=FORMS, ids=str)
def crc(request: pytest.FixtureRequest) -> Crc32c:
    """Return each form there is."""
    return FORMS[request.param]


def test_the_check_value_of_the_polynomial_comes_out(crc: Crc32c) -> None:
    """The catalogue of CRCs gives 0xE3069283 for the digits 1 to 9."""
    assert crc(0, b"123456789") == 0xE3069283


def test_vectors_of_rfc_3720_come_out(crc: Crc32c) -> None:
    """32 zeros, 32 ones and 32 ascending bytes, as iSCSI publishes them."""
    assert crc(0, bytes(32)) == 0x8A9136AA
    assert crc(0, b"\xff" * 32) == 0x62A8AB43
    assert crc(0, bytes(range(32))) == 0x46DD794E


def test_nothing_leaves_the_seed_as_it_is(crc: Crc32c) -> None:
    """Empty bytes change no checksum, whatever it was."""
    for seed in (0, 1, 0xFFFFFFFF, 0xE3069283):
        assert crc(seed, b"") == seed


def test_a_checksum_can_be_taken_in_pieces(crc: Crc32c) -> None:
    """Going on from the checksum of the first piece gives that of the whole."""
    data = random.Random(1).randbytes(1000)
    for cut in (0, 1, 7, 8, 500, 999, 1000):
        assert crc(crc(0, data[:cut]), data[cut:]) == crc(0, data)


def test_both_libraries_agree() -> None:
    """Many inputs of many sizes, each with several seeds."""
    compiled = compiled_crc32c()
    if compiled is None:
        pytest.skip("google-crc32c is not compiled here")
    portable = portable_crc32c()
    rng = random.Random(2)
    for size in [*range(70), 255, 256, 257, 4095, 4096, 4097, 65_537]:
        data = rng.randbytes(size)
        for seed in (0, 1, 0xFFFFFFFF, rng.getrandbits(32)):
            assert compiled(seed, data) == portable(seed, data), (size, seed)


def test_different_salts_give_different_checksums() -> None:
    """The seed is what sets one life of a file apart from another."""
    assert len({crc32c(salt, b"frame") for salt in range(1000)}) == 1000
