"""The kernels on several devices, and how often they compile."""

import random

import jax
import numpy as np
import pytest

from tests.rewards.conftest import make_pair, make_steps
from thoth_jax.protocol import Sketch, Step, render
from thoth_jax.rewards import ScoreConfig, kernels, score_batch
from thoth_jax.rewards.score import COMPONENTS


@pytest.mark.parametrize("shape", [(8,), (2, 4), (3,)])
@pytest.mark.parametrize("size", [1, 37, 200])
def test_sharded_rows_equal_one_device(pairs, shape, size):
    outputs, golds = (texts[:size] for texts in pairs)
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    mesh = jax.sharding.Mesh(devices, ("data", "fsdp")[: len(shape)])
    one, sharded = score_batch(outputs, golds), score_batch(outputs, golds, mesh=mesh)
    for name in COMPONENTS:
        np.testing.assert_allclose(getattr(one, name), getattr(sharded, name), rtol=0, atol=1e-6, err_msg=name)
    assert one.reasons == sharded.reasons


def test_rows_with_a_partial_order_are_sharded_too():
    line = 'Step {}: {{"action": "{}", "objects": [], "parameters": []{}}}'
    gold = "\n".join(
        [line.format(1, "a", ""), line.format(2, "b", ', "after": []'), line.format(3, "c", ', "after": [1, 2]')]
    )
    steps = [Step(action, (), ()) for action in "bac"]
    output = render(Sketch("why", tuple(steps), tuple("bac"), "n"))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    config = ScoreConfig(use_consistency_gate=False)
    assert score_batch([output] * 9, [gold] * 9, config, mesh).order.tolist() == [1.0] * 9
    assert score_batch([output] * 9, [gold.replace(', "after": []', "")] * 9, config, mesh).order.tolist() == [0.0] * 9


def test_the_rows_are_really_spread(pairs, monkeypatch):
    seen = []
    kernel = kernels.pair_scores
    monkeypatch.setattr(kernels, "pair_scores", lambda *args: seen.append(kernel(*args)) or seen[-1])
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    score_batch(pairs[0][:64], pairs[1][:64], mesh=mesh)
    assert seen and all(len(scores.order.sharding.device_set) == 8 for scores in seen)
    assert all(scores.order.addressable_shards[0].data.shape[0] * 8 == scores.order.shape[0] for scores in seen)


def test_any_sizes_compile_a_bounded_number_of_times():
    rng = random.Random(5)

    def batch(size, longest):
        made = []
        for _ in range(size):
            steps = make_steps(rng, rng.randrange(1, longest + 1))
            made.append(render(Sketch("why", tuple(steps), tuple("mix" for _ in steps), "gloves")))
        return made

    sizes = [(rng.randrange(1, 600), rng.choice([3, 8, 15, 30])) for _ in range(30)]
    before = kernels.pair_scores._cache_size(), kernels.combine._cache_size()
    for size, longest in sizes:
        golds = batch(rng.randrange(1, 9), 8)
        outputs = batch(size, longest)
        score_batch(outputs, [golds[row % len(golds)] for row in range(size)])
    # Rows 8, 16, 64, 256, 1024; steps 8, 16, 64; one or two mask widths.
    assert kernels.combine._cache_size() - before[1] <= 5
    compiled = kernels.pair_scores._cache_size()
    assert compiled - before[0] <= 5 * 3 * 2
    for _ in range(6):  # other settings and other texts of the same shapes compile nothing
        output, gold = make_pair(rng)
        score_batch(
            [output] * 8,
            [gold] * 8,
            ScoreConfig(order_mode=rng.choice(["strict", "exact", "lcs"]), decay_power=1 + rng.random()),
        )
    assert kernels.pair_scores._cache_size() - compiled <= 4


def test_a_setting_compiles_nothing(pairs):
    outputs, golds = pairs[0][:40], pairs[1][:40]
    score_batch(outputs, golds)
    compiled = kernels.pair_scores._cache_size(), kernels.combine._cache_size()
    for settings in (
        {"order_mode": "lcs"},
        {"object_match": "set", "parameter_match": "set", "content_denominator": "max_length"},
        {"combine": "product", "final_combine": "sum", "use_decay": False, "use_order": False},
        {"decay_power": 2.5, "parameter_weight": 0.1, "object_threshold": 0.9, "max_words": 3, "scale_fraction": 0.2},
    ):
        score_batch(outputs, golds, ScoreConfig(**settings))
    assert (kernels.pair_scores._cache_size(), kernels.combine._cache_size()) == compiled
