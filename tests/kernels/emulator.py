"""Compiles a kernel's own text as C++ against `simt/` and runs it on the CPU."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import mlx.core as mx
import numpy as np

from streaming_core.kernels.build import Argument, Dialect, Kernel
from streaming_core.kernels.indexed import IndexedLinear

SIMT = Path(__file__).parent / "simt"
COMPILER = os.environ.get("CXX") or next((c for c in ("g++", "clang++", "c++") if shutil.which(c)), None)
_TYPES = {
    Dialect.METAL: {"bfloat16": "bfloat16_t", "float16": "half", "float32": "float"},
    Dialect.CUDA: {"bfloat16": "__nv_bfloat16", "float16": "__half", "float32": "float"},
}
_SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1")

Change = Callable[[str], str]


@dataclass(frozen=True)
class Launch:
    """One run of a kernel: inputs in the kernel's order."""

    linear: IndexedLinear
    inputs: list[mx.array]
    routed: int
    seed: int


class Emulated:
    """Programs that run kernels; what was compiled once is used again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._jobs = ThreadPoolExecutor(os.cpu_count() or 1)

    def close(self) -> None:
        self._jobs.shutdown()

    def compile(
        self, linears: Sequence[IndexedLinear], *, sanitize: bool = False, change: Change | None = None
    ) -> None:
        """Compiles those that are not there yet, several at a time."""
        list(self._jobs.map(lambda each: self._program(each, sanitize, change), linears))

    def run(
        self, launches: Sequence[Launch], *, sanitize: bool = False, change: Change | None = None
    ) -> list[np.ndarray]:
        """One output per launch, as float32.  All launches have the same kernel."""
        linear = launches[0].linear
        program = self._program(linear, sanitize, change)
        numbers = [len(launches)]
        content = [b""]
        for launch in launches:
            threads = linear.grid(launch.routed)
            block = dict(linear.kernel.template)["BLOCK"]
            nbytes = int(np.prod(linear.shape(launch.routed))) * getattr(mx, linear.types[1]).size
            numbers += [threads[0] // int(block), threads[1], int(block), launch.seed, nbytes, len(launch.inputs)]
            content[-1] += np.array(numbers, np.uint32).tobytes()
            for each in launch.inputs:
                raw = raw_bytes(each)
                content.append(np.array([len(raw)], np.uint32).tobytes() + raw)
            numbers = []
            content.append(b"")
        source, target = program.with_suffix(".in"), program.with_suffix(".out")
        source.write_bytes(b"".join(content))
        done = subprocess.run([program, source, target], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(f"{program.name}: exit {done.returncode}: {done.stderr[:4000]}")
        data, outputs, at = target.read_bytes(), [], 0
        for launch in launches:
            shape = linear.shape(launch.routed)
            nbytes = int(np.prod(shape)) * getattr(mx, linear.types[1]).size
            outputs.append(as_float32(data[at : at + nbytes], linear.types[1]).reshape(shape))
            at += nbytes
        return outputs

    def _program(self, linear: IndexedLinear, sanitize: bool, change: Change | None) -> Path:
        kernel = linear.kernel
        text = program_text(linear) if change is None else change(program_text(linear))
        name = f"{kernel.dialect.value}-{kernel.name}{'-sane' if sanitize else ''}"
        if change is not None:
            assert text != program_text(linear), "the change changes nothing"
            name += f"-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        program = self._folder / name
        if not program.exists():
            source = program.with_suffix(".cpp")
            source.write_text(text)
            _compile([str(source), str(self._core(sanitize)), "-o", str(program)], sanitize)
        return program

    def _core(self, sanitize: bool) -> Path:
        """The emulator itself, compiled once."""
        core = self._folder / f"simt{'-sane' if sanitize else ''}.o"
        with self._lock:
            if not core.exists():
                _compile(["-c", str(SIMT / "simt.cpp"), "-o", str(core)], sanitize)
        return core


def _compile(arguments: Sequence[str], sanitize: bool) -> None:
    flags = ["-std=c++17", "-O1", "-w", "-U_FORTIFY_SOURCE", f"-I{SIMT}", *(_SANITIZE if sanitize else ())]
    done = subprocess.run([str(COMPILER), *flags, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}:\n{done.stderr[:4000]}"


def program_text(linear: IndexedLinear) -> str:
    """A program that contains one kernel: the text that MLX would compile, its template parameters given as names.

    g++ keeps shared memory where the emulator can find it only in functions that are no templates.
    """
    kernel = linear.kernel
    x_type, y_type = linear.types
    kinds = [x_type, "uint32"]
    for format in (list(linear.projections.values()) * 2)[:2]:
        weight = format.scale_dtype if format.mode == "none" else "uint32"
        kinds += [weight, format.scale_dtype, format.scale_dtype, format.dtype if format.bias else "uint32"]
    inputs = [Argument(name, kind, 1 << 10) for name, kind in zip(kernel.inputs, kinds, strict=True)]
    types = _TYPES[kernel.dialect]
    arguments = [f"(const {types.get(k, f'{k}_t')}*)a[{i}]" for i, k in enumerate(kinds)]
    arguments.append(f"({types[y_type]}*)a[{len(kinds)}]")
    if kernel.dialect is Dialect.METAL:
        arguments += ["simt::thread_index()", "simt::block_index()"]
    whole = kernel.text(inputs, Argument("y", y_type, 1 << 10))
    header, template, rest = whole.partition("template <typename XT")
    assert template and header == f"{kernel.header}\n"
    text = header + _as_names(kernel, types) + rest.partition("\n")[2]
    return (
        f'#include "{kernel.dialect.value}_simt.h"\n{text}\n'
        f"}}  // namespace\nvoid simt_kernel(void** a) {{\n{kernel.name}({', '.join(arguments)});\n}}\n"
    )


def _as_names(kernel: Kernel, types: dict[str, str]) -> str:
    lines = []
    for name, value in kernel.template:
        if isinstance(value, str):
            lines.append(f"typedef {types.get(value, f'{value}_t')} {name};")
        else:
            lines.append(f"constexpr {type(value).__name__} {name} = {int(value)};")
    return "\n".join(lines) + "\n"


def raw_bytes(array: mx.array) -> bytes:
    if array.dtype == mx.bfloat16:
        array = array.view(mx.uint16)
    return np.array(array).tobytes()


def as_float32(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype).astype(np.float32)
