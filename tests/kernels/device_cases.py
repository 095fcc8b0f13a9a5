"""Kernels to try and calls of them, on the emulator and on devices.

Legend: T tokens, K experts per token, R = T * K, S slots, N rows and C columns of a projection,
D model and F expert width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from experts import (
    CLIPPED,
    SWIGLU,
    Bank,
    activated,
    bank,
    draw_slots,
    experts,
    linear,
    normal,
    projection,
    wide,
)

from streaming_core.kernels.build import Dialect
from streaming_core.kernels.formats import Activation, ExpertFormat, ProjectionFormat
from streaming_core.kernels.indexed import IndexedLinear, Layout, check_parts

CASES = 25  # per template
BLOCK_OF_TWO = Layout(block=64)  # SIMD groups


@dataclass(frozen=True)
class Template:
    """Everything that a kernel is compiled for."""

    formats: dict[str, ProjectionFormat]
    share: int = 1
    activation: Activation | None = None
    layout: Layout = BLOCK_OF_TWO

    def linear(self, dialect: Dialect) -> IndexedLinear:
        return IndexedLinear(dialect, self.formats, share=self.share, activation=self.activation, layout=self.layout)


def one(
    rows: int, columns: int, packing: str, dtype: str = "float32", bias: bool = False
) -> dict[str, ProjectionFormat]:
    return {"down_proj": projection(rows, columns, packing, dtype, bias)}


def pair(
    rows: int, columns: int, packings: str, dtype: str = "float32", bias: bool = False
) -> dict[str, ProjectionFormat]:
    gate, up = packings.split()
    return {
        "gate_proj": projection(rows, columns, gate, dtype, bias),
        "up_proj": projection(rows, columns, up, dtype, bias),
    }


# Odd on purpose: rows no multiple of the tile, columns no multiple of a round of the lanes, several chunks of x,
# pairs of unequal packings.
TEMPLATES = {
    "2-bits": Template(one(5, 64, "2/64")),
    "3-bits": Template(one(7, 96, "3/32", "bfloat16"), share=2, layout=Layout(block=96, tile=4)),
    "4-bits": Template(one(17, 320, "4/64", "bfloat16"), share=3),
    "4-bits-long": Template(one(3, 2624, "4/32", bias=True), layout=Layout(block=64, tile=2, lanes=8)),
    "5-bits": Template(one(9, 384, "5/128"), layout=Layout(block=64, tile=1, lanes=8)),
    "6-bits": Template(one(6, 160, "6/32", "float16"), layout=Layout(block=64, tile=8, lanes=16)),
    "8-bits": Template(one(11, 576, "8/64"), layout=Layout(block=64, tile=2, lanes=16)),
    "8-bits-brain": Template(one(33, 128, "8/128", "bfloat16", bias=True), share=4, layout=Layout(block=32, tile=2)),
    "mxfp4": Template(one(13, 608, "mxfp4", "bfloat16", bias=True), share=2),
    "mxfp8": Template(one(10, 96, "mxfp8", "float16")),
    "nvfp4": Template(one(8, 48, "nvfp4"), layout=Layout(block=64, tile=4)),
    "nvfp4-even": Template(one(5, 64, "nvfp4", "bfloat16"), share=2),
    "plain": Template(one(6, 40, "float32", bias=True)),
    "plain-brain": Template(one(19, 72, "bfloat16", "bfloat16"), layout=Layout(block=128, tile=2)),
    "plain-half": Template(one(4, 64, "float16", "float16"), share=2),
    "few-rows": Template(one(3, 256, "4/64"), layout=Layout(block=64, tile=8)),
    "gate-up": Template(pair(10, 192, "4/64 4/64", "bfloat16"), share=4, layout=Layout(block=96, tile=2)),
    "gate-up-mixed": Template(pair(7, 128, "4/64 8/32"), share=2),
    "gate-up-swiglu": Template(pair(6, 96, "3/32 6/32"), share=2, activation=SWIGLU),
    "gate-up-clipped": Template(pair(9, 64, "mxfp4 mxfp4", "bfloat16", bias=True), share=3, activation=CLIPPED),
}
EXPERTS = {
    "4-bits": (experts(64, 192, "4/64", dtype="bfloat16"), 4, Layout(block=64)),
    "4-bits-exact": (experts(72, 64, "4/32 4/32 float32"), 2, Layout(block=64, lanes=8)),
    "2-bits": (experts(64, 96, "2/32"), 3, Layout(block=64, tile=1)),
    "3-bits": (experts(96, 32, "3/32", dtype="float16"), 2, Layout(block=64, tile=4)),
    "5-bits": (experts(128, 128, "5/64"), 1, Layout(block=128, tile=8, lanes=16)),
    "6-bits": (experts(32, 128, "6/32", dtype="bfloat16"), 2, Layout(block=32)),
    "8-bits": (experts(64, 192, "8/64", bias=True), 5, Layout(block=64)),
    "unequal": (experts(64, 128, "4/64 5/32 8/64", dtype="bfloat16"), 2, Layout(block=64)),
    "mxfp4-clipped": (experts(96, 160, "mxfp4", CLIPPED, dtype="bfloat16", bias=True), 4, Layout(block=64)),
    "mxfp4-exact": (experts(32, 96, "mxfp4", CLIPPED, bias=True), 2, Layout(block=64, tile=4)),
    "mxfp8": (experts(64, 32, "mxfp8"), 2, Layout(block=96)),
    "nvfp4": (experts(48, 64, "nvfp4", dtype="float16"), 3, Layout(block=64)),
    "plain": (experts(24, 40, "float32", CLIPPED), 2, Layout(block=64)),
    "plain-brain": (experts(40, 56, "bfloat16", dtype="bfloat16"), 2, Layout(block=64)),
}


@dataclass(frozen=True)
class Case:
    """One call, and what is right for it."""

    x: mx.array  # [T, C]
    slots: mx.array  # [R]
    parts: dict[str, mx.array]
    right: np.ndarray


def case_of(template: Template, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    slots = int(rng.choice([1, 2, 3, 5]))
    tokens = int(rng.choice([1, 1, 2, 3]))
    banks = {name: bank(name, format, slots, rng) for name, format in template.formats.items()}
    format = next(iter(template.formats.values()))
    x = normal(rng, (tokens, format.columns), 1.0).astype(getattr(mx, format.dtype))
    chosen = draw_slots(rng, tokens, template.share, slots).reshape(-1)
    many = np.repeat(wide(x), template.share, axis=0)
    outs = [linear(each, many, chosen) for each in banks.values()]
    if template.activation is not None:
        right = activated(template.activation, *outs)
    else:
        right = outs[0] if len(outs) == 1 else np.stack(outs, axis=1)
    parts = {name: array for each in banks.values() for name, array in each.parts.items()}
    check_parts(template.formats, parts)
    return Case(x, mx.array(chosen), parts, right)


def banks_and_calls(
    format: ExpertFormat, top_k: int
) -> Iterator[tuple[dict[str, mx.array], list[tuple[mx.array, mx.array, np.ndarray]]]]:
    """Banks of several sizes, for each some calls: x [T, D], slots [R], what is right [R, D].  36 calls in all."""
    for slots in (1, 3, 4):
        rng = np.random.default_rng(slots)
        banks: dict[str, Bank] = {
            name: bank(f"{name}_proj", getattr(format, name), slots, rng) for name in ("gate", "up", "down")
        }
        calls = []
        for tokens in (1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 5):
            x = normal(rng, (tokens, format.gate.columns), 1.0).astype(getattr(mx, format.gate.dtype))
            chosen = draw_slots(rng, tokens, top_k, slots).reshape(-1)
            many = np.repeat(wide(x), top_k, axis=0)
            gate, up = (linear(banks[name], many, chosen) for name in ("gate", "up"))
            assert format.activation is not None
            right = linear(banks["down"], activated(format.activation, gate, up), chosen)
            calls.append((x, mx.array(chosen), right))
        yield {name: array for each in banks.values() for name, array in each.parts.items()}, calls
