"""mlx_lm's HTTP server over a streamed model."""

from autotune.serving.generator import StreamedGenerator
from autotune.serving.http import Server, bind

__all__ = ["Server", "StreamedGenerator", "bind"]
