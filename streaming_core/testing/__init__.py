"""Synthetic checkpoints that mlx-lm loads, with routing that looks like a trained model's; text to run them on."""

from .checkpoint import CheckpointSpec, make_checkpoint, parse_size
from .corpus import prompts

__all__ = ["CheckpointSpec", "make_checkpoint", "parse_size", "prompts"]
