"""The page's style sheet: two palettes, one accent, two columns where there is room for them."""

__all__ = ["STYLE"]

STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#5c6570;--rule:#e3e6ea;--paper:#f6f7f8;--card:#fff;--accent:#0b6e75;
--base:#868e98;--pale:#c9ced4;--band:#e9ecef}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa4af;--rule:#2c333b;--paper:#101418;--card:#181d23;
--accent:#3cc3c9;--base:#8f99a4;--pale:#444d57;--band:#262d35}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",
Arial,sans-serif;font-variant-numeric:tabular-nums}
main,header{max-width:1160px;margin:0 auto;padding:0 16px}
header{padding-top:32px;padding-bottom:16px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;letter-spacing:-.015em;overflow-wrap:anywhere}
header p{margin:0;color:var(--soft);overflow-wrap:anywhere}
main{display:grid;grid-template-columns:minmax(0,1fr);gap:16px;padding-bottom:48px;grid-auto-flow:dense}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:18px 18px 14px;min-width:0}
h2{font-size:16px;line-height:1.3;margin:0 0 10px;letter-spacing:-.005em;overflow-wrap:anywhere}
h2 code{font-size:14.5px}
h3{font-size:14px;margin:16px 0 6px}
p{margin:0 0 10px;overflow-wrap:anywhere}
.verdict{border-top:3px solid var(--accent)}
.verdict h2{font-size:22px;margin-bottom:4px;letter-spacing:-.01em}
.verdict>svg{max-width:620px}
.lead{font-size:16px;color:var(--soft)}
.figures{display:flex;flex-wrap:wrap;gap:12px 40px;margin:14px 0}
.figures span,.figures small{display:block;color:var(--soft);font-size:13px;line-height:1.4}
.figures b{display:block;font-size:34px;font-weight:600;line-height:1.15;letter-spacing:-.02em}
.figures .strong b{color:var(--accent)}
.note{font-size:13px;line-height:1.45;color:var(--soft);margin:8px 0 6px}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font-size:11.5px;fill:var(--soft)}
.grid{stroke:var(--rule);stroke-width:1}
.axis{stroke:var(--base);stroke-width:1.5}
.ours{fill:var(--accent);stroke:var(--accent);stroke-width:0}
.base{fill:var(--base);stroke:var(--base);stroke-width:0}
.faint{fill-opacity:.5}
.tick{stroke-width:2.5}
line.base.tick{stroke:var(--ink)}
line.ours.tick{stroke:var(--accent)}
.median{stroke-width:1.2;stroke-dasharray:4 4}
.span{stroke-width:3}
line.axis{stroke-width:1.5}
.path{fill:none;stroke-width:1.8}
.ring{fill:none;stroke-width:1.4}
.failed{fill:none;stroke:var(--ink);stroke-width:1.6}
.best{fill:none;stroke:var(--accent);stroke-width:1.8;stroke-opacity:.75}
.thin{fill:none;stroke:var(--base);stroke-width:1}
.band{fill:var(--band)}
.part0{fill:var(--accent)}.part1{fill:var(--base)}.part2{fill:var(--pale)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 8px;padding:0;font-size:13px;
color:var(--soft)}
.legend li{display:flex;align-items:center;gap:6px}
.legend svg{width:13px;height:13px}
.roomy{display:none}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:left;padding:4px 14px 4px 0;border-bottom:1px solid var(--rule);vertical-align:top}
th{font-weight:500;color:var(--soft);white-space:nowrap}
td:last-child,th:last-child{padding-right:0}
.n{text-align:right}td.n{white-space:nowrap}
tbody tr:last-child td{border-bottom:0}
.scroll{overflow-x:auto}
td{overflow-wrap:break-word}
details{margin-top:8px;font-size:13.5px}
summary{cursor:pointer;color:var(--accent);width:max-content}
pre{margin:0;padding:10px 12px;background:var(--paper);border:1px solid var(--rule);border-radius:6px;font-size:13px;
white-space:pre-wrap;overflow-wrap:anywhere}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
@media(min-width:860px){main{grid-template-columns:repeat(2,minmax(0,1fr))}.wide{grid-column:1/-1}.roomy{display:block}
.tight{display:none}section{padding:22px 24px 18px}main,header{padding-left:24px;padding-right:24px}}
.halves{display:grid;grid-template-columns:minmax(0,1fr);gap:8px 40px}
@media(min-width:860px){.halves{grid-template-columns:repeat(2,minmax(0,1fr))}}
@media(max-width:560px){svg text{font-size:13.5px}section{padding:16px 14px 12px}}
@media print{section{break-inside:avoid}body{background:none}}
"""
