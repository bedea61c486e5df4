"""Curves of a run for a notebook: one SVG picture that Jupyter shows where it is the value of a cell."""

import html
from collections.abc import Mapping, Sequence

from thoth_jax.report.charts import HEIGHT, WIDTH, Series, plot
from thoth_jax.report.runs import read_runs
from thoth_jax.report.style import PALETTE

_COLUMNS = 3
_HEAD = 34  # height of a title and its legend
_STYLE = (
    "text { font: 10.5px sans-serif; fill: #66707a; } .y { text-anchor: end; } .x { text-anchor: middle; }"
    " .title { font: bold 13px sans-serif; fill: #1c2126; } .grid { stroke: #dde1e6; }"
    " polyline { fill: none; stroke: currentColor; stroke-width: 1.8; } polyline.raw { opacity: .3; stroke-width: 1; }"
    " circle, .key { fill: currentColor; } "
) + " ".join(f".c{number} {{ color: {colour}; }}" for number, colour in enumerate(PALETTE))


class Figure:
    """An SVG picture; `svg` is its text."""

    def __init__(self, svg: str):
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg


def figure(run_dir: str, metrics: Mapping[str, str] | Sequence[str]) -> Figure:
    """Curves of a run, finished or not; train and held-out values of a metric share a chart.

    Args:
      run_dir: the run directory.
      metrics: names as in metrics.jsonl, with their titles where it is a mapping. Those that the run lacks are left
        out.

    Raises:
      InputError: there is no run.
    """
    [run] = read_runs([run_dir]).runs
    titles = dict(metrics) if isinstance(metrics, Mapping) else {name: name for name in metrics}
    cells = []
    for name, title in titles.items():
        series = [
            Series(label, *run.curves[kind, name], colour, kind == "eval")
            for colour, (kind, label) in enumerate((("train", "train"), ("eval", "held-out")))
            if (kind, name) in run.curves
        ]
        if series:
            cells.append(_cell(title, series))
    columns = min(_COLUMNS, len(cells)) or 1
    rows, height = -(-len(cells) // columns), HEIGHT + _HEAD
    placed = "".join(
        f'<g transform="translate({at % columns * (WIDTH + 14)} {at // columns * height})">{cell}</g>'
        for at, cell in enumerate(cells)
    )
    size = f'width="{columns * (WIDTH + 14)}" height="{rows * height}"'
    view = f'viewBox="0 0 {columns * (WIDTH + 14)} {rows * height}"'
    return Figure(f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view}><style>{_STYLE}</style>{placed}</svg>')


def _cell(title: str, series: Sequence[Series]) -> str:
    legend = "".join(
        f'<tspan class="key c{one.colour}" dx="{8 if at else 0}">\N{BLACK CIRCLE}</tspan> {html.escape(one.label)}'
        for at, one in enumerate(series)
    )
    return (
        f'<text class="title" x="12" y="14">{html.escape(title)}</text><text x="12" y="29">{legend}</text>'
        f'<g transform="translate(0 {_HEAD})">{plot(series)}</g>'
    )
