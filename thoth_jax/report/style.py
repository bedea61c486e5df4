"""The style sheet of the page; light or dark as the reader's system asks."""

# Of curves, on a light ground.
PALETTE = ("#2563b8", "#d1691b", "#2a8a4f", "#b8327a", "#7552c2", "#0f8a94", "#a07a00", "#6b7280")

CSS = """
:root { color-scheme: light dark; --ink: #1c2126; --dim: #66707a; --line: #dde1e6; --back: #fff; --card: #f7f8fa;
  --good: #177245; --good-back: #e3f4ea; --mid: #8a5a00; --mid-back: #fdf1d8; --bad: #a8261f; --bad-back: #fce6e4;
  --gone: #57606a; --gone-back: #eceff2;
  PALETTE }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --dim: #98a2ad; --line: #343b43; --back: #14181c;
  --card: #1c2126; --good: #7ed3a2; --good-back: #16321f; --mid: #eabf66; --mid-back: #3a2c0c; --bad: #f2938c;
  --bad-back: #411a17; --gone: #a7b0ba; --gone-back: #2a3037;
  --c0: #79aef2; --c1: #f0a05f; --c2: #71c992; --c3: #ec83b8;
  --c4: #b39bf0; --c5: #5dc4cd; --c6: #d9b944; --c7: #a3abb5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1220px; padding: 24px 20px 60px; color: var(--ink); background: var(--back);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 36px 0 6px; }
h2::first-letter { text-transform: uppercase; }
h3 { font-size: 15px; margin: 22px 0 8px; }
p { margin: 4px 0; } .dim { color: var(--dim); }
nav { margin: 10px 0 0; } nav a { margin-right: 14px; color: var(--c0); }
.charts { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(330px, 1fr)); margin: 12px 0; }
figure { margin: 0; padding: 10px 12px 6px; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  display: flex; flex-direction: column; }
figure svg { margin-top: auto; }
figcaption { font-weight: 600; font-size: 14px; overflow-wrap: anywhere; }
.now { float: right; font-weight: 400; color: var(--dim); font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--dim); font: 10.5px system-ui, sans-serif; } .y { text-anchor: end; } .x { text-anchor: middle; }
.grid { stroke: var(--line); stroke-width: 1; }
polyline { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
polyline.raw { opacity: .28; stroke-width: 1; } polyline.dash { stroke-dasharray: 4 3; stroke-width: 1.3; }
circle { fill: currentColor; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
.legend { font-size: 12.5px; color: var(--dim); } .legend span { margin-right: 12px; white-space: nowrap; }
.legend i { display: inline-block; margin-right: 5px; background: currentColor; vertical-align: middle; }
i.line { width: 16px; height: 3px; } i.dot { width: 8px; height: 8px; border-radius: 4px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; margin: 8px 0; }
th, td { padding: 5px 12px 5px 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; vertical-align: bottom; }
td small { display: block; color: var(--dim); font-size: 11.5px; }
.answer { border: 1px solid var(--line); border-radius: 6px; padding: 10px 14px; margin: 12px 0;
  background: var(--card); }
.answer .id { font-weight: 600; overflow-wrap: anywhere; } .answer .score { float: right; font-weight: 600; }
.answer td { text-align: left; font-size: 12.5px; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; }
pre.text { font: 12.5px/1.45 ui-monospace, Menlo, Consolas, monospace; margin: 6px 0;
  max-height: 230px; overflow: auto; }
.formula { font: 12.5px/1.45 ui-monospace, Menlo, Consolas, monospace; margin: 6px 0; overflow-wrap: anywhere; }
.step { border-left: 4px solid; border-radius: 3px; padding: 3px 8px; margin: 4px 0; font-size: 13px; }
.step code { font: 12.5px ui-monospace, Menlo, Consolas, monospace; color: var(--ink); white-space: pre-wrap;
  overflow-wrap: anywhere; unicode-bidi: isolate; }
.step .tag { display: inline-block; min-width: 84px; font-size: 12px; }
.step .more { display: block; padding-left: 88px; font-size: 12px; color: var(--dim); overflow-wrap: anywhere; }
.step .more code { color: var(--dim); }
.matched { border-color: var(--good); background: var(--good-back); color: var(--good); }
.mismatched { border-color: var(--mid); background: var(--mid-back); color: var(--mid); }
.added { border-color: var(--bad); background: var(--bad-back); color: var(--bad); }
.missing { border-color: var(--gone); background: var(--gone-back); color: var(--gone); border-left-style: dashed; }
summary { cursor: pointer; color: var(--dim); font-size: 13px; } details { margin: 6px 0; }
@media print { .charts { grid-template-columns: repeat(3, 1fr); } body { max-width: none; } }
""".replace("PALETTE", " ".join(f"--c{number}: {colour};" for number, colour in enumerate(PALETTE)))
