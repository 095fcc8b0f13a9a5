"""Matrix times vector with an expert per row: one projection, or gate and up in one launch.

Legend: T tokens, K experts per token, R = T * K routed rows, S slots of a bank, X rows of x, N rows and C columns of a
projection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from streaming_core.kernels.build import Dialect, Kernel, TemplateValue
from streaming_core.kernels.formats import Activation, ProjectionFormat
from streaming_core.kernels.strides import contiguous

__all__ = ["IndexedLinear", "Layout", "check_parts", "kernel_of", "refusal"]

_MODES = {"affine": 0, "mxfp4": 1, "mxfp8": 2, "nvfp4": 3}
_PLAIN_MODES = {"float32": 4, "bfloat16": 5, "float16": 6}
_GROUPS = {"affine": (32, 64, 128), "mxfp4": (32,), "mxfp8": (32,), "nvfp4": (16,)}
_BITS = {"affine": (2, 3, 4, 5, 6, 8), "mxfp4": (4,), "mxfp8": (8,), "nvfp4": (4,)}
_ACTIVATIONS = {"swiglu": 1, "clipped_swiglu": 2}
_WORDS_IN_FLIGHT = 32  # registers of a lane for weights on their way: 128 bytes, and still half of a core's lanes fit
_LARGEST_GRID_Y = 65535  # CUDA's limit
_SMALLEST_WEIGHT = 8  # elements; MLX passes smaller arrays to Metal in another address space
_PLACEHOLDER = "slots"  # stands for an array that a format lacks; the kernel does not read it


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the work is spread over threads."""

    tile: int = 2  # rows of a projection that the same lanes compute
    lanes: int = 32  # lanes that share a row; fewer are taken where a row is short
    block: int = 128  # threads of a block

    def __post_init__(self) -> None:
        if self.tile not in (1, 2, 4, 8):
            raise ValueError(f"kernels.tile must be 1, 2, 4 or 8, got {self.tile}")
        if self.lanes not in (8, 16, 32):
            raise ValueError(f"kernels.lanes must be 8, 16 or 32, got {self.lanes}")
        if self.block % 32 or not 32 <= self.block <= 1024:
            raise ValueError(f"kernels.block must be a multiple of 32 up to 1024, got {self.block}")


def refusal(format: ProjectionFormat) -> str | None:
    """Why no kernel can take this projection; None if one can."""
    if format.dtype not in _PLAIN_MODES:
        return f"activations of type {format.dtype}"
    if format.mode == "none":
        if format.scale_dtype not in _PLAIN_MODES:
            return f"weights of type {format.scale_dtype}"
        return None if format.columns % 8 == 0 else f"{format.columns} columns, not a multiple of 8"
    if format.mode not in _MODES:
        return f"quantization mode {format.mode}"
    if format.bits not in _BITS[format.mode] or format.group not in _GROUPS[format.mode]:
        return f"{format.mode} with {format.bits} bits in groups of {format.group}"
    if format.columns % format.group:
        return f"{format.columns} columns, not a multiple of the group of {format.group}"
    return None


def kernel_of(
    dialect: Dialect,
    formats: tuple[ProjectionFormat, ...],
    share: int,
    activation: Activation | None,
    types: tuple[str, str],
    layout: Layout,
) -> Kernel:
    """The kernel for one projection, or for gate and up; `share` routed rows have one row of x; `types` of x and y.

    Raises:
        ValueError: a format that no kernel takes, or a pair of different shapes.
    """
    first, last = formats[0], formats[-1]
    for format in formats:
        if (why := refusal(format)) is not None:
            raise ValueError(f"no kernel for {why}")
    if (first.rows, first.columns) != (last.rows, last.columns):
        raise ValueError(f"gate is {first.rows} x {first.columns}, up {last.rows} x {last.columns}: no kernel for both")
    unit, lanes, depth = _spread(formats, layout)
    template: list[tuple[str, TemplateValue]] = [
        ("XT", types[0]), ("YT", types[1]), ("N", first.rows), ("C", first.columns), ("UNIT", unit), ("DEPTH", depth),
        ("LANES", lanes), ("TILE", layout.tile), ("BLOCK", layout.block), ("SHARE", share),
        ("PAIR", len(formats) == 2), ("ACTIVATION", 0 if activation is None else _ACTIVATIONS[activation.kind]),
    ]  # fmt: skip
    inputs = ["x", "slots"]
    for at, format in enumerate((first, last)):
        plain = format.mode == "none"
        template += [
            (f"MODE{at}", _PLAIN_MODES[format.scale_dtype] if plain else _MODES[format.mode]),
            (f"BITS{at}", 8 * getattr(mx, format.scale_dtype).size if plain else format.bits),
            (f"GROUP{at}", unit if plain else format.group),
            (f"EXPERT_BIAS{at}", format.bias),
            (f"S{at}", format.scale_dtype),
        ]
        inputs += [f"{name}{at}" for name in ("weight", "scale", "bias", "expert")]
    alpha, limit = (1.0, 0.0) if activation is None else (activation.alpha, activation.limit)
    macros = (("ALPHA", float(alpha)), ("LIMIT", float(limit)))
    return Kernel(dialect, "experts", tuple(inputs), "y", tuple(template), macros)


def _spread(formats: tuple[ProjectionFormat, ...], layout: Layout) -> tuple[int, int, int]:
    """Columns of a unit, lanes of a row, units that a lane loads before it uses the first."""
    columns = formats[0].columns
    # 8 columns that are not quantized are a vector load already; the bits of 32 quantized ones fill whole words.
    plain = any(format.mode == "none" for format in formats)
    unit = 8 if plain else next(u for u in (32, 16) if columns % u == 0)
    units = columns // unit
    lanes = layout.lanes
    while lanes > 8 and 2 * lanes > units:  # a row so short that most lanes would have but one unit, or none
        lanes //= 2
    words = sum(unit * format.bits // 32 for format in formats) * layout.tile
    rounds = -(-units // lanes)
    chunks = -(-rounds // max(1, _WORDS_IN_FLIGHT // words))
    return unit, lanes, -(-rounds // chunks)


class IndexedLinear:
    """y[r] = W[slots[r]] x[r // share] (+ its bias): one projection, or gate and up at once."""

    def __init__(
        self,
        dialect: Dialect,
        projections: Mapping[str, ProjectionFormat],
        *,
        share: int,
        activation: Activation | None = None,
        types: tuple[str, str] | None = None,
        layout: Layout | None = None,
    ) -> None:
        """`projections`: `gate_proj` and `up_proj`, or one; `types` of x and y, those of the activations if not given.

        Raises:
            ValueError: see `kernel_of`.
        """
        formats = tuple(projections.values())
        layout = layout or Layout()
        self.types = types or (formats[0].dtype, formats[0].dtype)
        self.projections = dict(projections)
        self.kernel = kernel_of(dialect, formats, share, activation, self.types, layout)
        self._share = share
        self._both = len(formats) == 2 and activation is None
        self._rows = formats[0].rows
        self._block = layout.block
        values = dict(self.kernel.template)
        self._block_rows = layout.block // int(values["LANES"]) * layout.tile
        self._names = [name for pair in ((p, f) for p, f in projections.items()) for name in _part_names(*pair)]
        if len(formats) == 1:
            self._names *= 2
        self._template = self.kernel.template_values()
        self._made: Callable[..., list[mx.array]] | None = None

    def inputs(self, x: mx.array, slots: mx.array, parts: Mapping[str, mx.array]) -> list[mx.array]:
        """The kernel's inputs in its order."""
        return [x, slots, *(slots if name == _PLACEHOLDER else parts[name] for name in self._names)]

    def shape(self, routed: int) -> tuple[int, ...]:
        """Of y for R routed rows."""
        return (routed, 2, self._rows) if self._both else (routed, self._rows)

    def grid(self, routed: int) -> tuple[int, int, int]:
        """Threads, as MLX counts a grid."""
        return (-(-self._rows // self._block_rows) * self._block, routed, 1)

    def launch(self, x: mx.array, slots: mx.array, parts: Mapping[str, mx.array]) -> mx.array:
        """x [R / share, C], slots [R] uint32, parts [S, ...] -> [R, N]; gate and up without activation [R, 2, N].

        `parts` went through `check_parts` before; a slot outside the bank reads memory that is not its own.

        Raises:
            ValueError: x and slots do not fit.
            RuntimeError: MLX has no backend for the dialect.
        """
        routed = slots.size
        columns = self.projections[next(iter(self.projections))].columns
        if x.shape != (routed // self._share, columns) or routed % self._share or slots.dtype != mx.uint32:
            wanted = (routed // self._share, columns)
            raise ValueError(f"expected x {wanted} and uint32 slots, got {x.shape} and {routed} {slots.dtype}")
        if not 0 < routed <= _LARGEST_GRID_Y:
            raise ValueError(f"one launch takes 1 to {_LARGEST_GRID_Y} routed rows, got {routed}")
        if self._made is None:
            self._made = self.kernel.make()
        wanted_type = getattr(mx, self.types[0])
        (y,) = self._made(
            inputs=self.inputs(x if x.dtype == wanted_type else x.astype(wanted_type), slots.reshape(-1), parts),
            template=self._template,
            grid=self.grid(routed),
            threadgroup=(self._block, 1, 1),
            output_shapes=[self.shape(routed)],
            output_dtypes=[getattr(mx, self.types[1])],
        )
        return y


def check_parts(projections: Mapping[str, ProjectionFormat], parts: Mapping[str, mx.array]) -> None:
    """Evaluates the arrays of a bank and sees that kernels can read them where they lie.

    Raises:
        ValueError: a part is missing, has another shape or type, is too small, or is not contiguous: MLX would copy
            the whole bank before every launch.
    """
    for projection, format in projections.items():
        for name in _part_names(projection, format):
            if name == _PLACEHOLDER:
                continue
            if name not in parts:
                raise ValueError(f"{name}: missing from the bank")
            array = parts[name]
            shape, dtype = _expected(format, name.rpartition(".")[2])
            known = name.endswith(".bias") and array.dtype in (mx.float32, mx.bfloat16, mx.float16)
            if array.shape[1:] != shape or not (known or array.dtype == getattr(mx, dtype)):
                found = f"{list(array.shape[1:])} {str(array.dtype).rpartition('.')[2]}"
                raise ValueError(f"{name}: expected {list(shape)} {dtype} per slot, got {found}")
            if name.endswith(".weight") and array.size < _SMALLEST_WEIGHT:
                raise ValueError(f"{name}: {array.size} elements are too few for a kernel")
            if not contiguous(array):
                raise ValueError(f"{name}: not contiguous, so each launch would copy the bank")


def _part_names(projection: str, format: ProjectionFormat) -> list[str]:
    """Names of weight, scales, biases and bias; a placeholder for what the format lacks."""
    quantized = format.mode != "none"
    scales = f"{projection}.scales" if quantized else f"{projection}.weight"
    biases = f"{projection}.biases" if format.mode == "affine" else scales
    return [f"{projection}.weight", scales, biases, f"{projection}.bias" if format.bias else _PLACEHOLDER]


def _expected(format: ProjectionFormat, tensor: str) -> tuple[tuple[int, ...], str]:
    if tensor == "bias":
        return (format.rows,), format.dtype
    if tensor != "weight":
        return (format.rows, format.columns // format.group), format.scale_dtype
    if format.mode == "none":
        return (format.rows, format.columns), format.scale_dtype
    return (format.rows, format.columns * format.bits // 32), "uint32"
