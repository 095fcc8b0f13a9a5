"""Finds mlx-lm's model files with experts, and writes tiny random checkpoints of them."""

from __future__ import annotations

import importlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
from family_configs import VOCABULARY
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache

from streaming_core.testing.tokenizer import build_vocabulary, tokenizer_files

_SWITCH = re.compile(r"\bSwitch(GLU|MLP)\b")
_IMPORT = re.compile(r"^from \.(\w+) import|^from \. import (.+)$", re.MULTILINE)


MODEL_FILES = Path(mlx_lm.models.__path__[0])


def model_files_with_experts(folder: Path = MODEL_FILES) -> set[str]:
    """Names of the model files that call a switch, or that build on one that does."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    models = {name: text for name, text in sources.items() if re.search(r"^class Model\b", text, re.MULTILINE)}
    found = {name for name, text in models.items() if _SWITCH.search(text)}
    while more := {name for name, text in models.items() if name not in found and _imports(text) & found}:
        found |= more
    return found


def _imports(text: str) -> set[str]:
    return {word for one, several in _IMPORT.findall(text) for word in re.findall(r"\w+", one or several)}


def bare_model(config: dict[str, Any]) -> nn.Module:
    """mlx-lm's model as it begins; nothing is computed."""
    file = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    return file.Model(file.ModelArgs.from_dict(json.loads(json.dumps(config))))


def make_model(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """mlx-lm's model with random weights; what it begins with as zeros (routers, biases) is random too."""
    mx.random.seed(seed)
    model = bare_model(config)
    changed = []
    for name, value in tree_flatten(model.parameters()):
        if not mx.any(value).item():
            changed.append((name, _random_like(value)))
    model.update(tree_unflatten(changed))
    mx.eval(model.parameters())
    return model


def _random_like(value: mx.array) -> mx.array:
    if not mx.issubdtype(value.dtype, mx.floating):
        return mx.random.randint(0, 1 << 30, value.shape, value.dtype)
    spread = value.shape[-1] ** -0.5 if value.ndim > 1 else 0.1
    return (mx.random.normal(value.shape) * spread).astype(value.dtype)


def write_checkpoint(folder: Path, model: nn.Module, config: dict[str, Any], *, quantized: bool = False) -> Path:
    """The folder that mlx-lm would load."""
    folder.mkdir(parents=True, exist_ok=True)
    if quantized:
        config = {"quantization": {"group_size": 32, "bits": 4}, **config}
        group = config["quantization"]["group_size"]
        nn.quantize(model, **config["quantization"], class_predicate=lambda _, module: _can_quantize(module, group))
    for name, text in _tokenizer().items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"})
    return folder


@cache
def _tokenizer() -> dict[str, str]:
    return tokenizer_files(build_vocabulary(VOCABULARY))


def _can_quantize(module: nn.Module, group: int) -> bool:
    return hasattr(module, "to_quantized") and module["weight"].shape[-1] % group == 0


def text(length: int) -> list[int]:
    return [(7 * n * n + 3 * n) % 251 + 3 for n in range(length)]


def logits(model: nn.Module, length: int, decoded: int) -> mx.array:
    """Of a prompt in one pass and of more tokens one by one.  [length + decoded, V]"""
    tokens = text(length + decoded)
    cache = make_prompt_cache(model)
    out = [model(mx.array([tokens[:length]]), cache=cache)[0]]
    mx.eval(out)
    for token in tokens[length:]:
        out.append(model(mx.array([[token]]), cache=cache)[0])
        mx.eval(out[-1])
    return mx.concatenate(out)
