"""Sets of layers as text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_core.errors import SettingsError
from streaming_core.layer_set import LayerSet


@given(st.sets(st.integers(0, 9999), max_size=60))
def test_every_set_reads_back_equal(layers: set[int]) -> None:
    found = LayerSet.parse(str(LayerSet.of(layers)))
    assert found.layers == (layers or frozenset())


@given(st.sets(st.integers(0, 60), max_size=40), st.integers(0, 60))
def test_it_contains_what_was_put_in(layers: set[int], layer: int) -> None:
    assert (layer in LayerSet.of(layers)) is (layer in layers)


@pytest.mark.parametrize(
    "text, normal",
    [
        ("all", "all"),
        ("none", "none"),
        ("", "none"),
        ("3", "3"),
        ("1-7,10-16", "1-7,10-16"),
        (" 4 , 2-3,3 ", "2-4"),
        ("5-5", "5"),
        ("0,2,1", "0-2"),
    ],
)
def test_text_is_brought_to_its_shortest_form(text: str, normal: str) -> None:
    assert str(LayerSet.parse(text)) == normal


def test_all_contains_every_layer_and_none_no_layer() -> None:
    assert 9999 in LayerSet.parse("all")
    assert 0 not in LayerSet.parse("none")
    assert LayerSet() == LayerSet.parse("none")


@pytest.mark.parametrize("text", ["a", "1-", "-3", "1,,2", "1;2", "1..3", "ALL", "1.5", "1-2-3", ","])
def test_other_text_is_refused_with_an_example(text: str) -> None:
    rule = f'prefetch.layers must be "all", "none" or ranges such as "1-7,10-16", got {text!r}'
    with pytest.raises(SettingsError, match=f"^{re.escape(rule)}$"):
        LayerSet.parse(text, "prefetch.layers")


@pytest.mark.parametrize("text", ["7-1", "0-10000", "10000"])
def test_backward_and_endless_ranges_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=f"layers: range '{text}' runs backwards or past 9999"):
        LayerSet.parse(text)
