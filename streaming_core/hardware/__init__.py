"""What this machine is and how it is doing.  The only package that knows the operating system or the chip.

`detect()` gives the `Machine` of this process; `FakeMachine` is one whose every reading can be set.
"""

from __future__ import annotations

import sys

from streaming_core.errors import AutotuneError
from streaming_core.hardware._budget import default_budget_bytes
from streaming_core.hardware._fake import FakeMachine
from streaming_core.hardware._files import open_regular
from streaming_core.hardware._mlx import is_out_of_memory
from streaming_core.hardware._types import (
    Conditions,
    Hardware,
    LargePages,
    Machine,
    MemoryState,
    PinnedMemory,
    ProcessMemory,
)

__all__ = [
    "Conditions",
    "FakeMachine",
    "Hardware",
    "LargePages",
    "Machine",
    "MemoryState",
    "PinnedMemory",
    "ProcessMemory",
    "default_budget_bytes",
    "detect",
    "is_out_of_memory",
    "open_regular",
]


def detect() -> Machine:
    """The machine this process runs on.  Raises AutotuneError on anything but Linux and macOS."""
    if sys.platform == "darwin":
        from streaming_core.hardware._darwin import DarwinMachine

        return DarwinMachine()
    if sys.platform == "linux":
        from streaming_core.hardware._linux import LinuxMachine

        return LinuxMachine()
    raise AutotuneError(f"{sys.platform} is not supported: MLX runs on macOS and Linux, so run there")
