"""The nine configurations of the SCORE ablation: each changes the reward in the one way that its name says."""

import json
import re

import numpy as np
import pytest

from tests.rewards import reference
from thoth_jax import config as configuration
from thoth_jax.protocol import Sketch, Step, render
from thoth_jax.protocol.schema import ProtocolItem
from thoth_jax.rewards import check_specs, compose
from thoth_jax.rewards.score import ScoreConfig
from thoth_jax.task import Completion, Example, load_task

NAMES = ("thoth", "wo_f", "wo_g", "wo_f_g", "wo_m", "wo_order", "wo_order_f_g", "wo_kl", "vanilla")

STEPS = tuple(Step(action, (f"{action} tube",), ("5 min",)) for action in ("mix", "heat", "spin", "dry"))


def answer(*steps, more=""):
    said = [" ".join((step.action, *step.objects, *step.parameters)) + more for step in steps]
    return render(Sketch("why", tuple(steps), tuple(said), "gloves"))


GOLD = answer(*STEPS)
PAIRS = {
    "gold": GOLD,
    "one step left out": answer(*STEPS[:2], STEPS[3]),
    "too many words": answer(*STEPS, more=" slowly" * 40),
    "wrong order": answer(STEPS[1], STEPS[0], *STEPS[2:]),
    "refused": "mix the tube",
}
# Which of the pairs a variant pays otherwise than SCORE does. A step left out moves the one after it, so m_ij sees it.
TOUCHED = {
    "thoth": set(),
    "wo_f": {"one step left out"},
    "wo_g": {"too many words"},
    "wo_f_g": {"one step left out", "too many words"},
    "wo_m": {"one step left out", "wrong order"},
    "wo_order": {"gold", "one step left out", "too many words"},
    "wo_order_f_g": {"gold", "one step left out", "too many words"},
    "wo_kl": set(),
    "vanilla": {"gold", "one step left out", "too many words", "wrong order"},
}


def load(repo, name):
    return configuration.load(str(repo / "configs" / "ablations" / "score" / f"{name}.py"))


def reward(config):
    task = load_task(config.task, config.task_args.to_dict())
    orc = re.search("<orc>(.*)</orc>", GOLD, re.S).group(1)
    key = re.search("<key>(.*)</key>", GOLD, re.S).group(1)
    example = Example("a", {"item": ProtocolItem("a", "q", answer=GOLD, key=key, orc=orc)})
    completions = [Completion(text) for text in PAIRS.values()]
    return compose(task, check_specs(config.rewards), [example] * len(completions), completions).total


def test_there_are_nine(repo):
    files = (repo / "configs" / "ablations" / "score").glob("*.py")
    assert sorted(file.stem for file in files) == sorted(NAMES) and set(TOUCHED) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_reward_of_each(repo, name):
    if name == "vanilla":
        pytest.importorskip("sacrebleu")
        pytest.importorskip("rouge_score")
    found, whole = reward(load(repo, name)), reward(load(repo, "thoth"))
    changed = {pair for pair, one, other in zip(PAIRS, found, whole, strict=True) if abs(one - other) > 1e-4}
    assert changed == TOUCHED[name]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vanilla"])
def test_reward_is_that_of_plain_python(repo, name):
    config = load(repo, name)
    settings = ScoreConfig(**config.task_args.to_dict().get("score", {}))
    key = re.search("<key>(.*)</key>", GOLD, re.S).group(1)
    expected = [reference.score(output, key, settings)["total"] for output in PAIRS.values()]
    np.testing.assert_allclose(reward(config), expected, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_differs_from_the_whole(repo, name):
    own, whole = (configuration.flatten(load(repo, one).to_dict()) for one in (name, "thoth"))
    differing = {key for key in own if own[key] != whole[key]} - {"run_dir"}
    wanted = {"thoth": set(), "wo_kl": {"kl_coef"}, "vanilla": {"rewards"}}.get(name, {"task_args"})
    assert differing == wanted and own["run_dir"].endswith(f"/{name}")
    assert own["task_args"] | {"score": None} == whole["task_args"] | {"score": None}
    assert whole["kl_coef"] > 0 and json.loads(configuration.to_json(load(repo, name)))["stage"] == "rl"
