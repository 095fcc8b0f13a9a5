"""Every setting of the runtime as one frozen value that cannot be wrong.

The YAML key of a setting is `<section>.<name>`: `residency.slots`, `memory.budget`, ...  Sizes are text with a
binary unit in YAML and bytes in Python.  Nothing here changes what the model says, only how fast it says it; `kernels`
may round differently.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from streaming_core.errors import SettingsError
from streaming_core.layer_set import LayerSet
from streaming_core.units import exact_size, parse_size

__all__ = [
    "SIZES",
    "SWITCHES",
    "KernelSettings",
    "MemorySettings",
    "PredictSettings",
    "PrefetchSettings",
    "PrefillSettings",
    "ProcessSettings",
    "ReadSettings",
    "ResidencySettings",
    "Settings",
    "StoreSettings",
]


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(f"{name} must be a whole number from {low} to {high}, got {value!r}", span=(low, high))
    if not low <= value <= high:
        raise SettingsError(f"{name} must be from {low} to {high}, got {value}", span=(low, high))


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"{name} must be a number from {low} to {high}, got {value!r}", span=(low, high))
    if not low <= value <= high:
        raise SettingsError(f"{name} must be from {low} to {high}, got {value}", span=(low, high))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{name} must be text, got {value!r}")
    return value


def _choice(name: str, value: object, choices: tuple[str, ...], others: str = "") -> None:
    if value not in choices:
        raise SettingsError(f"{name} must be one of {others}{', '.join(choices)}, got {value!r}", words=choices)


def _one_of(name: str, value: object, choices: tuple[int, ...]) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value not in choices:
        raise SettingsError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}", words=choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    budget: int | None = None  # bytes for everything the model needs beyond importing mlx_lm; None: from the machine
    context: int = 4096  # tokens of prompt and answer that the plan makes room for
    mlx_cache: int = 64 << 20  # bytes of freed buffers MLX may keep for reuse; counted inside the budget

    def __post_init__(self) -> None:
        if self.budget is not None:
            _whole("memory.budget", self.budget, 1, 1 << 50)
        _whole("memory.context", self.context, 1, 1 << 24)
        _whole("memory.mlx_cache", self.mlx_cache, 0, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencySettings:
    slots: int | str = "auto"  # per streamed layer; "all": one per expert; "auto": as many as the budget holds
    resident_layers: int | str = "auto"  # never waited for: a layer set, or how many; "auto": all if all fit, else none
    policy: str = "lru"
    half_life: int = 64  # policy lfu: tokens after which a use counts half

    def __post_init__(self) -> None:
        if isinstance(self.slots, str):
            _choice("residency.slots", self.slots, ("auto", "all"), "a whole number, ")
        else:
            _whole("residency.slots", self.slots, 1, 1 << 16)
        if not isinstance(self.resident_layers, str):
            _whole("residency.resident_layers", self.resident_layers, 0, 9999)
        elif self.resident_layers != "auto":
            LayerSet.parse(self.resident_layers, "residency.resident_layers")
        _choice("residency.policy", self.policy, ("lru", "lfu"))
        _whole("residency.half_life", self.half_life, 1, 1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    threads: int = 4  # the one that waits for a read is one of them
    guess_threads: int = 1  # of them, those that may read guesses at once
    page_cache: str = "keep"  # keep: the system may cache records; bypass: the bank is the only cache
    reader: str = "auto"  # threads: Python's; native: in C, without Python's lock; "auto": native where it was built

    def __post_init__(self) -> None:
        _whole("reading.threads", self.threads, 1, 64)
        _whole("reading.guess_threads", self.guess_threads, 1, 64)
        _choice("reading.page_cache", self.page_cache, ("keep", "bypass"))
        _choice("reading.reader", self.reader, ("auto", "threads", "native"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    layout: str = "packed"  # packed: one record per expert, a copy on disk; checkpoint: the safetensors as they are

    def __post_init__(self) -> None:
        _choice("store.layout", self.layout, ("packed", "checkpoint"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSettings:
    chunk: int | str = "auto"  # prompt tokens per forward pass; "auto": up to 512, fewer if the budget is small

    def __post_init__(self) -> None:
        if isinstance(self.chunk, str):
            _choice("prefill.chunk", self.chunk, ("auto",), "a whole number, ")
        else:
            _whole("prefill.chunk", self.chunk, 1, 1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    max_ops_per_buffer: int | None = None  # MLX_MAX_OPS_PER_BUFFER of the process; None: MLX's own choice

    def __post_init__(self) -> None:
        if self.max_ops_per_buffer is not None:
            _whole("process.max_ops_per_buffer", self.max_ops_per_buffer, 1, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictSettings:
    # gate: a later layer's own router; gate_input: the same on what this layer's router sees; cascade: gate_input, then
    # gate once the layer's own input is there; frequency: recent use; oracle: a recorded run
    kind: str = "none"
    mult: float = 2.0  # candidates per token, in multiples of the experts per token
    min_score: float = 0.0  # a guess less likely than this is not acted upon

    def __post_init__(self) -> None:
        _choice("predict.kind", self.kind, ("none", "gate", "gate_input", "cascade", "frequency", "oracle"))
        _number("predict.mult", self.mult, 0.1, 64.0)
        _number("predict.min_score", self.min_score, 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchSettings:
    backend: str = "none"  # what is done with a guess: advise hints, stage reads aside, slots reads into the bank
    ahead: int = 1  # layers with experts from the guess to its target; 0: the same layer, before its attention
    per_layer: int = 8  # guesses acted upon per layer and pass
    per_pass: int | str = "all"  # guesses acted upon in one forward pass, over all layers
    depth: int = 16  # backends stage, slots: guesses queued or being read, over all layers; more are dropped
    layers: str = "all"  # target layers
    window: int = 2  # backend stage: layers whose side buffers exist at once

    def __post_init__(self) -> None:
        _choice("prefetch.backend", self.backend, ("none", "advise", "stage", "slots"))
        _whole("prefetch.ahead", self.ahead, 0, 64)
        _whole("prefetch.per_layer", self.per_layer, 1, 4096)
        if isinstance(self.per_pass, str):
            _choice("prefetch.per_pass", self.per_pass, ("all",))
        else:
            _whole("prefetch.per_pass", self.per_pass, 0, 1 << 20)
        _whole("prefetch.depth", self.depth, 1, 4096)
        LayerSet.parse(_text("prefetch.layers", self.layers), "prefetch.layers")
        _whole("prefetch.window", self.window, 1, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSettings:
    # On Metal and CUDA, for calls of few tokens.  Their sums round in another order than MLX's own kernel does.
    fused: str = "off"  # on: gate, up, activation and down of the chosen experts in as few launches as can be
    indexed: str = "off"  # on: a quantized linear that picks the expert per row; `fused` goes first where both are on
    fused_max_seq: int = 8  # used while a call has at most as many tokens
    indexed_max_seq: int = 8
    layers: str = "all"  # MoE layers, streamed and resident ones
    targets: str = "gate_up"  # indexed: gate_up leaves down to MLX; all
    tile: int = 2  # rows of a projection per group of lanes
    lanes: int = 32  # that share a row
    block: int = 128  # threads of a block (Metal: threadgroup)

    def __post_init__(self) -> None:
        _choice("kernels.fused", self.fused, ("off", "on"))
        _choice("kernels.indexed", self.indexed, ("off", "on"))
        _whole("kernels.fused_max_seq", self.fused_max_seq, 1, 1024)
        _whole("kernels.indexed_max_seq", self.indexed_max_seq, 1, 1024)
        LayerSet.parse(_text("kernels.layers", self.layers), "kernels.layers")
        _choice("kernels.targets", self.targets, ("gate_up", "all"))
        _one_of("kernels.tile", self.tile, (1, 2, 4, 8))
        _one_of("kernels.lanes", self.lanes, (8, 16, 32))
        _one_of("kernels.block", self.block, (32, 64, 128, 256, 512, 1024))


SIZES = frozenset({("memory", "budget"), ("memory", "mlx_cache")})
SWITCHES = frozenset({("kernels", "fused"), ("kernels", "indexed")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings.  `Settings()` is the built-in default; `from_mapping` reads YAML; `with_values` changes keys."""

    memory: MemorySettings = field(default_factory=MemorySettings)
    residency: ResidencySettings = field(default_factory=ResidencySettings)
    reading: ReadSettings = field(default_factory=ReadSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    prefill: PrefillSettings = field(default_factory=PrefillSettings)
    process: ProcessSettings = field(default_factory=ProcessSettings)
    predict: PredictSettings = field(default_factory=PredictSettings)
    prefetch: PrefetchSettings = field(default_factory=PrefetchSettings)
    kernels: KernelSettings = field(default_factory=KernelSettings)

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Every `section.name`, in order."""
        default = cls()
        return tuple(f"{s.name}.{f.name}" for s in fields(cls) for f in fields(getattr(default, s.name)))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], where: str = "settings") -> Settings:
        """Settings from nested mappings as YAML gives them; keys that are not there keep their default.

        Raises:
            SettingsError: an unknown key (with the nearest valid one), a wrong type or a wrong value.
        """
        flat: dict[str, Any] = {}
        for section, values in _entries(mapping, where):
            _known(section, [f.name for f in fields(cls)], where)
            for name, value in _entries(values, f"{where}.{section}"):
                flat[f"{section}.{name}"] = value
        return cls().with_values(flat, where)

    def with_values(self, values: Mapping[str, Any], where: str = "settings") -> Settings:
        """A copy with `{"residency.slots": 16, "memory.budget": "2GiB"}` changed.  Raises SettingsError."""
        changed: dict[str, dict[str, Any]] = {}
        keys = list(self.keys()) if values else []
        for key, value in values.items():
            _known(key, keys, where)
            section, _, name = key.partition(".")
            changed.setdefault(section, {})[name] = _from_yaml(section, name, value)
        try:
            return replace(self, **{s: replace(getattr(self, s), **new) for s, new in changed.items()})
        except SettingsError as err:
            raise SettingsError(f"{where}: {err}") from None

    def get(self, key: str) -> Any:
        """The value of `section.name`."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

    def to_mapping(self) -> dict[str, dict[str, Any]]:
        """Nested plain values; `from_mapping(to_mapping())` gives an equal value."""
        return {
            s.name: {f.name: _to_yaml(s.name, f.name, getattr(section, f.name)) for f in fields(section)}
            for s in fields(self)
            for section in [getattr(self, s.name)]
        }

    def changes_from(self, other: Settings) -> dict[str, Any]:
        """Keys whose value differs from `other`, with this value in YAML form."""
        differing = [key for key in self.keys() if self.get(key) != other.get(key)]
        return {key: _to_yaml(key.partition(".")[0], key.partition(".")[2], self.get(key)) for key in differing}


def _entries(mapping: object, where: str) -> list[tuple[str, Any]]:
    if not isinstance(mapping, Mapping):
        raise SettingsError(f"{where} must be a mapping of names to values, got {type(mapping).__name__}")
    for key in mapping:
        if not isinstance(key, str):
            raise SettingsError(f"{where}: key {key!r} must be text")
    return list(mapping.items())


def _known(key: str, valid: list[str], where: str) -> None:
    if key in valid:
        return
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.0)
    raise SettingsError(f"{where}: unknown key {key!r}; did you mean {near[0]!r}? Known: {', '.join(valid)}")


def _from_yaml(section: str, name: str, value: Any) -> Any:
    if (section, name) in SIZES and isinstance(value, str):
        return parse_size(value, f"{section}.{name}")
    if (section, name) in SWITCHES and isinstance(value, bool):
        return "on" if value else "off"  # what YAML makes of these words without quotes
    return value


def _to_yaml(section: str, name: str, value: Any) -> Any:
    if (section, name) in SIZES and isinstance(value, int):
        return exact_size(value)
    return value
