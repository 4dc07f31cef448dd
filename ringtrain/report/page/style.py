"""The style of the page: light and dark, on a screen, a telephone and paper."""

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --pale: #5d6670; --rule: #d9dde2; --band: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181c; --ink: #e3e6ea; --pale: #9aa4af; --rule: #363c44; --band: #1e2329; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 74rem; overflow-wrap: break-word;
  background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 1.7rem; overflow-wrap: anywhere; }
h2 { margin: 2.2rem 0 .6rem; font-size: 1.2rem; border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
h3 { margin: 1.6rem 0 .4rem; font-size: 1.02rem; }
p { margin: .3rem 0; }
.pale, small { color: var(--pale); }
code, .facts td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .87em; overflow-wrap: anywhere; }
pre { margin: .4rem 0; padding: .6rem .8rem; background: var(--band); white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .4rem 0 1rem; }
table { border-collapse: collapse; font-size: .92em; }
th, td { padding: .22rem .9rem .22rem 0; text-align: left; vertical-align: top; }
td, tbody th { border-bottom: 1px solid var(--rule); }
thead th { border-bottom: 2px solid var(--rule); font-weight: 600; vertical-align: bottom; }
td:first-child { white-space: nowrap; }
tbody th { font-weight: 500; color: var(--pale); white-space: nowrap; }
.figure { text-align: right; font-variant-numeric: tabular-nums; }
.figures { display: flex; flex-wrap: wrap; gap: .4rem 2rem; margin: 1rem 0; }
.figures div { min-width: 6rem; }
.figures b { display: block; font-size: 1.35rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.figures span { color: var(--pale); font-size: .85em; }
svg { display: block; max-width: 100%; height: auto; }
details summary { cursor: pointer; color: var(--pale); margin: .5rem 0; }
@media screen and (max-width: 44rem) { svg { max-width: none; width: 44rem; } }
@media print {
  :root { --paper: #ffffff; --ink: #000000; --pale: #444444; --rule: #cccccc; --band: #f4f4f4; }
  @page { margin: 14mm; }
  body { padding: 0; max-width: none; font-size: 10pt; }
  h2, h3, h2 + p, h3 + p { break-after: avoid; }
  svg, tr, pre, .figures { break-inside: avoid; }
  .scroll { overflow: visible; }
  details { display: none; }
}
"""
