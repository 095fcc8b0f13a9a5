"""Which checkpoint a name means, what the checkpoint is, and where its experts sit."""

from __future__ import annotations

from streaming_core.models.resolve import ALIASES, ModelSource, default_cache_dir, model_names, resolve_model

__all__ = ["ALIASES", "ModelSource", "default_cache_dir", "model_names", "resolve_model"]
