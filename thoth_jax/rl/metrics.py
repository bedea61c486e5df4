"""Metrics that combine exactly over micro-batches: sums with their weights, and maxima.

A metrics dict maps a name to a pair `(sum, weight)` of scalars, or, when the name ends in "/max", to one scalar.
All functions here are pure and work under jit, scan and vmap.
"""

from collections.abc import Mapping

import jax.numpy as jnp

Metrics = Mapping[str, tuple | object]


def is_maximum(name: str) -> bool:
    """True when metric `name` is a maximum (one scalar), False when it is a pair (sum, weight)."""
    return name.endswith("/max")


def combine_metrics(first: Metrics, second: Metrics) -> dict:
    """Metrics of the union of two micro-batches; both must have the same names."""
    combined = {}
    for name in first:
        a, b = first[name], second[name]
        combined[name] = jnp.maximum(a, b) if is_maximum(name) else (a[0] + b[0], a[1] + b[1])
    return combined


def mean_metrics(metrics: Metrics) -> dict:
    """{name: scalar}: sum / weight (0 where the weight is 0), maxima as they are."""
    means = {}
    for name, value in metrics.items():
        if is_maximum(name):
            means[name] = value
        else:
            total, weight = value
            means[name] = jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1), 0)
    return means
