"""The page's sections: words, charts and tables from the data of `facts_of`.  Each gives HTML, or nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.report import charts
from autotune.report.parts import card, details, figure, note, table
from autotune.report.svg import plain
from autotune.wording import changes_text, gain_text, seconds_text, tps_text
from streaming_core.units import format_size

__all__ = ["sections"]

_Data = Mapping[str, Any]
_TOLD = 1.005  # effects below are not drawn
_STATUS = {
    "proven": "Faster, and proven",
    "default_kept": "The default is kept",
    "interrupted": "Interrupted",
    "unfinished": "Not finished",
}


def sections(facts: _Data) -> list[str]:
    return [
        _verdict(facts),
        _comparison(facts),
        _settings(facts),
        _token_time(facts),
        _history(facts),
        _importance(facts),
        _slots(facts),
        *_slices(facts),
        _memory(facts),
        _noise(facts),
        _curve(facts),
        _dead(facts),
        _circumstances(facts),
    ]


def _verdict(facts: _Data) -> str:
    verdict = facts["verdict"]
    figures = [
        figure(name, tps_text(side["decode_tps"]), "tok/s", strong=name != "default")
        for name, side in _named(facts).items()
    ]
    drawn = ""
    if verdict["interval"]:
        low, middle, high = map(float, verdict["interval"])
        span = f"95 %: {low:.2f} to {high:.2f}" if math.isfinite(high) else "one pair: no interval"
        figures.append(figure("ratio", f"{middle:.2f}", f"times ({span})"))
        if math.isfinite(high):
            drawn = charts.interval(low, middle, high, float(verdict["needed_gain"]))
            drawn += note("Dashed: the gain that was needed. Grey line: as fast as the default.")
    title = _STATUS.get(verdict["status"], verdict["status"])
    reason = _sentence(verdict["reason"].removeprefix("the default is kept: "))
    return (
        f'<section class="wide verdict"><h2>{plain(title)}</h2><p class="lead">{plain(reason)}</p>'
        f'<div class="figures">{"".join(figures)}</div>{drawn}{note(_sentence(verdict["source"]))}</section>'
    )


def _named(facts: _Data) -> dict[str, _Data]:
    """Default and whatever was held against it, which is the winner only where that was proven."""
    rival = "winner" if facts["verdict"]["status"] == "proven" else "rival"
    return {rival if name == "winner" else name: side for name, side in facts["sides"].items()}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + "." * (not text.endswith("."))


def _settings(facts: _Data) -> str:
    if not facts["changes"]:
        return ""
    rows = [(key, value) for key, value in facts["changes"].items()]
    said = note(f"Beside the default: {facts['shown_because']}.")
    return card(f"What the {list(_named(facts))[-1]} changes", table(("setting", "value"), rows) + said)


def _comparison(facts: _Data) -> str:
    sides = _named(facts)
    legend = charts.legend(*[("dot", "ours" if at else "base", name) for at, name in enumerate(sides)])
    rows = [
        (each["round"], name, tps_text(each["median_tps"]), ", ".join(map(tps_text, each["samples"])))
        for name, side in sides.items()
        for each in side["rounds"]
    ]
    numbers = details("All samples", ("round", "side", "median tok/s", "samples"), rows)
    summary = table(("", *sides), _sides_rows(sides))
    said = note(
        "Each dot is one passage, short bars are a trial's median, dashed lines the median of all trials shown."
    )
    title = " against ".join(["Default", *list(sides)[1:]])
    drawn = f"<div>{legend}{charts.comparison(sides)}{said}</div><div>{summary}{numbers}</div>"
    return card(title, f'<div class="halves">{drawn}</div>', "wide")


def _sides_rows(sides: Mapping[str, _Data]) -> list[tuple[str, ...]]:
    def row(name: str, key: str, text: Any) -> tuple[str, ...]:
        return (name, *("-" if side[key] is None else text(side[key]) for side in sides.values()))

    return [
        row("decode, tok/s", "decode_tps", tps_text),
        row("first token", "first_token_s", seconds_text),
        row("token, median", "token_p50_s", seconds_text),
        row("token, p99", "token_p99_s", seconds_text),
        row("hit rate", "hit_rate", lambda share: f"{share:.1%}"),
        row("missed a token", "missed_bytes_per_token", lambda n: format_size(round(n))),
        row("guessed a token", "guessed_bytes_per_token", lambda n: format_size(round(n))),
    ]


def _token_time(facts: _Data) -> str:
    parts = ("computing", "host and other", "waiting for reads")
    rows = []
    for name, side in _named(facts).items():
        rest = max(0.0, side["token_s"] - side["wait_s"])
        compute = min(rest, facts["compute_s"])
        rows.append((name, list(zip(parts, (compute, rest - compute, side["wait_s"]), strict=True))))
    legend = charts.legend(*[("bar", f"part{n}", part) for n, part in enumerate(parts)])
    numbers = details(
        "Numbers",
        ("", *parts, "in all"),
        [
            (name, *(seconds_text(seconds) for _, seconds in split), seconds_text(sum(s for _, s in split)))
            for name, split in rows
        ],
    )
    said = note(
        "Waiting is counted. Computing is estimated: the least time without waiting that any trial of this study had; "
        "what is beyond it counts as host and other. mlx-autotune trace measures the split."
    )
    return card("Where a token's time goes", legend + charts.token_time(rows) + said + numbers)


def _history(facts: _Data) -> str:
    trials = facts["trials"]
    purposes = {each["purpose"] for each in trials}
    items = [
        (charts.SHAPES[name], "base" if name == "default" else "ours", name)
        for name in charts.SHAPES
        if name in purposes and name != "rank"
    ]
    if any(each["broken"] for each in trials):
        items.append(("ring", "ours", "breaks a constraint"))
    if any(each["tps"] is None for each in trials):
        items.append(("cross", "failed", "failed"))
    rows = [
        (
            each["number"],
            each["purpose"],
            "-" if each["tps"] is None else tps_text(each["tps"]),
            "-" if each["best_tps"] is None else tps_text(each["best_tps"]),
            "; ".join(
                [each["kind"].replace("_", " ")] * (each["tps"] is None) + each["broken"] + [each["detail"]]
            ).strip("; "),
            changes_text(each["changes"]),
        )
        for each in trials
    ]
    head = ("trial", "purpose", "tok/s", "best", "trouble", "changes")
    drawn = (
        f'<div class="roomy">{charts.history(trials, 980)}</div>'
        f'<div class="tight">{charts.history(trials, charts.NARROW)}</div>'
    )
    said = note(
        "The line is the best of the search so far; grey marks are the default. Hover over a mark for its settings."
    )
    shared = (
        note("Other machines have trials of this study too; they are in its database.")
        if facts["study"]["shared"]
        else ""
    )
    return card(
        "Search history", charts.legend(*items) + drawn + said + shared + details("All trials", head, rows), "wide"
    )


def _importance(facts: _Data) -> str:
    found = facts["importance"]
    rows = found["knobs"]
    if not rows:
        why = f"{found['trials']} of the {found['needed']} trials that it takes were run"
        if found["trials"] >= found["needed"]:
            why = "no knob was tried with two values"
        return card("Which knobs matter", f"<p>Not told: {why}.</p>")
    shown = [each for each in rows if each["ratio"] >= _TOLD]
    drawn = charts.ratios(shown) if shown else "<p>No effect of any knob can be told from noise.</p>"
    said = note(
        f"From a knob's worst option to its best, the other knobs taken into account: additive effects fitted to "
        f"{found['trials']} trials, those below 0.5 % left out. It is a hint; the race decides. The table has Optuna's "
        "PED-ANOVA beside it, which credits whatever the search went on using once it was fast."
    )
    cells = [
        (each["knob"], gain_text(each["ratio"]), "-" if each["ped_anova"] is None else f"{each['ped_anova']:.1%}")
        for each in rows
    ]
    numbers = details("Numbers", ("knob", "effect", "PED-ANOVA"), cells)
    return card("Which knobs matter", drawn + said + numbers)


def _slices(facts: _Data) -> Iterable[str]:
    for at, found in enumerate(facts["slices"]):
        rows = [(each["value"], len(each["tps"]), tps_text(each["median_tps"])) for each in found["options"]]
        said = note("Dots are trials of the search, whatever else they changed; bars are medians.")
        numbers = details("Numbers", ("in force", "trials", "median tok/s"), rows)
        yield card(found["knob"], charts.slice_of(at, found) + said + numbers, code=True)


def _slots(facts: _Data) -> str:
    rows = facts["residency"]
    if not rows:
        return card("Hits and misses by slots", "<p>No trial streamed anything: every expert was in memory.</p>")
    cells = [
        (
            e["slots"],
            e["trials"],
            f"{e['hit_rate']:.1%}",
            format_size(round(e["missed_bytes_per_token"])),
            tps_text(e["median_tps"]),
        )
        for e in rows
    ]
    head = ("slots", "trials", "hit rate", "missed a token", "median tok/s")
    said = note("Bars are hit rates; above them what was read on demand for a token.")
    return card("Hits and misses by slots", charts.slots(rows) + said + details("Numbers", head, cells))


def _memory(facts: _Data) -> str:
    found = facts["memory"]
    rows = [
        (name, int(found[key]), kind)
        for name, key, kind in (
            ("budget", "budget_bytes", "band"),
            ("default", "default_bytes", "part1"),
            (list(_named(facts))[-1], "winner_bytes", "part0"),
        )
        if found[key] is not None
    ]
    missing = "" if found["budget_bytes"] is not None else note("No budget was set.")
    numbers = details("Numbers", ("", "memory"), [(name, format_size(n)) for name, n, _ in rows])
    return card("Memory", charts.memory(rows) + missing + numbers)


def _noise(facts: _Data) -> str:
    noise, rows = facts["noise"], facts["drift"]
    told = "the default was measured once, so noise is unknown"
    if noise["measurements"] > 1:
        told = (
            f"the same settings differ by {noise['sigma']:.1%} from one trial to the next "
            f"({noise['measurements']} trials of the default); "
            f"a single gain below {noise['credible_gain']:.1%} says nothing"
        )
    change = rows[-1]["tps"] / rows[0]["tps"]
    drift = f" From its first trial to its last the default changed by {gain_text(change)}." if len(rows) > 1 else ""
    numbers = details(
        "Numbers", ("trial", "minute", "tok/s"), [(e["trial"], f"{e['minutes']:.2f}", tps_text(e["tps"])) for e in rows]
    )
    body = f"<p>{plain(told[0].upper() + told[1:])}.{plain(drift)}</p>{charts.drift(rows, noise['sigma'])}"
    return card("Noise and drift", body + note("Band: two standard deviations around the median.") + numbers)


def _curve(facts: _Data) -> str:
    rows = facts["curve"]
    if not rows:
        return ""
    cells = [
        (
            format_size(e["budget_bytes"]),
            tps_text(e["default_tps"]),
            tps_text(e["decode_tps"]),
            e["status"].replace("_", " "),
        )
        for e in rows
    ]
    legend = charts.legend(("dot", "base", "default"), ("dot", "ours", "found"))
    head = ("budget", "default tok/s", "found tok/s", "status")
    return card("Budgets against speed", legend + charts.budgets(rows) + details("Numbers", head, cells))


def _dead(facts: _Data) -> str:
    dead = facts["dead"]
    if dead is None:
        return card("Knobs that do nothing here", "<p>Not told: the profile of this study was not found.</p>")
    if not dead:
        return card("Knobs that do nothing here", "<p>None was found.</p>")
    return card("Knobs that do nothing here", table(("knob", "why"), list(dead.items())))


def _circumstances(facts: _Data) -> str:
    study = facts["study"]
    rows = [
        ("model", study["model"]),
        ("checkpoint", study["fingerprint"]),
        ("machine", study["hardware"]),
        ("objective", study["objective"]),
        ("workload", study["workload"]),
        *((f"procedure, {key.replace('_', ' ')}", value) for key, value in study["procedure"].items()),
        ("fixed by the user", ", ".join(study["fixed"]) or "nothing"),
        ("trials", f"{study['trials']}, {seconds_text(study['seconds'])} in all"),
        ("first and last trial", f"{study['begun']} … {study['last']}"),
        *((key, value) for key, value in facts["versions"].items()),
        *((key.replace("_", " "), value) for key, value in facts["conditions"].items() if value is not None),
    ]
    command = f'<h3>Again</h3><pre tabindex="0">{plain(facts["command"])}</pre>'
    return card("Machine, model, versions", table(("", ""), rows) + command, "wide")
