"""How fast the expert kernels are beside three gather_qmm and an activation, and beside the device's own copy.

`python benchmarks/kernels.py` needs Metal or CUDA.  Banks are random and of the models' true shapes; every call draws
other experts, so that caches hold none of them.  What is compared takes turns in shuffled order.  `waited` evaluates
each call by itself; `chained` evaluates many at once, each with the result of the one before as its input.  The share
is what the call must at least read (the weights of its distinct experts) over its chained time, of a copy's bandwidth.

Legend: T tokens, K experts per token, S slots, D model width, F expert width.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.activations import SwigluOAI
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwiGLU, SwitchGLU

from streaming_core.kernels.build import Dialect, dialect_here
from streaming_core.kernels.formats import Activation, ExpertFormat, ProjectionFormat
from streaming_core.kernels.fused import FusedExperts
from streaming_core.kernels.indexed import IndexedLinear, Layout, check_parts

TOKENS = (1, 2, 4, 8, 16, 32, 64)
SWIGLU = Activation("swiglu")
SETS = 64  # of slots, used in turn
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
Call = Callable[[mx.array, mx.array], mx.array]  # x [T, D], slots [T, K] -> [T, K, D]


@dataclass(frozen=True)
class Shape:
    """One layer's experts.  DeepSeek's 256 are cut to 32: a token reads as many, and a bank fits into most devices."""

    width: int
    hidden: int
    experts: int
    top_k: int
    packings: tuple[str, ...] = ("4", "8", "mxfp4")
    bias: bool = False
    activation: Activation = SWIGLU


SHAPES = {
    "qwen3-next": Shape(2048, 512, 512, 10),
    "qwen3-30b-a3b": Shape(2048, 768, 128, 8),
    "gpt-oss-20b": Shape(2880, 2880, 32, 4, ("mxfp4",), True, Activation("clipped_swiglu", 1.702, 7.0)),
    "deepseek-v3": Shape(7168, 2048, 32, 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--packings", nargs="+", choices=["4", "8", "mxfp4"], default=["4", "8", "mxfp4"])
    parser.add_argument("--tokens", nargs="+", type=int, default=list(TOKENS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=20, help="of each contestant in a round")
    parser.add_argument("--layouts", nargs="+", type=layout, default=[Layout()], metavar="TILE,LANES,BLOCK")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    dialect = dialect_here()
    if dialect is None:
        print("benchmarks/kernels.py: kernels need Metal or CUDA, and MLX here has neither", file=sys.stderr)
        sys.exit(2)
    copy = copy_bandwidth()
    if not args.json:
        print(f"{dialect.value}, mlx {mx.__version__}, device copy {copy / 1e9:.0f} GB/s (read and written)")
        columns = f"{'contestant':22} {'waited us':>16} {'chained us':>16}  ratio share  error"
        print(f"{'shape':14} {'packing':8} {'T':>3} {columns}")
    rows = []
    for name in args.shapes:
        for packing in [p for p in args.packings if p in SHAPES[name].packings]:
            bench = Bench(dialect, SHAPES[name], packing, args.layouts)
            for tokens in args.tokens:
                for row in bench.rows(tokens, args.rounds, args.calls, copy):
                    row = {"shape": name, "packing": packing, "tokens": tokens, **row}
                    rows.append(row)
                    if not args.json:
                        print(line(row), flush=True)
            del bench
            mx.clear_cache()
    if args.json:
        print(json.dumps({"mlx": mx.__version__, "backend": dialect.value, "copy_bytes_per_s": copy, "rows": rows}))


def layout(text: str) -> Layout:
    """Raises argparse.ArgumentTypeError."""
    try:
        tile, lanes, block = (int(n) for n in text.split(","))
        return Layout(tile=tile, lanes=lanes, block=block)
    except ValueError as err:
        raise argparse.ArgumentTypeError(f"expected TILE,LANES,BLOCK such as 2,32,128, got {text!r} ({err})") from err


def line(row: dict[str, Any]) -> str:
    waited, chained = (f"{row[k]['median']:8.1f} +- {row[k]['spread']:4.1f}" for k in ("waited_us", "chained_us"))
    return (
        f"{row['shape']:14} {row['packing']:8} {row['tokens']:3} {row['contestant']:22} {waited:>16} {chained:>16} "
        f"{row['ratio']:6.2f} {row['share']:5.0%} {row['error']:6.0e}"
    )


def copy_bandwidth() -> float:
    """Bytes per second, reads and writes together, of the best of ten copies of 1 GiB."""
    source = mx.zeros((1 << 28,), dtype=mx.float32)
    mx.eval(source)
    times = []
    for _ in range(12):
        started = time.perf_counter()
        mx.eval(source + 1.0)
        times.append(time.perf_counter() - started)
    return 2 * source.nbytes / min(times[2:])


class Bench:
    """One bank, and everybody who can compute over it."""

    def __init__(self, dialect: Dialect, shape: Shape, packing: str, layouts: Sequence[Layout]) -> None:
        self.shape = shape
        self.format = format_of(shape, packing)
        self.parts = random_bank(self.format, shape.experts)
        self.record_bytes = sum(part.nbytes for part in self.parts.values()) // shape.experts
        plain = plain_switch(self.format, self.parts)
        self.contestants: dict[str, Call] = {"gather_qmm": plain}
        for each in layouts:
            tag = f"{each.tile},{each.lanes},{each.block}"
            fused = FusedExperts(dialect, self.format, each)
            check_parts({**fused.gate_up(1).projections, **fused.down.projections}, self.parts)
            self.contestants[f"fused {tag}"] = lambda x, slots, f=fused: f.launch(x, slots, self.parts)
            self.contestants[f"indexed {tag}"] = self._indexed(dialect, each, plain)

    def _indexed(self, dialect: Dialect, each: Layout, plain: nn.Module) -> Call:
        """Gate and up in one launch, the rest as mlx-lm does it."""
        both = {"gate_proj": self.format.gate, "up_proj": self.format.up}
        gate_up = IndexedLinear(dialect, both, share=self.shape.top_k, layout=each)

        def call(x: mx.array, slots: mx.array) -> mx.array:
            y = gate_up.launch(x, slots.reshape(-1), self.parts).reshape(*slots.shape, 2, 1, -1)
            hidden = plain.activation(y[..., 1, :, :], y[..., 0, :, :])
            return plain.down_proj(hidden, slots).squeeze(-2)

        return call

    def rows(self, tokens: int, rounds: int, calls: int, copy: float) -> list[dict[str, Any]]:
        rng = np.random.default_rng(tokens)
        sets = [
            np.stack([rng.permutation(self.shape.experts)[: self.shape.top_k] for _ in range(tokens)])
            for _ in range(SETS)
        ]
        slots = [mx.array(each.astype(np.uint32)) for each in sets]
        x = mx.random.normal((tokens, self.shape.width)).astype(mx.bfloat16)
        mx.eval(x, slots)
        right = self.contestants["gather_qmm"](x, slots[0])
        errors = {name: worst(call(x, slots[0]), right) for name, call in self.contestants.items()}
        waited: dict[str, list[float]] = {name: [] for name in self.contestants}
        chained: dict[str, list[float]] = {name: [] for name in self.contestants}
        order = list(self.contestants)
        turn = 0
        for number in range(rounds + 2):  # two to warm up
            random.Random(number).shuffle(order)
            for name in order:
                chosen = [slots[(turn + i) % SETS] for i in range(calls)]
                turn += calls
                one, many = wait_each(self.contestants[name], x, chosen), chain(self.contestants[name], x, chosen)
                if number >= 2:
                    waited[name].append(one)
                    chained[name].append(many)
        needed = statistics.mean(len(np.unique(each)) for each in sets) * self.record_bytes
        base = statistics.median(chained["gather_qmm"])
        return [
            {
                "contestant": name,
                "waited_us": summary(waited[name]),
                "chained_us": summary(chained[name]),
                "ratio": base / statistics.median(chained[name]),
                "waited_ratio": statistics.median(waited["gather_qmm"]) / statistics.median(waited[name]),
                "share": needed / statistics.median(chained[name]) / copy,
                "error": errors[name],
            }
            for name in self.contestants
        ]


def wait_each(call: Call, x: mx.array, slots: Sequence[mx.array]) -> float:
    """Seconds per call."""
    started = time.perf_counter()
    for each in slots:
        mx.eval(call(x, each))
    return (time.perf_counter() - started) / len(slots)


def chain(call: Call, x: mx.array, slots: Sequence[mx.array]) -> float:
    """Seconds per call, without the time that Python takes to build the graph."""
    for each in slots:
        x = call(x, each)[:, 0]
    started = time.perf_counter()
    mx.eval(x)
    return (time.perf_counter() - started) / len(slots)


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """In microseconds; the spread is half of what lies between the quartiles."""
    us = [1e6 * s for s in seconds]
    low, _, high = statistics.quantiles(us, n=4) if len(us) > 1 else (us[0],) * 3
    return {"median": statistics.median(us), "spread": (high - low) / 2, "samples": us}


def worst(found: mx.array, right: mx.array) -> float:
    """The largest difference, as a share of the largest value of its row."""
    found, right = found.astype(mx.float32), right.astype(mx.float32)
    return float((mx.abs(found - right).max(axis=-1) / mx.abs(right).max(axis=-1)).max().item())


def format_of(shape: Shape, packing: str) -> ExpertFormat:
    def projection(rows: int, columns: int) -> ProjectionFormat:
        if packing == "mxfp4":
            return ProjectionFormat(rows, columns, 4, 32, "mxfp4", "bfloat16", "uint8", shape.bias)
        return ProjectionFormat(rows, columns, int(packing), 64, "affine", "bfloat16", "bfloat16", shape.bias)

    up, down = projection(shape.hidden, shape.width), projection(shape.width, shape.hidden)
    return ExpertFormat(up, up, down, shape.activation)


def random_bank(format: ExpertFormat, slots: int) -> dict[str, mx.array]:
    """Weights of about the size that keeps a vector's length."""
    parts = {}
    for name, each in zip(PROJECTIONS, (format.gate, format.up, format.down), strict=True):
        low, high = (mx.random.randint(0, 1 << 16, (slots, each.rows, each.words)).astype(mx.uint32) for _ in range(2))
        parts[f"{name}.weight"] = low | (high << 16)
        groups = (slots, each.rows, each.columns // each.group)
        if each.mode == "affine":
            top = (1 << each.bits) - 1
            scale = 3.5 / top / each.columns**0.5
            parts[f"{name}.scales"] = (mx.random.uniform(0.9, 1.1, groups) * scale).astype(mx.bfloat16)
            parts[f"{name}.biases"] = parts[f"{name}.scales"] * (-0.5 * top)
        else:
            parts[f"{name}.scales"] = mx.random.randint(120, 122, groups).astype(mx.uint8)
        if each.bias:
            parts[f"{name}.bias"] = mx.random.normal((slots, each.rows)).astype(mx.bfloat16) * 0.1
        mx.eval(parts)
    return parts


def plain_switch(format: ExpertFormat, parts: dict[str, mx.array]) -> nn.Module:
    """mlx-lm's own module over these arrays."""
    clipped = format.activation is not None and format.activation.kind == "clipped_swiglu"
    switch = SwitchGLU(64, 64, 1, activation=SwigluOAI() if clipped else SwiGLU())
    for name, each in zip(PROJECTIONS, (format.gate, format.up, format.down), strict=True):
        linear = QuantizedSwitchLinear(64, 64, 1, each.bias, each.group, each.bits, each.mode)
        for tensor in ("weight", "scales", "biases", "bias"):
            if f"{name}.{tensor}" in parts:
                linear[tensor] = parts[f"{name}.{tensor}"]
        switch[name] = linear
    return switch


if __name__ == "__main__":
    main()
