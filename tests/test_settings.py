"""Settings cannot be wrong, and say what would be right."""

from __future__ import annotations

import dataclasses
import pickle
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from streaming_core.errors import SettingsError
from streaming_core.layer_set import LayerSet
from streaming_core.settings import Settings

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "memory.budget": st.none() | st.integers(1, 1 << 50),
    "memory.context": st.integers(1, 1 << 24),
    "memory.mlx_cache": st.integers(0, 1 << 40),
    "residency.slots": st.sampled_from(["auto", "all"]) | st.integers(1, 1 << 16),
    "residency.resident_layers": st.just("auto")
    | st.integers(0, 9999)
    | st.sets(st.integers(0, 99)).map(lambda layers: str(LayerSet.of(layers)))
    | st.just("all"),
    "residency.policy": st.sampled_from(["lru", "lfu"]),
    "residency.half_life": st.integers(1, 1 << 20),
    "reading.threads": st.integers(1, 64),
    "reading.page_cache": st.sampled_from(["keep", "bypass"]),
    "reading.guess_threads": st.integers(1, 64),
    "reading.reader": st.sampled_from(["auto", "threads", "native"]),
    "store.layout": st.sampled_from(["packed", "checkpoint"]),
    "prefill.chunk": st.integers(1, 1 << 16),
    "process.max_ops_per_buffer": st.none() | st.integers(1, 10_000),
    "predict.kind": st.sampled_from(["none", "gate", "gate_input", "cascade", "frequency", "oracle"]),
    "predict.mult": st.floats(0.125, 64.0),
    "predict.min_score": st.floats(0.0, 1.0),
    "prefetch.backend": st.sampled_from(["none", "advise", "stage", "slots"]),
    "prefetch.ahead": st.integers(0, 64),
    "prefetch.per_layer": st.integers(1, 4096),
    "prefetch.per_pass": st.just("all") | st.integers(0, 1 << 20),
    "prefetch.depth": st.integers(1, 4096),
    "prefetch.layers": st.sampled_from(["all", "none", "1-7,10-16"]),
    "prefetch.window": st.integers(1, 64),
    "kernels.fused": st.sampled_from(["off", "on"]),
    "kernels.indexed": st.sampled_from(["off", "on"]),
    "kernels.fused_max_seq": st.integers(1, 1024),
    "kernels.indexed_max_seq": st.integers(1, 1024),
    "kernels.layers": st.sampled_from(["all", "none", "1-7,10-16"]),
    "kernels.targets": st.sampled_from(["gate_up", "all"]),
    "kernels.tile": st.sampled_from([1, 2, 4, 8]),
    "kernels.lanes": st.sampled_from([8, 16, 32]),
    "kernels.block": st.sampled_from([32, 64, 128, 256, 512, 1024]),
}
some_values = st.fixed_dictionaries({}, optional=VALUES)


@given(some_values)
def test_any_settings_read_back_equal_from_plain_values_and_from_yaml(values: dict[str, Any]) -> None:
    settings = Settings().with_values(values)
    assert Settings.from_mapping(settings.to_mapping()) == settings
    assert Settings.from_mapping(yaml.safe_load(yaml.safe_dump(settings.to_mapping()))) == settings
    for key, value in values.items():
        assert settings.get(key) == value


@given(some_values, some_values)
def test_the_changes_from_one_to_another_lead_there(first: dict[str, Any], second: dict[str, Any]) -> None:
    here, there = Settings().with_values(first), Settings().with_values(second)
    assert here.with_values(there.changes_from(here)) == there
    assert here.changes_from(here) == {}


def test_every_key_is_tested_here() -> None:
    keys = Settings.keys()
    assert set(keys) == set(VALUES)


def test_keys_not_given_keep_their_default() -> None:
    settings = Settings.from_mapping({"reading": {"threads": 9}})
    assert settings.reading.threads == 9
    assert settings.changes_from(Settings()) == {"reading.threads": 9}
    assert Settings.from_mapping({}) == Settings()


def test_a_switch_may_be_written_without_quotes() -> None:
    settings = Settings.from_mapping(yaml.safe_load("kernels: {fused: on, indexed: off}"))
    assert settings == Settings().with_values({"kernels.fused": "on"})


def test_settings_are_frozen_hashable_and_can_be_sent_to_a_worker() -> None:
    settings = Settings().with_values({"memory.budget": "2GiB"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.memory = settings.memory  # type: ignore[misc]
    assert len({settings, Settings(), Settings()}) == 2
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    "values, message",
    [
        ({"memory.budget": 0}, "memory.budget must be from 1 to 1125899906842624, got 0"),
        ({"memory.budget": "2GB"}, """memory.budget needs a binary unit, got '2GB'; write "2GiB\""""),
        ({"memory.budget": 1.5}, "memory.budget must be a whole number from 1 to 1125899906842624, got 1.5"),
        ({"memory.context": None}, "memory.context must be a whole number from 1 to 16777216, got None"),
        ({"memory.mlx_cache": -1}, "memory.mlx_cache must be from 0 to 1099511627776, got -1"),
        ({"residency.slots": "many"}, "residency.slots must be one of a whole number, auto, all, got 'many'"),
        ({"residency.slots": True}, "residency.slots must be a whole number from 1 to 65536, got True"),
        ({"residency.slots": 0}, "residency.slots must be from 1 to 65536, got 0"),
        ({"residency.resident_layers": "1-"}, 'residency.resident_layers must be "all", "none" or ranges'),
        ({"residency.resident_layers": 1.0}, "residency.resident_layers must be a whole number from 0 to 9999, got "),
        ({"prefetch.depth": 0}, "prefetch.depth must be from 1 to 4096, got 0"),
        ({"prefetch.depth": "auto"}, "prefetch.depth must be a whole number from 1 to 4096, got 'auto'"),
        ({"residency.policy": "fifo"}, "residency.policy must be one of lru, lfu, got 'fifo'"),
        ({"residency.policy": []}, "residency.policy must be one of lru, lfu, got []"),
        ({"residency.half_life": 0}, "residency.half_life must be from 1 to 1048576, got 0"),
        ({"reading.threads": 65}, "reading.threads must be from 1 to 64, got 65"),
        ({"reading.threads": "4"}, "reading.threads must be a whole number from 1 to 64, got '4'"),
        ({"reading.page_cache": False}, "reading.page_cache must be one of keep, bypass, got False"),
        ({"store.layout": "tar"}, "store.layout must be one of packed, checkpoint, got 'tar'"),
        ({"prefill.chunk": 0}, "prefill.chunk must be from 1 to 65536, got 0"),
        ({"process.max_ops_per_buffer": "5"}, "process.max_ops_per_buffer must be a whole number from 1 to 10000"),
        ({"kernels.fused": "yes"}, "kernels.fused must be one of off, on, got 'yes'"),
        ({"kernels.indexed": None}, "kernels.indexed must be one of off, on, got None"),
        ({"kernels.fused_max_seq": 0}, "kernels.fused_max_seq must be from 1 to 1024, got 0"),
        ({"kernels.indexed_max_seq": True}, "kernels.indexed_max_seq must be a whole number from 1 to 1024, got True"),
        ({"kernels.layers": "3-"}, 'kernels.layers must be "all", "none" or ranges'),
        ({"kernels.targets": "down"}, "kernels.targets must be one of gate_up, all, got 'down'"),
        ({"kernels.tile": 3}, "kernels.tile must be one of 1, 2, 4, 8, got 3"),
        ({"kernels.lanes": 24}, "kernels.lanes must be one of 8, 16, 32, got 24"),
        ({"kernels.lanes": 8.0}, "kernels.lanes must be one of 8, 16, 32, got 8.0"),
        ({"kernels.lanes": "32"}, "kernels.lanes must be one of 8, 16, 32, got '32'"),
        ({"kernels.block": True}, "kernels.block must be one of 32, 64, 128, 256, 512, 1024, got True"),
        ({"kernels.fuse": "on"}, "unknown key 'kernels.fuse'; did you mean 'kernels.fused'?"),
        ({"reading.thread": 4}, "unknown key 'reading.thread'; did you mean 'reading.threads'? Known: memory.budget, "),
        ({"slots": 4}, "unknown key 'slots'; did you mean 'residency.slots'?"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_rule(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        Settings().with_values(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "mapping, message",
    [
        ({"reeding": {"threads": 4}}, "p.yaml: unknown key 'reeding'; did you mean 'reading'? Known: memory, "),
        ({"reading": {"thraeds": 4}}, "p.yaml: unknown key 'reading.thraeds'; did you mean 'reading.threads'?"),
        ({"reading": 4}, "p.yaml.reading must be a mapping of names to values, got int"),
        ({"reading": None}, "p.yaml.reading must be a mapping of names to values, got NoneType"),
        ([], "p.yaml must be a mapping of names to values, got list"),
        ({7: {}}, "p.yaml: key 7 must be text"),
        ({"reading": {False: 1}}, "p.yaml.reading: key False must be text"),
        ({"memory": {"context": 0}}, "p.yaml: memory.context must be from 1 to 16777216, got 0"),
    ],
)
def test_a_wrong_mapping_is_named_with_its_place(mapping: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}"):
        Settings.from_mapping(mapping, "p.yaml")
