"""How each family's decoder layer chooses experts, as far as a guess needs to know.

A view reads the layer's own modules; it never changes them.  A layer without a known view streams without guesses.
"""

from __future__ import annotations

from streaming_core.models.routers.families import FAMILIES, family_of, guess_kinds, input_norm, router_view
from streaming_core.models.routers.view import Router

__all__ = ["FAMILIES", "Router", "family_of", "guess_kinds", "input_norm", "router_view"]
