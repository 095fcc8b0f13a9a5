"""One function a chart: data in, SVG out.  Narrow ones are 420 units wide, so that their text reads on a phone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.report.svg import Plot, bar, line, mark, picture, plain, rule, ticks, word
from autotune.wording import changes_text, gain_text, seconds_text, tps_text
from streaming_core.units import format_size

__all__ = [
    "budgets",
    "comparison",
    "drift",
    "history",
    "interval",
    "memory",
    "ratios",
    "slice_of",
    "slots",
    "token_time",
]

_Data = Mapping[str, Any]
NARROW = 420
SHAPES = {"default": "square", "rank": "dot", "search": "dot", "race": "diamond", "pair": "triangle"}


def comparison(sides: Mapping[str, _Data]) -> str:
    """Every sample by round; a bar at each median.  The default comes first."""
    names = list(dict.fromkeys(each["round"] for side in sides.values() for each in side["rounds"]))
    samples = [tps for side in sides.values() for each in side["rounds"] for tps in each["samples"]]
    plot = Plot(NARROW, 250, -0.6, len(names) - 0.4, ticks(min(samples), max(samples)))
    step = (NARROW - plot.left - plot.right) / max(1, len(names))
    body = plot.grid("tok/s")
    for at, (name, side) in enumerate(sides.items()):
        shift = (at - (len(sides) - 1) / 2) * min(step * 0.38, 22)
        kind = "ours" if at else "base"
        middle = plot.y(side["decode_tps"])
        body.append(rule(plot.left, middle, NARROW - plot.right, middle, f"{kind} median"))
        for each in side["rounds"]:
            x, half = plot.x(names.index(each["round"])) + shift, min(step * 0.17, 9)
            y = plot.y(each["median_tps"])
            body.append(rule(x - half, y, x + half, y, f"{kind} tick"))
            for tps in each["samples"]:
                tip = f"{name}, {each['round']}: {tps_text(tps)} tok/s"
                body.append(mark("dot", x, plot.y(tps), f"{kind} faint", tip, 3.2))
    every = max(1, math.ceil(len(names) / (NARROW / 58)))
    for n, name in enumerate(names):
        if n % every == 0:
            first, _, number = name.partition(" ")
            body += [plot.below(n, first), plot.below(n, number, 1)]
    described = "; ".join(f"{name}: median {tps_text(side['decode_tps'])} tok/s" for name, side in sides.items())
    return picture("comparison", NARROW, 250, "All samples by round", described, body)


def interval(low: float, middle: float, high: float, needed: float) -> str:
    """The ratio to the default with its bounds, beside 1 and what was needed."""
    shown = [each for each in (low, middle, high, 1.0, 1.0 + needed) if math.isfinite(each)]
    marks = ticks(min(shown), min(max(shown), 20.0), 4)
    plot = Plot(NARROW, 84, marks[0], marks[-1], [0, 1], left=20, right=20, top=6, bottom=30)
    y = 30.0
    body = [word(plot.x(each), 72, f"{each:g}x", anchor="middle") for each in marks]
    body += [rule(plot.x(each), 12, plot.x(each), 56) for each in marks]
    body.append(rule(plot.x(1.0), 8, plot.x(1.0), 56, "base axis"))
    body.append(rule(plot.x(1 + needed), 8, plot.x(1 + needed), 56, "base median"))
    ends = [plot.x(min(max(each, marks[0]), marks[-1])) for each in (low, high)]
    body.append(rule(ends[0], y, ends[1], y, "ours span"))
    body.append(mark("dot", plot.x(middle), y, "ours", f"{middle:.3f} times the default", 6))
    told = f"{middle:.3f} times the default, 95 % interval {low:.3f} to {high:.3f}; needed {1 + needed:.3f}"
    return picture("interval", NARROW, 84, "Ratio to the default", told, body)


def token_time(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> str:
    """Stacked bars: parts of a token's time for each side."""
    total = max(sum(seconds for _, seconds in parts) for _, parts in rows)
    height = 34 + 46 * len(rows)
    marks = ticks(0, total * 1000, 4)
    plot = Plot(NARROW, height, 0, marks[-1], [0, 1], left=58, right=16, top=4, bottom=26)
    body = [rule(plot.x(each), 4, plot.x(each), plot.floor) for each in marks]
    body += [plot.below(each, f"{each:g}" + (" ms" if each == marks[-1] else "")) for each in marks]
    for at, (name, parts) in enumerate(rows):
        y, x = 8.0 + 46 * at, plot.x(0)
        body.append(word(0, y + 21, name))
        for n, (part, seconds) in enumerate(parts):
            width = plot.x(seconds * 1000) - plot.x(0)
            body.append(bar(x, y, width, 32, f"part{n}", f"{name}, {part}: {seconds_text(seconds)}"))
            x += width
    told = "; ".join(f"{name}: " + ", ".join(f"{p} {seconds_text(s)}" for p, s in parts) for name, parts in rows)
    return picture("token", NARROW, height, "Where a token's time goes", told, body)


def history(trials: Sequence[_Data], width: int) -> str:
    """Speed by number of trial, the best of the search so far, failures along the floor."""
    speeds = [each["tps"] for each in trials if each["tps"] is not None]
    last = trials[-1]["number"]
    plot = Plot(width, 270, 0.2, last + 0.8, ticks(0, max(speeds)))
    body = plot.grid("tok/s")
    steps: list[tuple[float, float]] = []
    for each in trials:
        if each["best_tps"] is not None:
            x = plot.x(each["number"])
            steps += [(x, steps[-1][1])] if steps else []
            steps.append((x, plot.y(each["best_tps"])))
    body.append(line(steps, "best"))
    for each in trials:
        told = f"trial {each['number']} ({each['purpose']}): "
        changes = changes_text(each["changes"])
        x = plot.x(each["number"])
        if each["tps"] is None:
            tip = f"{told}{each['kind'].replace('_', ' ')}, {each['detail']}; {changes}"
            body.append(mark("cross", x, plot.floor - 6, "failed", tip))
            continue
        broken = f"; breaks {', '.join(each['broken'])}" if each["broken"] else ""
        kind = "base" if each["purpose"] == "default" or not each["changes"] else "ours"
        shape = "ring" if each["broken"] and each["purpose"] == "search" else SHAPES.get(each["purpose"], "dot")
        body.append(
            mark(shape, x, plot.y(each["tps"]), kind, f"{told}{tps_text(each['tps'])} tok/s{broken}; {changes}")
        )
    marks = [n for n in ticks(1, last, 12 if width > NARROW else 6) if n == int(n) and 1 <= n <= last]
    body += [plot.below(n, f"{n:g}") for n in marks]
    body.append(word(plot.width - plot.right, plot.height - 4, "trial", anchor="end"))
    failed = sum(each["tps"] is None for each in trials)
    told = f"{len(trials)} trials, {failed} failed; fastest {tps_text(max(speeds))} tok/s"
    return picture(f"history{width}", width, 270, "Search history", told, body)


def ratios(rows: Sequence[_Data]) -> str:
    """Horizontal bars of gains, in the order given."""
    height, left = 8 + 24 * len(rows), 168.0
    largest = max(math.log(each["ratio"]) for each in rows) or 1.0
    body = []
    for at, each in enumerate(rows):
        y, name = 4 + 24 * at, each["knob"]
        body.append(word(left - 8, y + 14, name if len(name) < 27 else f"{name[:25]}…", anchor="end"))
        width = math.log(each["ratio"]) / largest * (NARROW - left - 58)
        body.append(bar(left, y + 2, width, 15, "part0", f"{name}: {gain_text(each['ratio'])}"))
        body.append(word(NARROW, y + 14, gain_text(each["ratio"]), anchor="end"))
    told = ", ".join(f"{each['knob']} {gain_text(each['ratio'])}" for each in rows)
    return picture("importance", NARROW, height, "Effects of knobs", told, body)


def slice_of(at: int, found: _Data) -> str:
    """Speeds by option of one knob."""
    options = found["options"]
    speeds = [tps for each in options for tps in each["tps"]]
    plot = Plot(NARROW, 190, -0.5, len(options) - 0.5, ticks(0, max(speeds), 4))
    body = plot.grid("tok/s")
    half = min((NARROW - plot.left - plot.right) / len(options) * 0.3, 22)
    room = max(3, int((NARROW - plot.left) / len(options) / 6.2))
    for n, each in enumerate(options):
        x, middle = plot.x(n), plot.y(each["median_tps"])
        for k, tps in enumerate(each["tps"]):
            aside = (k % 5 - 2) / 5 * half if len(each["tps"]) > 1 else 0.0
            body.append(
                mark("dot", x + aside, plot.y(tps), "ours faint", f"{each['value']}: {tps_text(tps)} tok/s", 3.2)
            )
        body.append(rule(x - half, middle, x + half, middle, "base tick"))
        first, second = _two_rows(str(each["value"]), room)
        body += [plot.below(n, first), plot.below(n, second, 1)]
    told = "; ".join(
        f"{each['value']}: median {tps_text(each['median_tps'])} of {len(each['tps'])}" for each in options
    )
    return picture(f"slice{at}", NARROW, 190, f"Speed by {found['knob']}", told, body)


def slots(rows: Sequence[_Data]) -> str:
    """Hit rate by slots as bars, missed bytes above them in words."""
    plot = Plot(NARROW, 210, -0.5, len(rows) - 0.5, [0, 25, 50, 75, 100], top=30)
    body = plot.grid("% hit")
    step = (NARROW - plot.left - plot.right) / len(rows)
    every = max(1, math.ceil(46 / step))
    for n, each in enumerate(rows):
        x, y = plot.x(n), plot.y(100 * each["hit_rate"])
        missed = format_size(round(each["missed_bytes_per_token"]))
        tip = f"{each['slots']} slots: {each['hit_rate']:.1%} hit, {missed} missed a token, {each['trials']} trials"
        body.append(bar(x - min(step * 0.35, 24), y, 2 * min(step * 0.35, 24), plot.floor - y, "part0", tip))
        if n % every == 0:
            body += [plot.below(n, each["slots"]), word(x, y - 5, missed, anchor="middle")]
    body.append(word(NARROW - plot.right, plot.height - 3, "slots a layer", anchor="end"))
    told = "; ".join(f"{each['slots']} slots: {each['hit_rate']:.1%}" for each in rows)
    return picture("slots", NARROW, 210, "Hit rate and missed bytes by slots", told, body)


def memory(rows: Sequence[tuple[str, int, str]]) -> str:
    largest = max(nbytes for _, nbytes, _ in rows) or 1
    body = []
    for at, (name, nbytes, kind) in enumerate(rows):
        y = 4 + 32 * at
        body.append(word(0, y + 16, name))
        body.append(bar(62, y, nbytes / largest * (NARROW - 140), 22, kind, f"{name}: {format_size(nbytes)}"))
        body.append(word(NARROW, y + 16, format_size(nbytes), anchor="end"))
    told = "; ".join(f"{name} {format_size(nbytes)}" for name, nbytes, _ in rows)
    return picture("memory", NARROW, 8 + 32 * len(rows), "Memory", told, body)


def drift(rows: Sequence[_Data], sigma: float) -> str:
    """The default over time, with a band of two standard deviations around its median."""
    speeds = sorted(each["tps"] for each in rows)
    middle = speeds[len(speeds) // 2]
    band = middle * math.exp(-2 * sigma), middle * math.exp(2 * sigma)
    last = max(each["minutes"] for each in rows)
    in_seconds = last < 3
    scale, unit = (60.0, "s") if in_seconds else (1.0, "min")
    plot = Plot(NARROW, 200, 0, max(last * scale, 1e-6), ticks(min(*speeds, band[0]), max(*speeds, band[1]), 4))
    top, floor = plot.y(band[1]), plot.y(band[0])
    body = [bar(plot.left, top, NARROW - plot.left - plot.right, floor - top, "band"), *plot.grid("tok/s")]
    points = [(plot.x(each["minutes"] * scale), plot.y(each["tps"])) for each in rows]
    body.append(line(points, "thin"))
    for (x, y), each in zip(points, rows, strict=True):
        body.append(mark("square", x, y, "base", f"trial {each['trial']}: {tps_text(each['tps'])} tok/s"))
    marks = [each for each in ticks(0, last * scale, 5) if each <= last * scale]
    body += [plot.below(each, f"{each:g}") for each in marks]
    body.append(word(NARROW - plot.right, plot.height - 4, unit, anchor="end"))
    told = f"{len(rows)} trials of the default, {tps_text(speeds[0])} to {tps_text(speeds[-1])} tok/s"
    return picture("drift", NARROW, 200, "The default over time", told, body)


def budgets(rows: Sequence[_Data]) -> str:
    """Speed by memory budget, equal ratios at equal distances."""
    ordered = sorted(rows, key=lambda each: float(each["budget_bytes"]))
    speeds = [float(each[key]) for each in ordered for key in ("decode_tps", "default_tps")]
    logs = [math.log2(max(float(each["budget_bytes"]), 1)) for each in ordered]
    plot = Plot(NARROW, 220, logs[0] - 0.1, logs[-1] + 0.1, ticks(0, max(speeds)), right=26)
    body = plot.grid("tok/s")
    for key, kind in (("default_tps", "base"), ("decode_tps", "ours")):
        points = [(plot.x(at), plot.y(float(each[key]))) for at, each in zip(logs, ordered, strict=True)]
        body.append(line(points, f"{kind} path"))
        for (x, y), each in zip(points, ordered, strict=True):
            tip = f"{format_size(int(each['budget_bytes']))}: {tps_text(float(each[key]))} tok/s"
            body.append(mark("dot", x, y, kind, tip))
    for n, (at, each) in enumerate(zip(logs, ordered, strict=True)):
        body.append(plot.below(at, format_size(int(each["budget_bytes"])), n % 2))
    told = "; ".join(
        f"{format_size(int(e['budget_bytes']))}: {tps_text(float(e['decode_tps']))} tok/s" for e in ordered
    )
    return picture("budgets", NARROW, 220, "Speed by memory budget", told, body)


def legend(*items: tuple[str, str, str]) -> str:
    """Shape, class and words of each mark."""
    found = []
    for shape, kind, text in items:
        inner = mark(shape, 7, 7, kind) if shape in (*SHAPES.values(), "ring", "cross") else bar(1, 2, 12, 10, kind)
        found.append(f'<li><svg viewBox="0 0 14 14" aria-hidden="true">{inner}</svg>{plain(text)}</li>')
    return f'<ul class="legend">{"".join(found)}</ul>'


def _two_rows(text: str, room: int) -> tuple[str, str]:
    """A label that is too long for its column on two rows, cut where that does not help."""
    if len(text) <= room:
        return text, ""
    first, space, rest = text.partition(" ")
    if not space and "_" in text:
        first, _, rest = text.partition("_")
    return tuple(each if len(each) <= room else f"{each[: room - 1]}…" for each in (first, rest))  # type: ignore[return-value]
