"""Charts: every point is where it belongs, whatever the numbers are."""

import math
import re
import xml.etree.ElementTree

import pytest

from thoth_jax.report.charts import HEIGHT, WIDTH, Series, chart, number


def svg(text):
    return xml.etree.ElementTree.fromstring(re.search("<svg.*</svg>", text, re.S).group())


def points(text):
    return [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in svg(text).iter("polyline")
    ]


def test_points_rise_with_the_values_and_stay_inside():
    [line] = points(chart("Reward", [Series("train", [1, 2, 3, 4], [0.0, 1.0, 2.0, -1.0], 0)]))
    xs, ys = zip(*line, strict=True)
    assert list(xs) == sorted(xs) and ys[2] < ys[1] < ys[0] < ys[3]  # SVG counts downwards
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.11)
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.11)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in line)


def test_logarithmic_values():
    [line] = points(chart("norm", [Series("train", [1, 2, 3, 4], [1e-6, 1e-4, 0.0, 1e-2], 0)], log=True))
    ys = [y for _, y in line]
    assert len(line) == 3 and ys[0] - ys[1] == pytest.approx(
        ys[1] - ys[2], abs=0.11
    )  # what is not positive is left out


@pytest.mark.parametrize(
    "values", [[0.0], [5.0, 5.0], [1e-300, 2e-300], [-1e299, 1e299], [0.1 + 1e-15, 0.1], [1e12, 1e12 + 1], [-3.0] * 5]
)
@pytest.mark.parametrize("log", [False, True])
def test_odd_numbers(values, log):
    text = chart("x", [Series("train", range(len(values)), values, 0)], log=log)
    assert not text or "nan" not in text.lower() and len(text) < 10_000
    for line in points(text) if text else ():
        assert all(-1 <= x <= WIDTH + 1 and -1 <= y <= HEIGHT + 1 and math.isfinite(x + y) for x, y in line)


def test_long_curves_are_thinned_and_smoothed():
    steps = list(range(100_000))
    text = chart("loss", [Series("train", steps, [float(step % 2) for step in steps], 0)])
    raw, smooth = points(text)
    assert len(raw) == len(smooth) <= 240 and len(text) < 20_000


def test_titles_and_labels_are_escaped():
    series = [Series("<b>one", [1, 2], [1, 2], 0), Series("two", [1], [1], 9, marked=True)]
    text = chart("<script>", series)
    assert "&lt;script&gt;" in text and "&lt;b&gt;one" in text and "<script>" not in text and "<b>one" not in text
    assert 'class="c1"' in text  # colours begin anew


def test_without_points_there_is_no_chart():
    assert chart("x", []) == "" == chart("x", [Series("a", [], [], 0)])
    assert chart("x", [Series("a", [1], [-1.0], 0)], log=True) == ""


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.12345, "0.1235"), (1e-5, "1.0e-5"), (12345, "12,345"), (2.5e7, "2.5e7"), (3, "3")]
)
def test_numbers(value, text):
    assert number(value) == text
