"""SCORE knows nothing of biology: a recipe and an incident runbook."""

import pytest

from thoth_jax.protocol.grammar import Sketch, parse_key_block, render
from thoth_jax.rewards import ScoreConfig, score_batch

RECIPE = """Step 1: {"action": "whisk", "objects": ["eggs"], "parameters": ["30 s"], "after": []}
Step 2: {"action": "melt", "objects": ["butter"], "parameters": ["low heat"], "after": []}
Step 3: {"action": "pour", "objects": ["eggs"], "parameters": ["butter"], "after": [1, 2]}
Step 4: {"action": "fold", "objects": ["omelette"], "parameters": [], "after": [3]}"""
RUNBOOK = """Step 1: {"action": "drain", "objects": ["web-3"], "parameters": ["load balancer"]}
Step 2: {"action": "restart", "objects": ["payment service"], "parameters": ["web-3"]}
Step 3: {"action": "verify", "objects": ["error rate"], "parameters": ["below 0.1 %", "5 min"]}"""


def answer(steps, *sentences):
    return render(Sketch("Order matters.", tuple(steps), sentences, "None."))


def test_a_recipe_whose_preparations_may_be_swapped():
    whisk, melt, pour, fold = parse_key_block(RECIPE)
    sentences = {
        whisk: "Whisk the eggs for 30 s.",
        melt: "Melt the butter over low heat.",
        pour: "Pour the eggs into the butter.",
        fold: "Fold the omelette.",
    }

    def score(*steps, **settings):
        text = answer(steps, *[sentences[step] for step in steps])
        return score_batch([text], [RECIPE], ScoreConfig(**settings))

    assert score(whisk, melt, pour, fold).total[0] == 2.5
    swapped = score(melt, whisk, pour, fold)
    assert swapped.order[0] == 1 and swapped.total[0] == pytest.approx(1 + 1.5 * (2 * 0.875 + 2) / 4)
    assert score(melt, whisk, pour, fold, use_decay=False).total[0] == 2.5
    assert score(pour, whisk, melt, fold).order[0] == 0


def test_an_incident_runbook():
    drain, restart, verify = parse_key_block(RUNBOOK)
    good = answer(
        (drain, restart, verify),
        "Drain web-3 at the load balancer.",
        "Restart the payment service on web-3.",
        "Verify that the error rate stays below 0.1 % for 5 min.",
    )
    hasty = answer(
        (restart, drain, verify),
        "Restart the payment service on web-3.",
        "Drain web-3 at the load balancer.",
        "Verify that the error rate stays below 0.1 % for 5 min.",
    )
    score = score_batch([good, hasty], [RUNBOOK] * 2)
    assert score.total[0] == 2.5 and score.order[1] == 0 and 0 < score.total[1] < 1.5
