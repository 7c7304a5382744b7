"""CSS of the report: one column, for desktop, phone and A4 print."""

from __future__ import annotations

from chumoku.probe.bilingual import BASE_CSS

CSS = (
    BASE_CSS
    + """
:root { --holds: #4f7f5b; --partly: #a06f1c; --fails: #b23a48; --failed: #6d767e; --unjudged: #5b6f95; }
.stripe { display: block; width: 100%; height: 14px; border-radius: 2px; }
rect.holds { fill: var(--holds); } rect.partly { fill: #c98b2b; } rect.fails { fill: var(--fails); }
rect.failed { fill: var(--failed); } rect.unjudged { fill: var(--unjudged); }
.tiles { list-style: none; display: flex; flex-wrap: wrap; gap: 8px 36px; padding: 0; margin: 12px 0 28px; }
.tiles b { font-size: 34px; font-weight: 600; margin-right: 8px; line-height: 1.2; }
.holds { color: var(--holds); } .partly { color: var(--partly); } .fails { color: var(--fails); }
.failed { color: var(--failed); } .unjudged { color: var(--unjudged); }
.overview { margin: 0 0 30px; }
.overview th { border-bottom: 1px solid var(--ink); padding: 4px 10px 4px 0; }
.overview td { border-bottom: 1px solid var(--rule); padding: 4px 10px 4px 0; vertical-align: top; }
.overview td a { color: inherit; text-decoration-color: var(--rule); text-underline-offset: 3px; }
.overview td a:hover { text-decoration-color: currentColor; }
.id { color: var(--soft); } .verdict { white-space: nowrap; }
article { border-top: 1px solid var(--ink); padding: 22px 0 30px; scroll-margin-top: 10px; }
.over { margin: 0 0 2px; font-size: 13px; color: var(--soft); }
.judged { margin: 0 0 8px; font-size: 18px; } .judged .when { color: var(--ink); font-size: 16px; }
.when::before { content: "— "; color: var(--soft); }
.correction { display: grid; grid-template-columns: 1fr 1fr 1fr; background: var(--tint); margin: 0 0 18px; }
.correction div { padding: 10px 16px; border-left: 1px solid var(--rule); }
.correction div:first-child { border-left: 0; }
.correction p { margin: 2px 0 0; overflow-wrap: anywhere; }
.correction s { color: var(--fails); text-decoration-thickness: 1px; } .correction b { color: var(--holds); }
.numbers { width: auto; margin: 0 0 10px; font-size: 13.5px; }
.numbers th, .numbers td { padding: 1px 18px 1px 0; vertical-align: top; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.numbers th { font-weight: 400; white-space: nowrap; }
details { font-size: 13.5px; margin: 0 0 8px; } summary { cursor: pointer; color: var(--soft); }
pre { overflow-x: auto; max-height: 420px; background: var(--tint); padding: 12px; font-size: 12px; line-height: 1.45; }
.stamp { font-size: 12px; color: var(--soft); margin: 8px 0 0; overflow-wrap: anywhere; }
@media (max-width: 700px) {
  .correction { grid-template-columns: 1fr; }
  .correction div { border-left: 0; border-top: 1px solid var(--rule); } .correction div:first-child { border-top: 0; }
  .overview .id, .overview th:nth-child(2) { display: none; } .verdict { white-space: normal; }
  .tiles { flex-direction: column; gap: 0; } .numbers th { white-space: normal; overflow-wrap: anywhere; }
}
@page { size: A4; margin: 16mm 15mm; }
@media print {
  body { background: none; font-size: 10pt; line-height: 1.5; } .page { max-width: none; padding: 0; }
  .switch, details { display: none; } h1 { font-size: 19pt; } h2 { font-size: 13pt; break-after: avoid; }
  figure, .correction, .judged, tr { break-inside: avoid; } figure img { max-height: 95mm; width: auto; }
  .terms { grid-template-columns: 7em 1fr; } table { font-size: 9pt; } .tiles b { font-size: 18pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
)
