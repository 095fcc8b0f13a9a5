"""The kernels on the device itself, against float64; see `device_cases`."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from device_cases import CASES, EXPERTS, TEMPLATES, banks_and_calls, case_of
from experts import ALLOWED, wide, worst

from streaming_core.kernels.build import dialect_here
from streaming_core.kernels.fused import FusedExperts
from streaming_core.kernels.indexed import check_parts

DIALECT = dialect_here()
pytestmark = pytest.mark.skipif(DIALECT is None, reason="needs Metal or CUDA")


@pytest.mark.parametrize("name", TEMPLATES)
def test_indexed_kernels_agree_with_float64(name: str) -> None:
    assert DIALECT is not None
    template = TEMPLATES[name]
    kernel = template.linear(DIALECT)
    for seed in range(CASES):
        case = case_of(template, seed)
        found = wide(kernel.launch(case.x, case.slots, case.parts))
        assert worst(found, case.right) <= ALLOWED[kernel.types[1]], seed


@pytest.mark.parametrize("name", EXPERTS)
def test_fused_experts_agree_with_float64(name: str) -> None:
    assert DIALECT is not None
    format, top_k, layout = EXPERTS[name]
    fused = FusedExperts(DIALECT, format, layout)
    for parts, calls in banks_and_calls(format, top_k):
        check_parts({**fused.gate_up(top_k).projections, **fused.down.projections}, parts)
        for x, slots, right in calls:
            found = fused.launch(x, slots.reshape(-1, top_k), parts)
            assert worst(wide(found).reshape(np.shape(right)), right) <= ALLOWED[format.down.dtype]
            assert found.dtype == getattr(mx, format.down.dtype)
