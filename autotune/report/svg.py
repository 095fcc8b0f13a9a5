"""Marks, axes and frames of small charts as SVG text.  Colours come from the page's style sheet, by class.

Whatever is text is escaped here, and nowhere else has to think of it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Plot", "bar", "line", "mark", "picture", "plain", "rule", "ticks", "word"]


def plain(value: object) -> str:
    """Safe in HTML, inside and outside of attributes; control characters and bidirectional overrides become visible."""
    return html.escape("".join(each if each.isprintable() else "\ufffd" for each in str(value)))


def picture(name: str, width: float, height: float, title: str, description: str, body: Iterable[str]) -> str:
    """`name` is unique on the page."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{plain(title)}</title><desc id="{name}-d">{plain(description)}</desc>'
        f"{''.join(body)}</svg>"
    )


def word(x: float, y: float, text: object, *, anchor: str = "start", kind: str = "label") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{plain(text)}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def bar(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" rx="2" class="{kind}">'
        f"{_tip(tip)}</rect>"
    )


def line(points: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" class="{kind}"/>'


def mark(shape: str, x: float, y: float, kind: str, tip: str = "", size: float = 4.0) -> str:
    """`shape`: dot, ring, diamond, triangle, square or cross."""
    s = size
    if shape in ("dot", "ring"):
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s * 0.9:.1f}" class="{kind} {shape}">{_tip(tip)}</circle>'
    w = s * 1.2
    paths = {
        "diamond": f"M{x:.1f} {y - w:.1f}l{w:.1f} {w:.1f}l{-w:.1f} {w:.1f}l{-w:.1f} {-w:.1f}z",
        "triangle": f"M{x:.1f} {y - s * 1.1:.1f}l{s * 1.1:.1f} {s * 2:.1f}h{-s * 2.2:.1f}z",
        "square": f"M{x - s * 0.9:.1f} {y - s * 0.9:.1f}h{s * 1.8:.1f}v{s * 1.8:.1f}h{-s * 1.8:.1f}z",
        "cross": f"M{x - s:.1f} {y - s:.1f}l{2 * s:.1f} {2 * s:.1f}m0 {-2 * s:.1f}l{-2 * s:.1f} {2 * s:.1f}",
    }
    return f'<path d="{paths[shape]}" class="{kind} {shape}">{_tip(tip)}</path>'


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers that cover `low` to `high`."""
    span = high - low or abs(high) or 1.0
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, max(last, first + 1) + 1)]


@dataclass(frozen=True, slots=True)
class Plot:
    """Maps values to places in a frame, and draws its horizontal grid."""

    width: float
    height: float
    x_low: float
    x_high: float
    marks: Sequence[float]  # of the vertical axis; they are its range
    left: float = 44
    right: float = 12
    top: float = 24
    bottom: float = 34

    def x(self, value: float) -> float:
        span = self.x_high - self.x_low or 1.0
        return self.left + (value - self.x_low) / span * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.marks[0], self.marks[-1]
        return self.floor - (value - low) / (high - low or 1.0) * (self.floor - self.top)

    @property
    def floor(self) -> float:
        return self.height - self.bottom

    def grid(self, unit: str) -> list[str]:
        found = []
        for value in self.marks:
            found.append(rule(self.left, self.y(value), self.width - self.right, self.y(value)))
            found.append(word(self.left - 6, self.y(value) + 4, f"{value:g}", anchor="end"))
        return [*found, word(self.left - 6, 9, unit, anchor="end")] if unit else found

    def below(self, value: float, text: object, row: int = 0) -> str:
        return word(self.x(value), self.floor + 15 + 13 * row, text, anchor="middle")


def _tip(text: str) -> str:
    return f"<title>{plain(text)}</title>" if text else ""
