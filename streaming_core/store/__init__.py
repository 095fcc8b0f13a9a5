"""Where records are: packed files of our own, or the checkpoint as it is."""

from streaming_core.store.checkpoint import CheckpointStore
from streaming_core.store.header import LayerHeader, layer_file
from streaming_core.store.packed import Fault, PackedStore, verify
from streaming_core.store.packer import LayerSource, pack
from streaming_core.store.store import Store

__all__ = [
    "CheckpointStore",
    "Fault",
    "LayerHeader",
    "LayerSource",
    "PackedStore",
    "Store",
    "layer_file",
    "pack",
    "verify",
]
