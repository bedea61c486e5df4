"""Bootstrap intervals of means and other statistics, and paired differences between two runs on the same rows.

Rows that are not independent (samples of one prompt, items of one document or template) share a cluster, and whole
clusters are drawn with replacement (Davison and Hinkley, Bootstrap Methods and their Application, 1997, 3.8).

    >>> bootstrap_mean([1.0, 1.0, 1.0], ["a", "b", "c"])
    Interval(mean=1.0, low=1.0, high=1.0)
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]  # sums [S, M] -> [S]
Statistics = Callable[[np.ndarray], np.ndarray]  # sums [S, M] -> [S, Q]

_CELLS = 2**21  # clusters times draws that are in memory at once


class Interval(NamedTuple):
    """A statistic and its percentile interval; the bounds are NaN where one cluster leaves nothing to draw from."""

    mean: float
    low: float
    high: float


class Difference(NamedTuple):
    """First run minus second, its percentile interval, and the two-sided p of the paired bootstrap test."""

    mean: float
    low: float
    high: float
    p_value: float


def bootstrap_mean(
    values, clusters: Sequence | None = None, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> Interval:
    """The mean of N values and its interval.

    Args:
      values: [N] numbers.
      clusters: [N] label of the cluster of each row, any type that sorts; None: every row is its own.
      samples: draws.
      level: share of draws inside of the interval.
      seed: the same seed gives the same draws.

    Raises:
      ValueError: no rows; lists that differ in length; a value that is not finite; samples or level out of range.
    """
    return bootstrap_statistic(_mean, _counted(values), clusters, samples=samples, level=level, seed=seed)


def bootstrap_statistic(
    fn: Statistic, columns, clusters: Sequence | None = None, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> Interval:
    """A statistic of column sums and its interval: ratios, F1 from confusion counts, differences of them.

    Args:
      fn: sums of the columns over the rows of a draw, [S, M] -> statistic [S]; NaN where a draw leaves it undefined,
        and such draws are left out of the interval. It is called with several draws at once.
      columns: [N, M] numbers, one row each; [N] counts as one column.
      clusters, samples, level, seed: as in `bootstrap_mean`.

    Raises:
      ValueError: as `bootstrap_mean`.
    """
    return bootstrap_statistics(_one(fn), columns, clusters, samples=samples, level=level, seed=seed)[0]


def bootstrap_statistics(
    fn: Statistics,
    columns,
    clusters: Sequence | None = None,
    *,
    samples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> list[Interval]:
    """Q statistics of the same draws: as `bootstrap_statistic`, but `fn` returns [S, Q]."""
    point, drawn = _draws(fn, columns, clusters, samples, seed)
    return [Interval(float(value), *_bounds(own, level)) for value, own in zip(point, drawn.T, strict=True)]


def paired_difference(
    a, b, clusters: Sequence | None = None, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> Difference:
    """The mean of a minus the mean of b, both of the same N rows in the same order.

    Args:
      a, b: [N] numbers.
      clusters, samples, level, seed: as in `bootstrap_mean`.

    Raises:
      ValueError: as `bootstrap_mean`.
    """
    return paired_statistic(_mean, _counted(a), _counted(b), clusters, samples=samples, level=level, seed=seed)


def paired_statistic(
    fn: Statistic, a, b, clusters: Sequence | None = None, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> Difference:
    """`fn` of a minus `fn` of b: both are drawn together, so that what the runs share does not widen the interval.

    The p value is the share of draws at least as far from the difference found as that is from 0, the found one
    counted as a draw (the shift method of Efron and Tibshirani, An Introduction to the Bootstrap, 1993, ch. 16).

    Args:
      fn: as in `bootstrap_statistic`.
      a, b: [N, M] columns of the two runs.
      clusters, samples, level, seed: as in `bootstrap_mean`.

    Raises:
      ValueError: as `bootstrap_mean`.
    """
    return paired_statistics(_one(fn), a, b, clusters, samples=samples, level=level, seed=seed)[0]


def paired_statistics(
    fn: Statistics, a, b, clusters: Sequence | None = None, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> list[Difference]:
    """Q differences of the same draws: as `paired_statistic`, but `fn` returns [S, Q]."""
    a, b = _matrix(a), _matrix(b)
    if a.shape != b.shape:
        raise ValueError(f"paired runs need the same rows: {a.shape} and {b.shape}")
    width = a.shape[1]
    both = np.concatenate([a, b], axis=1)
    point, drawn = _draws(lambda sums: fn(sums[:, :width]) - fn(sums[:, width:]), both, clusters, samples, seed)
    return [
        Difference(float(value), *_bounds(own, level), _p_value(value, own))
        for value, own in zip(point, drawn.T, strict=True)
    ]


def _p_value(point: float, drawn: np.ndarray) -> float:
    drawn = drawn[np.isfinite(drawn)]
    if not drawn.size or np.isnan(point):
        return float("nan")
    # The addend counts draws that differ from the bound by rounding only.
    extreme = np.abs(drawn - point) >= abs(point) - 1e-12
    return float((1 + extreme.sum()) / (1 + drawn.size))


def _one(fn: Statistic) -> Statistics:
    return lambda sums: fn(sums)[:, None]


def _mean(sums: np.ndarray) -> np.ndarray:
    return sums[:, 0] / sums[:, 1]


def _counted(values) -> np.ndarray:
    values = _matrix(values)
    return np.concatenate([values, np.ones((values.shape[0], 1))], axis=1)


def _matrix(columns) -> np.ndarray:
    columns = np.asarray(columns, np.float64)
    columns = columns[:, None] if columns.ndim == 1 else columns
    if columns.ndim != 2 or not columns.shape[0]:
        raise ValueError(f"expected one row of numbers or more, not an array of shape {columns.shape}")
    if not np.isfinite(columns).all():
        raise ValueError(f"row {int(np.nonzero(~np.isfinite(columns).all(1))[0][0])} is not finite")
    return columns


def _draws(fn: Statistics, columns, clusters, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The statistics of all rows [Q], and of each draw of clusters [S, Q]; no draws (S = 0) of one cluster."""
    if samples < 1:
        raise ValueError(f"samples = {samples}: expected 1 or more")
    sums = _cluster_sums(_matrix(columns), clusters)
    # An undefined ratio is NaN, which is what `fn` is asked for.
    with np.errstate(invalid="ignore", divide="ignore"):
        point = fn(sums.sum(0, keepdims=True))[0]
        if sums.shape[0] == 1:
            return point, np.empty((0, point.shape[0]))
        return point, np.concatenate([fn(weights @ sums) for weights in _weights(sums.shape[0], samples, seed)])


def _cluster_sums(columns: np.ndarray, clusters) -> np.ndarray:
    if clusters is None:
        return columns
    clusters = np.asarray(clusters)
    if clusters.shape != columns.shape[:1]:
        raise ValueError(f"{columns.shape[0]} rows but {clusters.shape[0] if clusters.ndim else 0} clusters")
    names, number = np.unique(clusters, return_inverse=True)
    sums = np.zeros((names.shape[0], columns.shape[1]))
    np.add.at(sums, number, columns)
    return sums


def _weights(clusters: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each of K clusters is in each draw of K of them: arrays [some draws, K]."""
    generator = np.random.default_rng(seed)
    at_once = max(1, _CELLS // clusters)
    for start in range(0, samples, at_once):
        draws = min(at_once, samples - start)
        chosen = generator.integers(0, clusters, (draws, clusters))
        chosen += np.arange(draws)[:, None] * clusters
        yield np.bincount(chosen.ravel(), minlength=draws * clusters).reshape(draws, clusters).astype(np.float64)


def _bounds(drawn: np.ndarray, level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level = {level}: expected a share between 0 and 1")
    drawn = drawn[np.isfinite(drawn)]
    if not drawn.size:
        return float("nan"), float("nan")
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
