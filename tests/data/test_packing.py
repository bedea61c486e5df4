"""Packing, splitting of documents, and the order of items."""

import numpy as np
import pytest

from thoth_jax.data.order import EpochOrder
from thoth_jax.data.packing import Sample, fill, plan, split_document


def sample(tokens, answer):
    learn = np.zeros(len(tokens), bool)
    learn[-answer:] = True
    return Sample(np.asarray(tokens, np.int32), learn)


def test_every_token_of_a_document_but_the_first_is_learnt_once():
    for n in (2, 3, 7, 8, 9, 20):
        samples = split_document(list(range(100, 100 + n)), 4)
        targets = [int(t) for s in samples for t, learn in zip(s.tokens[1:], s.learn[1:], strict=True) if learn]
        assert targets == list(range(101, 100 + n))
        assert all(1 <= s.width <= 4 for s in samples)
    assert split_document([5], 4) == []


def test_plan_places_each_sample_once_and_overfills_no_row():
    rng = np.random.default_rng(0)
    widths = rng.integers(1, 33, 500).tolist()
    rows = plan(widths, 32)
    assert sorted(i for row in rows for i in row) == list(range(500))
    assert all(sum(widths[i] for i in row) <= 32 for row in rows)
    assert len(rows) <= 1.1 * sum(widths) / 32 + 1
    assert plan(widths, 32) == rows
    assert plan([3, 3], 32, packing=False) == [[0], [1]]


def test_rows_hold_shifted_tokens_segments_and_positions_from_zero():
    samples = [sample([1, 2, 3, 4], 2), sample([5, 6, 7], 1)]
    rows = fill(samples, [[0, 1]], 7)
    assert rows.tokens[0].tolist() == [1, 2, 3, 5, 6, 0, 0]
    assert rows.targets[0].tolist() == [2, 3, 4, 6, 7, 0, 0]
    assert rows.segment_ids[0].tolist() == [1, 1, 1, 2, 2, 0, 0]
    assert rows.positions[0].tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert rows.loss_mask[0].tolist() == [False, True, True, False, True, False, False]


def test_order_is_a_permutation_each_epoch_whatever_the_batch_size():
    order = EpochOrder(7, seed=3)
    whole = order.take(0, 21)
    for epoch in range(3):
        assert sorted(whole[epoch * 7 : epoch * 7 + 7]) == list(range(7))
    assert not np.array_equal(whole[:7], whole[7:14])
    pieces = np.concatenate([EpochOrder(7, seed=3).take(start, 3) for start in range(0, 21, 3)])
    assert np.array_equal(pieces, whole)
    assert not np.array_equal(EpochOrder(7, seed=4).take(0, 21), whole)
    with pytest.raises(ValueError):
        EpochOrder(0, 0)
