"""Kendall's tau over steps that belong together, whatever order they stand in.

The published Order-Tau is taken over the aligned pairs, whose places always rise: it is 1 from two pairs on and cannot
fall. Here predicted and gold steps are matched one to one first, without looking at the order.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from thoth_jax.protocol.columns import columns_of
from thoth_jax.protocol.grammar import Step
from thoth_jax.rewards import encoding, kernels


def matched_tau(
    predictions: Sequence[Sequence[Step]],
    golds: Sequence[Sequence[Step]],
    gold_of: np.ndarray,
    options: kernels.Options,
    canonical: Callable[[list[str]], list[str]],
) -> np.ndarray:
    """Kendall's tau-b of B pairs, float32 [B].

    Steps with equal actions are matched one to one: as many as possible, then with the highest sum of contents
    (Obj + weight Par, no position decay), then with the places nearest. tau is that of the matched steps' places; no
    place occurs twice, so tau-b is (concordant - discordant) / pairs. One step on each side and matched: 1. Fewer than
    two matched steps otherwise: 0, as the published Order-Tau.

    Args:
      predictions, golds, gold_of, canonical: as in `rewards.encoding.encode`.
    """
    tau = np.zeros(len(predictions), np.float32)
    if not predictions:
        return tau
    for batch in encoding.encode(columns_of(predictions), columns_of(golds), gold_of, canonical):
        tables = np.asarray(kernels.content_tables(batch.predicted, batch.gold, batch.gold_row, options))
        for row, table in zip(batch.rows, tables, strict=False):
            steps, gold_steps = len(predictions[row]), len(golds[gold_of[row]])
            places = _matched(table[:steps, :gold_steps])
            tau[row] = _tau(places) if steps + gold_steps > 2 else float(places.size == 1)
    return tau


def _matched(table: np.ndarray) -> np.ndarray:
    """Gold places of the matched steps in the order of the prediction; table [S, T], -1 where actions differ."""
    rows = np.nonzero((table >= 0).any(axis=1))[0]
    if not rows.size:
        return np.zeros(0, np.int64)
    possible = table[rows] >= 0
    distance = np.abs(rows[:, None] - np.arange(table.shape[1])) / (table.size + 1)
    # A match is worth more than any content, a content more than any distance.
    value = np.where(possible, 1000.0 + table[rows] - 1e-4 * distance, 0.0)
    chosen, gold = linear_sum_assignment(value, maximize=True)
    return gold[possible[chosen, gold]]


def _tau(places: np.ndarray) -> float:
    count = places.size
    if count < 2:
        return 0.0
    signs = np.sign(places[None, :] - places[:, None])
    return float(np.triu(signs, 1).sum() / (count * (count - 1) / 2))
