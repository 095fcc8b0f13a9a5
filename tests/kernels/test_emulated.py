"""The kernels' own text, Metal and CUDA, run on the CPU and compared with float64.

What this proves: which bytes are read, how they are unpacked, who adds up what, that every barrier is there.  What it
does not: speed, and what a real compiler or device refuses (registers, shared memory, address spaces).

Legend: T tokens, K experts per token, R = T * K, S slots, N rows and C columns of a projection,
D model and F expert width.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from emulator import COMPILER, Change, Emulated, Launch
from experts import (
    ALLOWED,
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
    worst,
)

from streaming_core.kernels.build import Dialect
from streaming_core.kernels.formats import Activation, ExpertFormat, ProjectionFormat
from streaming_core.kernels.fused import FusedExperts
from streaming_core.kernels.indexed import IndexedLinear, Layout, check_parts

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler: g++, clang++ or c++ on the PATH"),
    pytest.mark.skipif(sys.platform != "linux", reason="the emulator finds shared memory through an ELF section"),
]

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
SANITIZED = ("3-bits", "4-bits-long", "6-bits", "mxfp4", "nvfp4", "plain", "few-rows", "gate-up-clipped")

dialects = pytest.mark.parametrize("dialect", list(Dialect), ids=lambda d: d.value)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    emulated = Emulated(tmp_path_factory.mktemp("simt"))
    wanted = [template.linear(dialect) for template in TEMPLATES.values() for dialect in Dialect]
    for format, top_k, layout in EXPERTS.values():
        for dialect in Dialect:
            fused = FusedExperts(dialect, format, layout)
            wanted += [fused.gate_up(top_k), fused.down]
    emulated.compile(wanted)
    yield emulated
    emulated.close()


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


def errors(emulated: Emulated, template: Template, dialect: Dialect, cases: int, **options: object) -> list[float]:
    """The worst error of each case, as a share of what is allowed."""
    made = [case_of(template, seed) for seed in range(cases)]
    kernel = template.linear(dialect)
    launches = [
        Launch(kernel, kernel.inputs(case.x, case.slots, case.parts), case.slots.size, seed)
        for seed, case in enumerate(made)
    ]
    found = emulated.run(launches, **options)  # type: ignore[arg-type]
    allowed = ALLOWED[kernel.types[1]]
    return [worst(each, case.right) / allowed for each, case in zip(found, made, strict=True)]


@dialects
@pytest.mark.parametrize("name", TEMPLATES)
def test_indexed_kernels_agree_with_float64(emulated: Emulated, name: str, dialect: Dialect) -> None:
    assert max(errors(emulated, TEMPLATES[name], dialect, CASES)) <= 1.0


@dialects
@pytest.mark.parametrize("name", EXPERTS)
def test_fused_experts_agree_with_float64(emulated: Emulated, name: str, dialect: Dialect) -> None:
    format, top_k, layout = EXPERTS[name]
    fused = FusedExperts(dialect, format, layout)
    gate_up, down = fused.gate_up(top_k), fused.down
    for parts, calls in banks_and_calls(format, top_k):
        check_parts({**gate_up.projections, **down.projections}, parts)
        hidden = emulated.run(
            [Launch(gate_up, gate_up.inputs(x, s, parts), s.size, n) for n, (x, s, _) in enumerate(calls)]
        )
        found = emulated.run(
            [
                Launch(down, down.inputs(mx.array(h), s, parts), s.size, n)
                for n, (h, (_, s, _)) in enumerate(zip(hidden, calls, strict=True))
            ]
        )
        for y, (_, _, right) in zip(found, calls, strict=True):
            assert worst(y, right) <= ALLOWED[format.down.dtype]


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


@dialects
def test_no_kernel_reads_past_its_arrays_or_does_undefined_arithmetic(emulated: Emulated, dialect: Dialect) -> None:
    emulated.compile([TEMPLATES[name].linear(dialect) for name in SANITIZED], sanitize=True)
    for name in SANITIZED:
        assert max(errors(emulated, TEMPLATES[name], dialect, 4, sanitize=True)) <= 1.0, name


# ---- planted faults -----------------------------------------------------------------------------------------------


def replaced(old: str, new: str, count: int = 1) -> Change:
    """`old` is a regular expression that occurs `count` times."""

    def change(text: str) -> str:
        changed, found = re.subn(old, new, text)
        assert found == count, f"{old!r} occurs {found} times"
        return changed

    return change


# What is changed, and the template that must show it.
FAULTS = {
    "last unit left out": (
        "4-bits",
        replaced(r"begin \+ at < UNITS\)", "begin + at < UNITS - 1)"),
    ),
    "last row left out": ("4-bits", replaced(r"n < N\)", "n < N - 1)")),
    "next slot": ("4-bits", replaced(r"LOAD\(slots \+ routed\)\) \* N", "LOAD(slots + routed)) * N + 1")),
    "next row of x": ("4-bits", replaced(r"routed / SHARE\)", "(routed + 1) / SHARE)")),
    "barrier before the next chunk": ("4-bits-long", replaced(r"BARRIER\(\);  // others", "// others")),
    "barrier after staging": ("4-bits", replaced(r"BARRIER\(\);  // the chunk", "// the chunk")),
    "shift of a value": ("4-bits", replaced(r"const int to = 23 - BITS;", "const int to = 22 - BITS;")),
    "shift of what straddles words": ("3-bits", replaced(r"<< \(32 - from\)", "<< (31 - from)")),
    "shift of mxfp4": ("mxfp4", replaced(r"0x00070007u\) << 9", "0x00070007u) << 8")),
    "shift of mxfp8": ("mxfp8", replaced(r"0x00800080u\) << 8", "0x00800080u) << 7")),
    "shift of an e8m0 scale": ("mxfp4", replaced(r"byte << 23\) \* 16384", "byte << 22) * 16384")),
    "step of the sum over lanes": (
        "4-bits",
        replaced(r"distance = LANES / 2; distance > 0", "distance = LANES / 2; distance > 1"),
    ),
    "group of a scale": ("4-bits", replaced(r"unit \* UNIT / GROUP;", "(unit * UNIT + 32) / GROUP;")),
}


@dialects
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(emulated: Emulated, fault: str, dialect: Dialect) -> None:
    name, change = FAULTS[fault]
    assert max(errors(emulated, TEMPLATES[name], dialect, CASES, change=change)) > 1.0


def test_a_read_past_the_weights_is_caught(emulated: Emulated) -> None:
    past = replaced(r"WHOLE \|\| unit < UNITS\)", "true)")
    with pytest.raises(RuntimeError, match="heap-buffer-overflow"):
        errors(emulated, TEMPLATES["2-bits"], Dialect.METAL, 2, sanitize=True, change=past)


def test_lanes_that_miss_a_shuffle_are_caught(emulated: Emulated) -> None:
    alone = replaced(r"total \+= SHUFFLE_XOR", "if (thread_index != 3) total += SHUFFLE_XOR")
    with pytest.raises(RuntimeError, match="wait for each other"):
        errors(emulated, TEMPLATES["4-bits"], Dialect.CUDA, 1, change=alone)
