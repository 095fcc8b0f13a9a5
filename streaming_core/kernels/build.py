"""Kernels from source text: what MLX compiles, and the same text whole, for a compiler that is not MLX's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

import mlx.core as mx

__all__ = ["Argument", "Dialect", "Kernel", "dialect_here"]


class Dialect(Enum):
    METAL = "metal"
    CUDA = "cuda"


def dialect_here() -> Dialect | None:
    """The dialect that MLX can compile on this machine; None without a GPU backend."""
    if mx.metal.is_available():
        return Dialect.METAL
    return Dialect.CUDA if mx.cuda.is_available() else None


# MLX declares a Metal attribute only where its name stands in the body, so these lines belong to the body.
_PLACES = {
    Dialect.METAL: """
const uint thread_index = thread_position_in_threadgroup.x;
const uint block_x = threadgroup_position_in_grid.x;
const uint block_y = threadgroup_position_in_grid.y;
""",
    Dialect.CUDA: """
const uint thread_index = threadIdx.x;
const uint block_x = blockIdx.x;
const uint block_y = blockIdx.y;
""",
}
_METAL_ATTRIBUTES = ("thread_position_in_threadgroup", "threadgroup_position_in_grid")
_TYPES = {
    Dialect.METAL: {"bfloat16": "bfloat16_t", "float16": "float16_t", "float32": "float"},
    Dialect.CUDA: {"bfloat16": "__nv_bfloat16", "float16": "__half", "float32": "float"},
}
# MLX passes smaller inputs to Metal in the constant address space.
_CONSTANT_BELOW = 8

TemplateValue = str | int | bool  # a str is MLX's name of a dtype


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of a kernel: MLX's name of its dtype, and how many elements it has."""

    name: str
    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel with all its template values; `float_macros` are the constants that a template cannot carry."""

    dialect: Dialect
    body: str  # a file of source/, without its ending
    inputs: tuple[str, ...]
    output: str
    template: tuple[tuple[str, TemplateValue], ...]
    float_macros: tuple[tuple[str, float], ...] = ()

    @property
    def header(self) -> str:
        """What stands before the kernel."""
        macros = "".join(f"#define {name} {value!r}f\n" for name, value in self.float_macros)
        return macros + _read(f"{self.dialect.value}.h") + _read("quantized.h")

    @property
    def source(self) -> str:
        """What stands between the kernel's braces."""
        return _PLACES[self.dialect] + _read(f"{self.body}.inc")

    @property
    def name(self) -> str:
        """Different for every text and every template: MLX keeps compiled kernels by name."""
        known = repr((self.header, self.source, self.inputs, self.output, self.template))
        return f"{self.body}_{hashlib.sha256(known.encode()).hexdigest()[:16]}"

    def make(self) -> Callable[..., list[mx.array]]:
        """MLX's kernel; compiled at its first call.  Raises RuntimeError where MLX has no such backend."""
        make: Any = mx.fast.metal_kernel if self.dialect is Dialect.METAL else mx.fast.cuda_kernel
        kernel: Callable[..., list[mx.array]] = make(
            name=self.name,
            input_names=list(self.inputs),
            output_names=[self.output],
            source=self.source,
            header=self.header,
        )
        return kernel

    def template_values(self) -> list[tuple[str, Any]]:
        """As MLX wants them."""
        return [(name, getattr(mx, v) if isinstance(v, str) else v) for name, v in self.template]

    def text(self, inputs: Sequence[Argument], output: Argument) -> str:
        """Header, signature as MLX generates it for these arguments, and body, as one C++ text."""
        types = _TYPES[self.dialect]
        kinds = {str: "typename", int: "int", bool: "bool"}
        parameters = ", ".join(f"{kinds[type(value)]} {name}" for name, value in self.template)
        metal = self.dialect is Dialect.METAL
        lines = []
        for at, argument in enumerate(inputs):
            space = ("constant " if argument.size < _CONSTANT_BELOW else "device ") if metal else ""
            where = f" [[buffer({at})]]" if metal else ""
            lines.append(f"  const {space}{_c_type(types, argument.dtype)}* {argument.name}{where}")
        space, where = ("device ", f" [[buffer({len(inputs)})]]") if metal else ("", "")
        lines.append(f"  {space}{_c_type(types, output.dtype)}* {output.name}{where}")
        if metal:
            lines += [f"  uint3 {name} [[{name}]]" for name in _METAL_ATTRIBUTES]
        start = "[[kernel]] void" if metal else "__global__ void"
        signature = f"template <{parameters}>\n{start} {self.name}(\n" + ",\n".join(lines) + ")"
        return f"{self.header}\n{signature} {{\n{self.source}\n}}\n"

    def instance(self) -> str:
        """The kernel's name with its template values, as C++ writes it."""
        types = _TYPES[self.dialect]
        values = (_c_type(types, v) if isinstance(v, str) else str(int(v)) for _, v in self.template)
        return f"{self.name}<{', '.join(values)}>"


def _c_type(types: dict[str, str], dtype: str) -> str:
    return types.get(dtype, f"{dtype}_t")


@cache
def _read(name: str) -> str:
    return (resources.files(__package__) / "source" / name).read_text(encoding="utf-8")
