"""The kernels against the plain reading, in every mode."""

import dataclasses
import random
import re

import numpy as np
import pytest

from tests.rewards import reference
from thoth_jax.rewards import ScoreConfig, score_batch
from thoth_jax.rewards.score import _CHOICES, COMPONENTS

BASE = ScoreConfig()


def single_changes():
    for name, values in _CHOICES.items():
        yield from ({name: value} for value in values if value != getattr(BASE, name))
    for field in dataclasses.fields(ScoreConfig):
        if field.name.startswith("use_") and field.name != "use_format_gate":
            yield {field.name: False}
    yield from ({"scale_fraction": 0.29}, {"max_words": 6}, {"decay_power": 1.0}, {"object_threshold": 1 / 3})


def random_changes():
    rng = random.Random(1)
    for _ in range(12):
        changes = {name: rng.choice(values) for name, values in _CHOICES.items()}
        changes |= {name: rng.random() < 0.7 for name in ("use_step_scale", "use_decay", "use_order")}
        yield changes | {"max_words": rng.choice([5, 30]), "coverage_threshold": rng.choice([0.0, 0.6, 0.95])}


CHANGES = [{}, *single_changes(), *random_changes()]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_equals_plain_python(number, pairs):
    config = dataclasses.replace(BASE, **CHANGES[number])
    size = len(pairs[0]) if number == 0 else 96
    outputs, golds = (texts[-size:] if number % 2 else texts[:size] for texts in pairs)
    score = score_batch(outputs, golds, config)
    for row, (output, gold) in enumerate(zip(outputs, golds, strict=True)):
        expected = reference.score(output, re.search("<key>(.*)</key>", gold, re.S).group(1), config)
        for name in COMPONENTS:
            assert getattr(score, name)[row] == pytest.approx(expected[name], abs=1e-6), (name, output, gold)
        assert (score.reasons[row] == "") == bool(expected["format_gate"] * expected["consistency_gate"])
    assert np.isfinite(score.total).all() and (number or score.total.max() > 2)
