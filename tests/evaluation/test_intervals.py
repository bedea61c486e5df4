"""Bootstrap intervals against what theory says of them."""

import math

import numpy as np
import pytest

from thoth_jax.evaluation import intervals
from thoth_jax.evaluation.intervals import (
    bootstrap_mean,
    bootstrap_statistic,
    bootstrap_statistics,
    paired_difference,
    paired_statistic,
    paired_statistics,
)


def test_interval_is_that_of_the_normal_limit():
    values = np.random.default_rng(0).normal(3, 2, 400)
    mean, low, high = bootstrap_mean(values, samples=4000)
    half = 1.96 * values.std() / math.sqrt(400)
    assert mean == pytest.approx(values.mean())
    assert low == pytest.approx(mean - half, abs=0.03) and high == pytest.approx(mean + half, abs=0.03)


def test_coverage_is_near_the_level():
    generator = np.random.default_rng(1)
    inside = 0
    for seed in range(200):
        _, low, high = bootstrap_mean(generator.random(60) < 0.3, samples=400, level=0.9, seed=seed)
        inside += low <= 0.3 <= high
    assert 0.8 < inside / 200 < 0.97


def test_rows_of_a_cluster_are_drawn_together():
    values = np.repeat(np.random.default_rng(2).normal(size=50), 20)
    clusters = np.repeat([f"report {number}" for number in range(50)], 20)
    alone, together = bootstrap_mean(values), bootstrap_mean(values, clusters)
    assert together.high - together.low > 3 * (alone.high - alone.low)
    # 20 copies of a row carry no more than the row does.
    assert together == pytest.approx(bootstrap_mean(values[::20], clusters[::20]), abs=1e-12)


def test_unequal_clusters_weigh_by_their_rows():
    mean, low, high = bootstrap_mean([1, 1, 1, 0], [0, 0, 0, 1])
    assert mean == 0.75 and low == 0 and high == 1


def test_seed_level_and_samples_count():
    values = np.random.default_rng(3).random(30)
    assert bootstrap_mean(values, seed=1) == bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=2)
    wide, narrow = bootstrap_mean(values, level=0.99), bootstrap_mean(values, level=0.5)
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    assert bootstrap_mean(values, samples=10) != bootstrap_mean(values, samples=2000)


def test_draws_in_parts_are_the_same_draws(monkeypatch):
    values = np.random.default_rng(4).random(40)
    whole = bootstrap_mean(values, samples=100)
    monkeypatch.setattr(intervals, "_CELLS", 160)
    assert bootstrap_mean(values, samples=100) == pytest.approx(whole, abs=1e-12)


def test_one_cluster_has_no_interval():
    mean, low, high = bootstrap_mean([1.0, 0.0], ["a", "a"])
    assert mean == 0.5 and math.isnan(low) and math.isnan(high)
    assert math.isnan(paired_difference([1.0], [0.0]).p_value)


def test_ratio_is_that_of_the_sums():
    columns = np.array([[1, 2], [0, 1], [3, 3], [0, 0]])
    ratio = bootstrap_statistic(lambda sums: sums[:, 0] / sums[:, 1], columns)
    assert ratio.mean == pytest.approx(4 / 6) and 0 <= ratio.low <= ratio.mean <= ratio.high <= 1
    # Draws of the last row alone are 0 / 0 and left out; where every draw is, so is the interval.
    nothing = bootstrap_statistic(lambda sums: sums[:, 0] / sums[:, 1], np.zeros((3, 2)))
    assert all(map(math.isnan, nothing))


def test_pairs_see_what_separate_intervals_hide():
    generator = np.random.default_rng(5)
    difficulty = generator.normal(0, 5, 200)
    a, b = difficulty + 0.3 + generator.normal(0, 0.5, 200), difficulty + generator.normal(0, 0.5, 200)
    difference = paired_difference(a, b)
    assert difference.mean == pytest.approx(a.mean() - b.mean())
    assert 0 < difference.low < difference.high and difference.p_value < 0.01
    assert bootstrap_mean(a).low < bootstrap_mean(b).high
    other = paired_difference(b, a)
    assert other.mean == pytest.approx(-difference.mean) and other.high < 0


def test_p_value_of_no_difference_is_uniform():
    generator = np.random.default_rng(6)
    found = [paired_difference(*generator.normal(size=(2, 40)), samples=300, seed=seed).p_value for seed in range(200)]
    assert 0.01 <= np.mean(np.array(found) < 0.05) <= 0.12
    assert paired_difference([1, 0, 1], [1, 0, 1]).p_value == 1


def test_paired_statistic_of_ratios():
    a, b = np.array([[1, 1], [1, 1], [1, 2]]), np.array([[0, 1], [1, 1], [0, 2]])
    assert paired_statistic(lambda sums: sums[:, 0] / sums[:, 1], a, b).mean == pytest.approx(3 / 4 - 1 / 4)


def test_several_statistics_share_their_draws():
    columns = np.random.default_rng(7).random((30, 2))
    both = bootstrap_statistics(lambda sums: sums, columns, seed=3)
    assert both == [bootstrap_statistic(lambda sums, at=at: sums[:, at], columns, seed=3) for at in range(2)]
    pairs = paired_statistics(lambda sums: sums, columns, columns[::-1], seed=3)
    assert pairs[1] == paired_statistic(lambda sums: sums[:, 1], columns, columns[::-1], seed=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_mean([]), "one row"),
        (lambda: bootstrap_mean([1.0, float("nan")]), "row 1 is not finite"),
        (lambda: bootstrap_mean([1.0, 2.0], ["a"]), "2 rows but 1 clusters"),
        (lambda: bootstrap_mean([1.0, 2.0], level=1.0), "level"),
        (lambda: bootstrap_mean([1.0, 2.0], samples=0), "samples"),
        (lambda: paired_difference([1.0, 2.0], [1.0]), "same rows"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
