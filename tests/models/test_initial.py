"""Initial values look random and depend on nothing but key, name and index."""

import jax
import numpy as np
import pytest

from thoth_jax.models import initial

KEY = jax.random.key(0)


@pytest.mark.parametrize("shape", [(200_000,), (500, 400), (4, 50, 10, 100)])
def test_normal_has_the_moments_of_a_normal(shape):
    values = np.asarray(initial.normal(KEY, "w", shape), np.float64)
    moments = [(values**n).mean() for n in (1, 2, 3, 4)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.06)
    # 200,000 draws of 2**23 values: 1.2 % of them meet by chance.
    assert np.isfinite(values).all() and len(np.unique(values)) > 0.985 * values.size


def test_uniform_fills_its_range():
    values = np.asarray(initial.uniform(KEY, "w", (10, 10_000)))
    assert np.abs(values).max() < 1
    np.testing.assert_allclose(np.histogram(values, 10, (-1, 1))[0] / values.size, 0.1, atol=0.005)


def test_neighbours_are_uncorrelated():
    values = np.asarray(initial.normal(KEY, "w", (300, 300)))
    others = [values[1:, :-1], values[:-1, 1:], values[1:, 1:]]
    others += [np.asarray(initial.normal(key, name, (300, 300)))[1:, 1:] for key, name in OTHER]
    for other in others:
        assert abs(np.corrcoef(values[:-1, :-1].ravel(), other.ravel())[0, 1]) < 0.02


OTHER = [(KEY, "v"), (jax.random.key(1), "w"), (jax.random.fold_in(KEY, 1), "w")]


def test_low_rank_structure_is_absent():
    # A random 400 x 400 matrix has its largest singular value near 2 sqrt(400) = 40.
    values = np.asarray(initial.normal(KEY, "w", (400, 400)))
    assert 37 < np.linalg.svd(values, compute_uv=False)[0] < 42
