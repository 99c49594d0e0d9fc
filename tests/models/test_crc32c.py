"""The checksum against its published check value and its definition bit by bit."""

import numpy as np
import pytest
from bundle_builder import crc_by_bits, mask

from bertworks.models.tf_bundle import crc32c, masked

RANDOM = np.random.default_rng(1).integers(0, 256, 1_000, np.uint8)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"123456789", 0xE3069283), (b"", 0), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
)
def test_published_values(data, expected):
    assert crc32c(data) == crc_by_bits(data) == expected


@pytest.mark.parametrize("length", [1, 3, 15, 16, 17, 31, 32, 33, 64, 100, 999])
@pytest.mark.parametrize("start", [0, 1, 5])
def test_any_length_at_any_place_equals_the_definition(length, start):
    data = RANDOM[start : start + length]
    assert crc32c(data) == crc_by_bits(data.tobytes())


@pytest.mark.parametrize("cut", [0, 1, 16, 100, 1_000])
def test_a_checksum_goes_on_from_piece_to_piece(cut):
    assert crc32c(RANDOM[cut:], crc32c(RANDOM[:cut])) == crc_by_bits(RANDOM.tobytes())


def test_masking_is_the_stored_form():
    assert masked(0) == 0xA282EAD8
    for crc in (1, 0x7FFF, 0x8000, 0xFFFFFFFF, 0xE3069283):
        assert masked(crc) == mask(crc) < 2**32
