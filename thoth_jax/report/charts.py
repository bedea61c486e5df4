"""Line charts as SVG, written by hand: small, sharp, no library, no script."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 360, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 8, 22
_MOST_POINTS = 240  # more are averaged, so that a page of long runs stays small
_SMOOTHED_FROM = 40  # points; shorter curves are drawn as they are
COLOURS = 8  # classes c0 to c7 of the page's style sheet


class Series(NamedTuple):
    """A curve: its label, steps and values (finite), colour (a number), and whether its points are marked."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    colour: int
    marked: bool = False
    dashed: bool = False


def chart(title: str, series: Sequence[Series], *, log: bool = False) -> str:
    """A chart of curves as HTML: title, the newest value where there is one curve, legend, SVG; "" without any point.

    Args:
      title: plain text.
      series: at least one point each, or they are left out.
      log: logarithmic values; what is not positive is left out.
    """
    if log:
        series = [_positive(one) for one in series]
    series = [one for one in series if len(one.steps)]
    if not series:
        return ""
    newest = f' <b class="now">{number(series[0].values[-1])}</b>' if len(series) == 1 else ""
    label = html.escape(title)
    return (
        f"<figure><figcaption>{label}{newest}</figcaption>{_legend(series)}"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{plot(series, log=log)}</svg></figure>'
    )


def plot(series: Sequence[Series], *, log: bool = False) -> str:
    """The inside of an SVG of WIDTH x HEIGHT: grid and curves. At least one point; with `log` all values positive."""
    values = [value for one in series for value in one.values]
    steps = [step for one in series for step in one.steps]
    across, up = _Axis(min(steps), max(steps), whole=True), _Axis(min(values), max(values), log=log)

    def place(step: float, value: float) -> str:
        x = _LEFT + across.share(step) * (WIDTH - _LEFT - _RIGHT)
        y = HEIGHT - _BOTTOM - up.share(value) * (HEIGHT - _TOP - _BOTTOM)
        return f"{x:.1f},{y:.1f}"

    parts = [_grid(across, up)]
    for one in series:
        parts.append(_curve(one, place))
    return "".join(parts)


def number(value: float) -> str:
    """A number in at most some six letters."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


class _Axis:
    """Values to shares 0 to 1 of the axis, and where its ticks are."""

    def __init__(self, low: float, high: float, *, log: bool = False, whole: bool = False):
        self._log = log
        if log:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            last = max(last, first + 1)
            self._low, self._high = float(first), float(last)
            every = max(1, (last - first + 3) // 4)
            self.ticks = [10.0**power for power in range(first, last + 1, every)]
            return
        step = _nice((high - low or abs(high)) / 4)
        if whole:
            step = max(1.0, step)
            self._low, self._high = low, max(high, low + 1)
        else:
            self._low, self._high = math.floor(low / step) * step, math.ceil(high / step) * step
            if self._low == self._high:
                self._low, self._high = (self._low - step if low < 0 else 0.0), self._high + step
        first = math.ceil(self._low / step - 1e-9)
        last = math.floor(self._high / step + 1e-9)
        self.ticks = [tick * step for tick in range(first, min(last, first + 12) + 1)]

    def share(self, value: float) -> float:
        value = math.log10(value) if self._log else value
        return (value - self._low) / (self._high - self._low)


def _nice(step: float) -> float:
    """1, 2 or 5 times a power of ten, at least `step`."""
    if step <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _grid(across: _Axis, up: _Axis) -> str:
    parts = []
    for tick in up.ticks:
        y = HEIGHT - _BOTTOM - up.share(tick) * (HEIGHT - _TOP - _BOTTOM)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 5}" y="{y + 3.5:.1f}">{number(tick)}</text>')
    for tick in across.ticks:
        x = _LEFT + across.share(tick) * (WIDTH - _LEFT - _RIGHT)
        parts.append(f'<text class="x" x="{x:.1f}" y="{HEIGHT - 6}">{number(tick)}</text>')
    return "".join(parts)


def _curve(one: Series, place) -> str:
    steps, values = _thinned(one.steps, one.values)
    colour, parts = f"c{one.colour % COLOURS}", []
    smooth = not one.marked and len(values) >= _SMOOTHED_FROM
    if smooth:
        parts.append(f'<polyline class="{colour} raw" points="{_points(steps, values, place)}"/>')
        values = _smoothed(values)
    if len(values) > 1:
        dashed = " dash" if one.dashed else ""
        parts.append(f'<polyline class="{colour}{dashed}" points="{_points(steps, values, place)}"/>')
    if one.marked or len(values) == 1:
        for step, value in zip(steps, values, strict=True):
            x, y = place(step, value).split(",")
            said = html.escape(f"{one.label} {number(value)} at step {number(step)}")
            parts.append(f'<circle class="{colour}" cx="{x}" cy="{y}" r="2.6"><title>{said}</title></circle>')
    return "".join(parts)


def _points(steps, values, place) -> str:
    return " ".join(place(step, value) for step, value in zip(steps, values, strict=True))


def _thinned(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most _MOST_POINTS points, each the mean of as many neighbours."""
    size = -(-len(steps) // _MOST_POINTS)

    def means(numbers):
        return [sum(numbers[at : at + size]) / len(numbers[at : at + size]) for at in range(0, len(numbers), size)]

    return (list(steps), list(values)) if size <= 1 else (means(steps), means(values))


def _smoothed(values: Sequence[float]) -> list[float]:
    """Centred means over a tenth of the curve; shorter windows at its ends."""
    half, found = max(1, len(values) // 20), []
    for at in range(len(values)):
        reach = min(half, at, len(values) - 1 - at)
        window = values[at - reach : at + reach + 1]
        found.append(sum(window) / len(window))
    return found


def _positive(one: Series) -> Series:
    kept = [(step, value) for step, value in zip(one.steps, one.values, strict=True) if value > 0]
    return one._replace(steps=[step for step, _ in kept], values=[value for _, value in kept])


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    rows = []
    for one in series:
        mark = "dot" if one.marked else "line"
        rows.append(f'<span><i class="{mark} c{one.colour % COLOURS}"></i>{html.escape(one.label)}</span>')
    return f'<div class="legend">{"".join(rows)}</div>'
