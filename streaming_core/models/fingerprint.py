"""Tells checkpoints apart without reading them whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from streaming_core.store.index import TensorPlace

__all__ = ["fingerprint"]

_SAMPLES = 32  # blocks looked at per file; two quantisations of one model differ nearly everywhere
_BLOCK = 4096


def fingerprint(folder: Path, index: Mapping[str, TensorPlace]) -> str:
    """16 hex digits over config.json, every tensor's name, type and shape, and sampled blocks of every file.

    Copying or touching the folder does not change it.
    """
    digest = hashlib.blake2b(digest_size=8)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    digest.update(json.dumps(config, sort_keys=True).encode())
    for name in sorted(index):
        place = index[name]
        digest.update(f"{name} {place.dtype} {place.shape}\n".encode())
    for path in sorted({place.path for place in index.values()}):
        _sample(path, index, digest)
    return digest.hexdigest()


def _sample(path: Path, index: Mapping[str, TensorPlace], digest: hashlib.blake2b) -> None:
    begin = min(place.offset for place in index.values() if place.path == path)
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    try:
        for n in range(_SAMPLES):
            digest.update(os.pread(fd, _BLOCK, begin + (size - begin) * n // _SAMPLES))
    finally:
        os.close(fd)
