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

import mlx.core as mx
import pytest
from device_cases import CASES, EXPERTS, TEMPLATES, Template, banks_and_calls, case_of
from emulator import COMPILER, Change, Emulated, Launch
from experts import (
    ALLOWED,
    worst,
)

from streaming_core.kernels.build import Dialect
from streaming_core.kernels.fused import FusedExperts
from streaming_core.kernels.indexed import check_parts

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler: g++, clang++ or c++ on the PATH"),
    pytest.mark.skipif(sys.platform != "linux", reason="the emulator finds shared memory through an ELF section"),
]

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
