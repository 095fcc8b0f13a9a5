"""What a forced evaluation and a layer's computation cost: `python -m autotune.device`, a process of its own.

One JSON request on standard input, one JSON line on standard output.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import WorkerFailed
from autotune.runner import process_environment
from streaming_core.settings import Settings

if TYPE_CHECKING:
    from streaming_core.runtime import StreamedModel

__all__ = ["DeviceCosts", "DeviceRequest", "LayerCompute", "layer_compute", "measure_device", "sync_cost"]

_SYNCS = 200
_PASSES = 3
_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCompute:
    """One decoder layer's share of a forward pass, waits for reads left out."""

    tokens: int  # of the call
    layer_s: float
    misses: int  # of the pass: experts that did not stay from the pass before, which was the same


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCosts:
    sync_s: float  # to evaluate one small operation and wait for it
    layers: tuple[LayerCompute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """`model` None: only the sync."""

    model: str | None
    cache_dir: Path
    settings: Settings = field(default_factory=Settings)
    tokens: tuple[int, ...] = (1, 4, 16, 64)


def measure_device(
    request: DeviceRequest,
    environment: Mapping[str, str],
    *,
    command: Sequence[str] = (sys.executable, "-m", "autotune.device"),
) -> DeviceCosts:
    """Raises WorkerFailed with the last words of a process that did not answer."""
    text = json.dumps(
        {
            "model": request.model,
            "cache_dir": str(request.cache_dir),
            "settings": request.settings.to_mapping(),
            "tokens": request.tokens,
        }
    )
    env = process_environment(environment, request.settings.to_mapping()["process"])
    try:
        done = subprocess.run(
            list(command), input=text, capture_output=True, text=True, timeout=_LIMIT_S, env=env, check=False
        )
    except subprocess.TimeoutExpired as err:
        raise WorkerFailed(f"measuring the device took longer than {_LIMIT_S:.0f} s") from err
    except OSError as err:
        raise WorkerFailed(f"cannot start {command[0]}: {err.strerror}") from err
    if done.returncode:
        words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise WorkerFailed(f"measuring the device failed: {words}")
    found = json.loads(done.stdout)
    return DeviceCosts(sync_s=found["sync_s"], layers=tuple(LayerCompute(**each) for each in found["layers"]))


def sync_cost(repeats: int = _SYNCS) -> float:
    """The median: the first few also start the device."""
    import mlx.core as mx

    number = mx.array(1.0)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        mx.eval(number + 1.0)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def layer_compute(model: StreamedModel, counts: Sequence[int]) -> list[LayerCompute]:
    """Every pass runs twice and more on the same tokens, so that its experts are there where the slots suffice."""
    import mlx.core as mx

    from streaming_core.testing import prompts

    ids = model.tokenizer.encode(prompts(1, 2 * max(counts), seed=0)[0])
    found = []
    for count in counts:
        times, misses = [], 0
        for _ in range(1 + _PASSES):
            cache = model.make_cache()
            model.reset_stats()
            start = time.perf_counter()
            mx.eval(model.model(mx.array([ids[:count]]), cache=cache))
            stats = model.stats()
            times.append(time.perf_counter() - start - stats.wait_s)
            misses = stats.misses
        pass_s = statistics.median(times[1:])
        found.append(LayerCompute(tokens=count, layer_s=pass_s / model.outline.decoder_layers, misses=misses))
    return found


def _answer(raw: Mapping[str, Any]) -> DeviceCosts:
    sync_s = sync_cost()
    if raw["model"] is None:
        return DeviceCosts(sync_s=sync_s)
    from streaming_core.runtime import load

    settings = Settings.from_mapping(raw["settings"])
    with load(raw["model"], settings, cache_dir=Path(raw["cache_dir"])) as model:
        return DeviceCosts(sync_s=sync_s, layers=tuple(layer_compute(model, raw["tokens"])))


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # MLX, tokenizers and friends print; the answer stays clean
    from streaming_core.errors import AutotuneError

    try:
        found = _answer(json.loads(sys.stdin.read()))
    except AutotuneError as err:
        sys.exit(" ".join(str(err).split()))
    replies.write(json.dumps(asdict(found)) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
