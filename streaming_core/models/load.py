"""Loads a checkpoint lazily through mlx-lm, by what its tensors are rather than by what its config says of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import _get_classes, load_config, load_model

from streaming_core.errors import ModelNotSupported, StoreInvalid
from streaming_core.store.index import TensorPlace, read_index

__all__ = ["Loaded", "load_lazily", "translated", "weights_read"]

_OF_QUANTIZED = ("scales", "biases", "global_scale")
_LAYER = re.compile(r"(.*?)layers\.(\d+)\.")
_SINGLE = re.compile(r"(.+)\.experts\.(\d+)\.(\w+\.\w+)")
_DEPTHS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
_DEFAULT = {"group_size": 64, "bits": 4, "mode": "affine"}  # never applied: every tensor's own is inferred


@dataclass(frozen=True, slots=True)
class Loaded:
    model: nn.Module
    config: dict[str, Any]
    unused: tuple[str, ...]  # tensors that the model has no place for


def load_lazily(folder: Path, index: Mapping[str, TensorPlace] | None = None) -> Loaded:
    """mlx-lm's model with weights that are read when they are evaluated.

    Bits, group size and mode of each tensor follow from its shapes and types.  Entries of the config that name single
    tensors are left out: they may be missing, or name the tensors as another program does.

    Raises:
        ModelNotSupported: mlx-lm does not know the model, or its tensors do not fit the config.
        StoreInvalid: weight files are missing or damaged.
    """
    index = read_index(folder) if index is None else index
    unused: list[str] = []
    with translated(folder, "cannot load it"):
        config = load_config(folder)
        _check_depth(config, index)
        described = (folder / "hf_quant_config.json").exists()  # by NVIDIA's tool, for mlx-lm to convert
        quantization = None if described else _quantization(config, index)

        def classes(config: dict[str, Any]) -> tuple[Any, Any]:
            model_class, args_class = _get_classes(config)
            if quantization is None:
                return model_class, args_class
            return lambda args: _drop_strangers(model_class(args), config, unused), args_class

        changed = {"quantization": quantization} if quantization else None
        try:
            model, config = load_model(folder, lazy=True, model_config=changed, get_model_classes=classes)
        except ValueError as err:
            left = f"; {len(unused)} tensors have no place in it, such as {unused[0]}" if unused else ""
            raise ValueError(f"{_few_names(str(err))}{left}") from err
    vars(model).pop("sanitize", None)
    return Loaded(model, config, tuple(sorted(unused)))


def _check_depth(config: Mapping[str, Any], index: Collection[str]) -> None:
    """mlx-lm makes all the layers that a config asks for before it looks at any tensor."""
    text = config.get("text_config")
    for owner in (config, text if isinstance(text, dict) else {}):
        for key in _DEPTHS:
            wanted = owner.get(key)
            if isinstance(wanted, int | float) and wanted > len(index):
                raise ValueError(f"{key} is {wanted}, and the files have {len(index)} tensors in all")


def _quantization(config: Mapping[str, Any], names: Collection[str]) -> dict[str, Any] | None:
    """What mlx-lm shall take for `quantization`: empty leaves the config as it is, None is a format of somebody else,
    which mlx-lm converts and whose tensors are not to be judged by MLX's names."""
    text = config.get("text_config") or {}
    own = config.get("quantization", text.get("quantization"))
    foreign = config.get("quantization_config", text.get("quantization_config"))
    if own is None and isinstance(foreign, dict):
        method = foreign.get("quant_method")
        if method in ("awq", "gptq") and not any(name.endswith(".qweight") for name in names):
            raise ValueError(f"quantization_config says {method}, and no tensor is called *.qweight")
        if "quant_method" in foreign or "bits" not in foreign:
            return None
        own = foreign
    if isinstance(own, dict):
        return {key: own.get(key, default) for key, default in _DEFAULT.items() if key in own or key != "mode"}
    return dict(_DEFAULT) if any(name.endswith(".scales") for name in names) else {}


def _drop_strangers(model: nn.Module, config: Mapping[str, Any], unused: list[str]) -> nn.Module:
    """Makes this model's `sanitize` leave out tensors that it has no parameter for, and note their names.

    mlx-lm is strict about them and about missing ones in one switch; a missing one must stay an error.
    """
    sanitize = getattr(model, "sanitize", dict)
    homes = {name for name, _ in tree_flatten(model.parameters())}
    quantizable = {path for path, module in model.named_modules() if hasattr(module, "to_quantized")}
    needless = _Needless(homes, int(config.get("num_nextn_predict_layers") or 1))

    def has_home(name: str) -> bool:
        path, _, leaf = name.rpartition(".")
        return name in homes or (leaf in _OF_QUANTIZED and path in quantizable)

    def known(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        found = _stacked(sanitize(weights), has_home)
        unused.extend(name for name in found if not has_home(name) and needless(name))
        return {name: array for name, array in found.items() if has_home(name) or not needless(name)}

    model.sanitize = known
    return model


class _Needless:
    """Whether a tensor without a place can be no part of this model: whatever lies in a module or a decoder layer that
    the model has would change what it says, so the config or the checkpoint is wrong then."""

    def __init__(self, homes: Collection[str], extra_layers: int) -> None:
        """`extra_layers` that predict tokens further ahead are numbered on from the model's own."""
        self._modules = {name.rpartition(".")[0] for name in homes}
        self._extra = extra_layers
        self._layers: dict[str, int] = {}  # by what stands before `layers.N.`
        for match in filter(None, map(_LAYER.match, homes)):
            self._layers[match[1]] = max(self._layers.get(match[1], 0), int(match[2]) + 1)

    def __call__(self, name: str) -> bool:
        if name.endswith(".rotary_emb.inv_freq"):  # computed anew by everybody
            return True
        match = _LAYER.match(name)
        if match and match[1] in self._layers:
            return 0 <= int(match[2]) - self._layers[match[1]] < self._extra
        return name.rpartition(".")[0] not in self._modules


def _stacked(weights: dict[str, mx.array], has_home: Callable[[str], bool]) -> dict[str, mx.array]:
    """Puts tensors of single experts together where `sanitize` did not: many families stack weights, not scales."""
    singles: dict[tuple[str, str], dict[int, str]] = {}
    for name in weights:
        if (match := _SINGLE.fullmatch(name)) and not has_home(name):
            singles.setdefault((match[1], match[3]), {})[int(match[2])] = name
    for (block, tensor), names in singles.items():
        homes = (f"{block}.{container}.{tensor}" for container in ("switch_mlp", "experts"))
        home = next((each for each in homes if has_home(each) and each not in weights), None)
        if home is not None and names.keys() == set(range(len(names))):
            weights[home] = mx.stack([weights.pop(names[expert]) for expert in range(len(names))])
    return weights


def _few_names(message: str) -> str:
    """mlx lists every tensor that is missing."""
    lines = message.splitlines()
    return message if len(lines) <= 4 else " ".join([*lines[:4], f"and {len(lines) - 4} more"])


@contextmanager
def translated(folder: Path, what: str, advice: str = "check config.json or download it again") -> Iterator[None]:
    """mlx-lm believes a config; one that is wrong shows as whatever Python or MLX make of it."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, OSError) as err:
        kind = f"{type(err).__name__} " if isinstance(err, LookupError) else ""
        reason = kind + " ".join(str(err).split())[:300]
        raise ModelNotSupported(f"{folder}: mlx-lm {what}: {reason}; {advice}") from err


@contextmanager
def weights_read(folder: Path) -> Iterator[None]:
    """Around whatever evaluates lazily loaded weights, which MLX reads only then.

    Raises StoreInvalid when their files are not what they were when they were opened.
    """
    try:
        yield
    except RuntimeError as err:
        if "[read]" not in str(err):
            raise
        raise StoreInvalid(f"{folder}: its weights changed or cannot be read ({err}); download it again") from err
