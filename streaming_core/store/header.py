"""The first pages of a packed layer file.

A layer file is: 8 bytes magic, 4 bytes length of the text, 4 bytes CRC-32 of the text, the text (JSON), then one CRC-32
per record (uint32, little endian), zeros up to a multiple of RECORD_ALIGN, then the records, `stride` bytes apart.
The text has: version, fingerprint of the checkpoint, layer, experts, stride, data_offset, parts, checksums_crc.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streaming_core.errors import StoreInvalid
from streaming_core.geometry import RECORD_ALIGN, RecordGeometry
from streaming_core.hardware import open_regular
from streaming_core.units import round_up

__all__ = ["LayerHeader", "layer_file"]

_MAGIC = b"MLXRECS\x01"
_FIXED = struct.Struct("<8sII")
_VERSION = 1
_LARGEST_TEXT = 1 << 20
_MOST_EXPERTS = 1 << 20


def layer_file(folder: Path, layer: int) -> Path:
    """The file of one layer's records."""
    return folder / f"layer-{layer:04d}.records"


@dataclass(frozen=True, slots=True)
class LayerHeader:
    fingerprint: str
    layer: int
    geometry: RecordGeometry
    checksums: tuple[int, ...]  # CRC-32 of each record's bytes, padding included

    @property
    def experts(self) -> int:
        return len(self.checksums)

    @property
    def data_offset(self) -> int:
        return data_offset(self.geometry, self.experts)

    @property
    def file_bytes(self) -> int:
        return self.data_offset + self.experts * self.geometry.stride

    def to_bytes(self) -> bytes:
        """Exactly `data_offset` bytes."""
        sums = np.array(self.checksums, dtype="<u4").tobytes()
        text = json.dumps(
            {
                "version": _VERSION,
                "fingerprint": self.fingerprint,
                "layer": self.layer,
                "experts": self.experts,
                "stride": self.geometry.stride,
                "data_offset": self.data_offset,
                "parts": self.geometry.to_json(),
                "checksums_crc": zlib.crc32(sums),
            }
        ).encode()
        head = _FIXED.pack(_MAGIC, len(text), zlib.crc32(text)) + text + sums
        return head.ljust(self.data_offset, b"\0")

    @classmethod
    def read(cls, path: Path) -> LayerHeader:
        """Reads and checks a header, and the file's size against it.

        Raises:
            StoreInvalid: not there, not such a file, written by a newer version, damaged, or truncated.
        """
        remedy = "delete it and run `mlx-autotune pack` again"
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                return cls._parse(file.read(min(size, _LARGEST_TEXT + 4 * _MOST_EXPERTS)), size)
        except StoreInvalid:  # of `open_regular`
            raise StoreInvalid(f"{path}: not a regular file; {remedy}") from None
        except FileNotFoundError:
            raise StoreInvalid(f"{path}: no such store file; run `mlx-autotune pack`") from None
        except OSError as err:
            raise StoreInvalid(f"{path}: {err.strerror}; check its permissions and the disk") from err
        except (ValueError, KeyError, TypeError, struct.error) as err:
            raise StoreInvalid(f"{path}: {err}; {remedy}") from err

    @classmethod
    def _parse(cls, raw: bytes, size: int) -> LayerHeader:
        if len(raw) < _FIXED.size or raw[:7] != _MAGIC[:7]:
            raise ValueError("not a record file")
        magic, length, crc = _FIXED.unpack_from(raw)
        text = raw[_FIXED.size : _FIXED.size + length]
        if length > _LARGEST_TEXT or zlib.crc32(text) != crc:
            raise ValueError("the header is damaged")
        fields = json.loads(text)
        if magic != _MAGIC or fields["version"] != _VERSION:
            raise ValueError(f"format version {fields['version']!r}; this program reads version {_VERSION}")
        experts = fields["experts"]
        if not isinstance(experts, int) or not 0 < experts <= _MOST_EXPERTS:
            raise ValueError(f"{experts!r} experts")
        sums = raw[_FIXED.size + length :][: 4 * experts]
        if len(sums) != 4 * experts or zlib.crc32(sums) != fields["checksums_crc"]:
            raise ValueError("the checksums are damaged")
        geometry = RecordGeometry.from_json(fields["parts"])
        checksums = tuple(np.frombuffer(sums, "<u4").tolist())
        found = cls(str(fields["fingerprint"]), int(fields["layer"]), geometry, checksums)
        if (fields["stride"], fields["data_offset"]) != (geometry.stride, found.data_offset):
            raise ValueError("stride or data offset do not follow from the parts")
        if size != found.file_bytes:
            raise ValueError(f"the file has {size} bytes where its header promises {found.file_bytes}")
        return found


def data_offset(geometry: RecordGeometry, experts: int) -> int:
    """Where the first record begins: room for any text this geometry can have, then the checksums."""
    text = len(json.dumps(geometry.to_json())) + 512  # 512: the other fields
    return round_up(_FIXED.size + text + 4 * experts, RECORD_ALIGN)
