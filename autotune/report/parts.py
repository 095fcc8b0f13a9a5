"""Cards, tables and figures: the HTML that sections are put together from.  All text is escaped here."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.report.svg import plain

__all__ = ["card", "details", "figure", "note", "table"]


def figure(name: str, number: str, unit: str, *, strong: bool = False) -> str:
    kind = ' class="strong"' if strong else ""
    return f"<div{kind}><span>{plain(name)}</span><b>{plain(number)}</b><small>{plain(unit)}</small></div>"


def card(title: str, body: str, kind: str = "", *, code: bool = False) -> str:
    shown = f"<code>{plain(title)}</code>" if code else plain(title)
    return f'<section class="{kind}"><h2>{shown}</h2>{body}</section>'


def note(text: str) -> str:
    return f'<p class="note">{plain(text)}</p>'


def details(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return f"<details><summary>{plain(title)}</summary>{table(head, rows)}</details>"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns of numbers are aligned on the right."""
    right = [all(_numeric(str(row[n])) for row in rows) and n > 0 for n in range(len(head))]
    kinds = [' class="n"' if each else "" for each in right]
    above = "".join(f'<th scope="col"{kind}>{plain(each)}</th>' for each, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{plain(each)}</td>" for each, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{above}</tr></thead>" if any(head) else ""
    return f'<div class="scroll" tabindex="0"><table>{top}<tbody>{body}</tbody></table></div>'


def _numeric(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "-+"
