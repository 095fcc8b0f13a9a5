"""Host memory that a CUDA device reads and writes over the bus.  Through the driver, whose name has no version in it.

Ran on Linux with an NVIDIA H200.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref

from streaming_core.errors import AutotuneError
from streaming_core.units import format_size

__all__ = ["CudaPinned"]

_PORTABLE_AND_MAPPED = 1 | 2


class CudaPinned:
    """Ordinary pages that stay where they are, so that direct reads may go there too; both sides use one address."""

    def __init__(self, nbytes: int) -> None:
        """Raises AutotuneError when the driver refuses."""
        pages = mmap.mmap(-1, nbytes)
        self.view = memoryview(pages)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        driver = ctypes.CDLL("libcuda.so.1")
        context = _primary_context(driver)
        code = _within(driver, context, "cuMemHostRegister_v2", ctypes.c_void_p(self.address), ctypes.c_size_t(nbytes),
                       ctypes.c_uint(_PORTABLE_AND_MAPPED))  # fmt: skip
        if code:
            raise AutotuneError(f"the CUDA driver cannot pin {format_size(nbytes)} of memory: error {code}")
        weakref.finalize(self, _release, driver, context, self.address, pages)


def _release(driver: ctypes.CDLL, context: ctypes.c_void_p, address: int, pages: mmap.mmap) -> None:
    _within(driver, context, "cuMemHostUnregister", ctypes.c_void_p(address))


def _primary_context(driver: ctypes.CDLL) -> ctypes.c_void_p:
    """The one that MLX uses too."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for code in (driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), 0),
                 driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)):  # fmt: skip
        if code:
            raise AutotuneError(f"the CUDA driver does not start: error {code}")
    return context


def _within(driver: ctypes.CDLL, context: ctypes.c_void_p, function: str, *args: object) -> int:
    driver.cuCtxPushCurrent_v2(context)
    try:
        return int(getattr(driver, function)(*args))
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
