"""Short, safe names of chips, GPUs and memory sizes."""

from __future__ import annotations

import re

from streaming_core.units import GIB

__all__ = ["chip_slug", "gpu_slug", "marketing_gib"]

_APPLE = re.compile(r"Apple ([A-Z]\d+)(?: (Pro|Max|Ultra))?")
# One word is enough for these: the model number is missing in most virtual machines anyway.
_FAMILIES = ("epyc", "threadripper", "ryzen", "xeon", "graviton", "ampere", "neoverse")
_NOISE = re.compile(r"\(r\)|\(tm\)|\bcpu\b|\bprocessor\b|@.*$|\b\d+-core\b|\bwith\b.*$|\bapple\b|\bgeneration\b")
_GPU_NOISE = re.compile(r"\bnvidia\b|\bgeforce\b|\btesla\b|\bgraphics\b|\b(?:sxm\d?|pcie|nvl|hbm\w*)\b|\b\d+ ?gb\b")
_SOLD_GIB = (1, 2, 4, 6, 8, 12, 16, 18, 24, 32, 36, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
_KEPT_BACK = 0.08  # firmware and kernel keep up to this part of the installed memory


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def chip_slug(brand: str) -> str:
    """`Apple M3 Max -> m3max`, `AMD EPYC 7B13 64-Core Processor -> epyc`; an unknown chip keeps its own words."""
    if match := _APPLE.fullmatch(brand.strip()):
        return "".join(part.lower() for part in match.groups() if part)
    words = _slug(brand).split("-")
    for family in _FAMILIES:
        if family in words:
            return family
    return _slug(_NOISE.sub(" ", brand.lower()))[:40].strip("-") or _slug(brand)[:40].strip("-") or "unknown"


def gpu_slug(name: str) -> str:
    """`NVIDIA H200 -> h200`, `NVIDIA GeForce RTX 4090 -> rtx-4090`."""
    return _slug(_GPU_NOISE.sub(" ", name.lower()))[:40].strip("-") or "gpu"


def marketing_gib(memory_bytes: int) -> int:
    """The size on the box: 23.5 GiB of usable memory is a 24 GiB machine, a container's 10 GiB stay 10."""
    exact = memory_bytes / GIB
    near = [size for size in _SOLD_GIB if exact <= size * 1.001 and exact >= size * (1 - _KEPT_BACK)]
    return near[0] if near else max(1, round(exact))
