"""Sizes as people write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_core.errors import SettingsError
from streaming_core.units import GIB, KIB, MIB, exact_size, format_size, parse_size, round_up


@pytest.mark.parametrize(
    "text, nbytes",
    [
        ("0B", 0),
        ("512B", 512),
        ("1KiB", KIB),
        ("64MiB", 64 * MIB),
        ("1.5GiB", 3 * GIB // 2),
        (" 2 gib ", 2 * GIB),
        ("2TIB", 2048 * GIB),
        ("0.5KiB", 512),
    ],
)
def test_binary_sizes_are_read(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text, message",
    [
        ("1GB", """memory.budget needs a binary unit, got '1GB'; write "1GiB\""""),
        ("1.5g", """memory.budget needs a binary unit, got '1.5g'; write "1.5GiB\""""),
        ("12", "memory.budget needs a binary unit, got '12'; use B, KiB, MiB, GiB or TiB"),
        ("3parsec", "memory.budget needs a binary unit, got '3parsec'; use B, KiB, MiB, GiB or TiB"),
        ("", """memory.budget must be a size such as "1.5GiB", got ''"""),
        ("-1GiB", """memory.budget must be a size such as "1.5GiB", got '-1GiB'"""),
        ("1,5GiB", """memory.budget must be a size such as "1.5GiB", got '1,5GiB'"""),
        ("GiB", """memory.budget must be a size such as "1.5GiB", got 'GiB'"""),
    ],
)
def test_anything_else_is_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        parse_size(text, "memory.budget")


@given(st.integers(0, 1 << 50))
def test_exact_sizes_read_back_equal(nbytes: int) -> None:
    assert parse_size(exact_size(nbytes)) == nbytes


@given(st.integers(0, 1 << 50))
def test_short_sizes_read_back_within_half_a_percent(nbytes: int) -> None:
    assert abs(parse_size(format_size(nbytes)) - nbytes) <= 0.005 * nbytes + 1  # a byte is lost in whole bytes


@pytest.mark.parametrize(
    "nbytes, text", [(0, "0B"), (1023, "1023B"), (1610612736, "1.5GiB"), (GIB, "1GiB"), (10 * MIB + 1, "10MiB")]
)
def test_sizes_are_shown_short(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_rounding_up_reaches_the_next_multiple_and_no_further(nbytes: int, multiple: int) -> None:
    rounded = round_up(nbytes, multiple)
    assert rounded % multiple == 0 and nbytes <= rounded < nbytes + multiple
