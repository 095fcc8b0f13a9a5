"""One self-contained file: the style sheet and the sections, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.report.sections import sections
from autotune.report.style import STYLE
from autotune.report.svg import plain

__all__ = ["page"]

# The policy holds even if some text should find a way to be markup: nothing runs, nothing is fetched.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(facts: Mapping[str, Any]) -> str:
    """Whatever comes from a journal or a profile is escaped."""
    study = facts["study"]
    title = f"{study['model']} on {study['hardware']}"
    begun = f"{study['trials']} trials from {study['begun'][:10]}"
    told = f"study {study['name']}, {begun}, mlx-autotune {study['version']}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{plain(title)}</title><style>{STYLE}</style></head>\n'
        f"<body><header><h1>{plain(title)}</h1><p>{plain(told)}</p></header>\n"
        f"<main>{chr(10).join(filter(None, sections(facts)))}</main></body></html>\n"
    )
