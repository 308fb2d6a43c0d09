"""CRC-32C: two libraries, one polynomial."""

from __future__ import annotations

import random
import sys
from importlib.metadata import packages_distributions
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.persistence.format.checksum import Crc32c, compiled_crc32c, crc32c, portable_crc32c, reseed

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


@given(data=st.binary(max_size=10_000), seed=st.integers(0, 0xFFFFFFFF))
def test_both_libraries_agree_on_random_data(data: bytes, seed: int) -> None:
    """Hypothesis chooses the bytes and the seed; as a view of part of a buffer too."""
    compiled, portable = compiled_crc32c() or crc32c, portable_crc32c()
    assert portable(seed, data) == compiled(seed, data)
    assert portable(seed, memoryview(b"<" + data)[1:]) == compiled(seed, data)  # type: ignore[arg-type]


def test_the_portable_library_is_the_fork_with_wheels() -> None:
    """Both name their package ``crcmod``; only one of them may be what an installation brings."""
    assert "crcmod-plus" in packages_distributions()["crcmod"]


def test_different_salts_give_different_checksums() -> None:
    """The seed is what sets one life of a file apart from another."""
    assert len({crc32c(salt, b"frame") for salt in range(1000)}) == 1000


def test_a_checksum_moves_to_another_seed_without_the_bytes(crc: Crc32c) -> None:
    """Every small size, sizes around powers of two, and one over a mebibyte; any seed to any other."""
    rng = random.Random(3)
    for size in [*range(70), 255, 256, 257, 4095, 4096, 4097, 65_537, 2**20 + 3]:
        data = rng.randbytes(size)
        for seed, new_seed in [(0, 0), (0, 1), (1, 0), (0, 0xFFFFFFFF), (rng.getrandbits(32), rng.getrandbits(32))]:
            moved = reseed(crc(seed, data), seed, new_seed, size)
            assert moved == crc(new_seed, data), (size, seed, new_seed)


def test_each_bit_of_a_seed_moves_by_itself(crc: Crc32c) -> None:
    """All 32 of them, through sizes that use every matrix on its own."""
    for power in range(13):
        data = bytes(2**power)
        for bit in range(32):
            assert reseed(crc(0, data), 0, 1 << bit, len(data)) == crc(1 << bit, data)


def test_moving_to_another_seed_and_back_changes_nothing_at_any_size() -> None:
    """Up to the largest frame, in steps that no loop over the bytes could take."""
    for size in (2**31 + 5, 2**32 - 1):
        moved = reseed(0x12345678, 0xDEADBEEF, 0x0BADF00D, size)
        assert moved != 0x12345678
        assert reseed(moved, 0x0BADF00D, 0xDEADBEEF, size) == 0x12345678


def test_sizes_add_up_when_the_seed_moves() -> None:
    """A difference that has gone through one size and then another has gone through both."""
    for first, second in ((1, 2**32 - 2), (2**20, 3 * 2**30), (12_345, 678_901)):
        step = reseed(0, 0, 0xCAFE, first)
        assert reseed(0, 0, step, second) == reseed(0, 0, 0xCAFE, first + second)


@pytest.mark.parametrize("installed", [None, SimpleNamespace(implementation="python")], ids=["nothing", "slow"])
def test_without_the_compiled_form_the_portable_one_is_taken(
    installed: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fallback of google-crc32c is slower than crcmod's own form."""
    monkeypatch.setitem(sys.modules, "google_crc32c", installed)
    assert compiled_crc32c() is None
