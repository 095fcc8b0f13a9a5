"""A machine that is not there, and spaces of settings whose best point is known: the tuner without a model."""

from autotune.testing.runner import FakeRunner, Weather, hang, killed, out_of_memory
from autotune.testing.spaces import SPACES, FakeSpace, additive, interacting, streaming

__all__ = [
    "SPACES",
    "FakeRunner",
    "FakeSpace",
    "Weather",
    "additive",
    "hang",
    "interacting",
    "killed",
    "out_of_memory",
    "streaming",
]
