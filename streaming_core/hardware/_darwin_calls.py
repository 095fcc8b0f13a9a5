"""The system calls and tools of macOS, as thin as they get.  Nothing here runs before an instance is made."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Calls", "SystemCalls"]

_RUSAGE_INFO_V4 = 4
_RUSAGE_ROOM = 512  # more than any flavour: a newer system may write more than an older header says
_PROT_NONE, _MAP_SHARED, _MS_INVALIDATE = 0, 1, 2
_LARGEST_MAP = 16 << 30


class Calls(Protocol):
    """What `DarwinMachine` asks of the system; every answer may be missing."""

    def sysctl(self, name: str) -> bytes | None: ...

    def rusage(self) -> bytes | None: ...

    def process_info(self) -> tuple[int, bool] | None:
        """NSProcessInfo's thermal state, and whether Low Power Mode is on."""
        ...

    def invalidate(self, fd: int, nbytes: int) -> bool:
        """Drops the cached pages of a file."""
        ...

    def run(self, command: Sequence[str]) -> str:
        """What a tool printed; empty when it failed."""
        ...


class SystemCalls:
    """Calls libSystem and the Objective-C runtime through ctypes."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL("/usr/lib/libSystem.B.dylib", use_errno=True)
        self._libc.sysctlbyname.argtypes = [
            ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p, ctypes.c_size_t,
        ]  # fmt: skip
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
        ]  # fmt: skip
        self._libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._libc.proc_pid_rusage.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]

    def sysctl(self, name: str) -> bytes | None:
        size = ctypes.c_size_t(0)
        if self._libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, 0) != 0:
            return None
        room = ctypes.create_string_buffer(size.value)
        if self._libc.sysctlbyname(name.encode(), room, ctypes.byref(size), None, 0) != 0:
            return None
        return room.raw[: size.value]

    def rusage(self) -> bytes | None:
        room = ctypes.create_string_buffer(_RUSAGE_ROOM)
        return room.raw if self._libc.proc_pid_rusage(os.getpid(), _RUSAGE_INFO_V4, room) == 0 else None

    def process_info(self) -> tuple[int, bool] | None:
        try:
            objc = ctypes.CDLL("/usr/lib/libobjc.A.dylib")
            ctypes.CDLL("/System/Library/Frameworks/Foundation.framework/Foundation")
        except OSError:
            return None
        for function in (objc.objc_getClass, objc.sel_registerName):
            function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_char_p]

        def send(receiver: int | None, selector: bytes, result: Any) -> Any:
            # On arm64 objc_msgSend must be called with the very signature of the method.
            call = ctypes.CFUNCTYPE(result, ctypes.c_void_p, ctypes.c_void_p)(("objc_msgSend", objc))
            return call(receiver, objc.sel_registerName(selector))

        info = send(objc.objc_getClass(b"NSProcessInfo"), b"processInfo", ctypes.c_void_p)
        if not info:
            return None
        state = send(info, b"thermalState", ctypes.c_long)
        return int(state), bool(send(info, b"isLowPowerModeEnabled", ctypes.c_bool))

    def invalidate(self, fd: int, nbytes: int) -> bool:
        failed = ctypes.c_void_p(-1).value
        for start in range(0, nbytes, _LARGEST_MAP):
            length = min(_LARGEST_MAP, nbytes - start)
            address = self._libc.mmap(None, length, _PROT_NONE, _MAP_SHARED, fd, start)
            if address in (None, failed):
                return False
            dropped = self._libc.msync(address, length, _MS_INVALIDATE) == 0
            self._libc.munmap(address, length)
            if not dropped:
                return False
        return True

    def run(self, command: Sequence[str]) -> str:
        # Numbers in some locales have a decimal comma.
        plain = {"LC_ALL": "C", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
        try:
            done = subprocess.run(command, capture_output=True, timeout=10, check=False, env=plain)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
