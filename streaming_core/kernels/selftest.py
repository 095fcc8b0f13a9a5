"""Whether a kernel computes what the reference does, on this device.

Legend: T tokens, K experts per token, S slots, D model width.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from streaming_core.hardware import is_out_of_memory
from streaming_core.kernels.formats import ExpertFormat
from streaming_core.kernels.kernel import ExpertKernel
from streaming_core.kernels.reference import ActivationOf, expert_mlp
from streaming_core.kernels.sample import random_parts, random_rows, random_slots

__all__ = ["ALLOWED", "fault_of", "worst_error"]

_SLOTS = 3
# Of a row's largest value.  CUDA's own gather_qmm rounds float32 to fewer bits; with 16 bits both sides round their
# hidden values, and their results.
ALLOWED = {"float32": 5e-3, "float16": 1e-2, "bfloat16": 2e-2}


def fault_of(kernel: ExpertKernel, experts: ExpertFormat, activation: ActivationOf, top_k: int) -> str | None:
    """What is wrong with the kernel, in a few words; None if it agrees with the reference on random experts."""
    parts = random_parts(experts, _SLOTS, seed=0)
    allowed = ALLOWED[experts.gate.dtype]
    for tokens, chosen in ((1, top_k), (3, top_k), (5, 1)):
        x, slots = random_rows(experts, tokens, seed=tokens), random_slots(tokens, chosen, _SLOTS, seed=tokens)
        wanted = expert_mlp(x, slots, parts, experts, activation)
        mx.eval(wanted)
        try:
            kernel.check(parts)
            found = kernel(x, slots, parts)
            mx.eval(found)
        except (RuntimeError, ValueError) as err:  # what compilers, drivers and MLX raise
            if is_out_of_memory(err):
                raise
            return f"does not run: {' '.join(str(err).split())[:200]}"
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return f"gives {found.dtype} {found.shape} where {wanted.dtype} {wanted.shape} is right"
        error = worst_error(found, wanted)
        if not error <= allowed:  # also what is no number
            return f"is off by {error:.1e} of a row's largest value, {allowed:.0e} is allowed ({tokens} tokens)"
    return None


def worst_error(found: mx.array, wanted: mx.array) -> float:
    """The largest difference of a row, as a share of the row's largest value.  [..., D], [..., D]"""
    wide = np.array(wanted.astype(mx.float32))
    difference = np.abs(np.array(found.astype(mx.float32)) - wide).max(axis=-1)
    return float((difference / np.maximum(np.abs(wide).max(axis=-1), 1e-30)).max())  # NaN if there is one
