"""The table in docs/families.md: `python tests/models/family_table.py` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

from family_configs import FAMILIES, Config
from family_models import bare_model
from mlx_lm.models.switch_layers import SwitchGLU, SwitchMLP
from mlx_lm.utils import MODEL_REMAPPING

from streaming_core.models.routers import family_of, guess_kinds

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
_MARKS = ("<!-- made by tests/models/family_table.py -->\n", "<!-- end -->")


def page() -> str:
    """The page with its table made anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_MARKS[0])
    return before + _MARKS[0] + _table() + _MARKS[1] + rest.partition(_MARKS[1])[2]


def _table() -> str:
    rows = [
        "| model file | its layers are of | experts in a layer | guesses by router | result |",
        "|---|---|---|---|---|",
    ]
    rows += [_row(name, config) for name, config in FAMILIES.items()]
    others = sorted(f"{alias} ({file})" for alias, file in MODEL_REMAPPING.items() if file in FAMILIES)
    rows += ["", f"Model types that mlx-lm runs with another's file: {', '.join(others)}.", ""]
    return "\n".join(rows)


def _row(name: str, config: Config) -> str:
    model = bare_model(config)
    switches = {path: type(m).__name__ for path, m in model.named_modules() if isinstance(m, SwitchGLU | SwitchMLP)}
    places = {(re.split(r"\.\d+\.", path, maxsplit=1)[1], kind) for path, kind in switches.items()}
    layers = [model.layers[int(re.findall(r"\.(\d+)\.", path)[0])] for path in sorted(switches)]
    owner = family_of(layers[0])
    experts = ", ".join(f"`{place}` ({kind})" for place, kind in sorted(places))
    kinds = ", ".join(guess_kinds(layers)) or "none"
    result = "same bits, with stand-ins for Metal" if name == "muse_spark" else "same bits"
    return f"| {name} | {'' if owner == name else owner} | {experts} | {kinds} | {result} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
