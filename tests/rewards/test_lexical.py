"""The lexical reward: the metrics of SciRecipe-Eval as a reward; what has no text gets 0, what has no gold nothing."""

import builtins
import math
import time

import numpy as np
import pytest

from thoth_jax.errors import InputError
from thoth_jax.evaluation.lexical import lexical_metrics
from thoth_jax.protocol.schema import ProtocolItem
from thoth_jax.rewards import check_specs, compose
from thoth_jax.rewards.lexical import lexical_reward
from thoth_jax.task import Completion, Example

pytest.importorskip("sacrebleu")
pytest.importorskip("rouge_score")

ORC = "Step 1: Add 5 ml of buffer to the tube.\nStep 2: Spin the tube at 500 x g for 5 min."
OTHER = "Step 1: Add buffer.\nStep 2: Spin the tube for 10 min."


def answer(orc):
    return f"<think>why</think>\n<key>\nStep 1: {{}}\n</key>\n<orc>\n{orc}\n</orc>\n<note>gloves</note>"


ITEM = Example("a", {"item": ProtocolItem("a", "q", answer=answer(ORC), key="k", orc=ORC)})


def reward(*texts, example=ITEM, **settings):
    return lexical_reward([example] * len(texts), [Completion(text) for text in texts], **settings)


def test_it_is_the_weighted_sum_of_the_metrics():
    metrics, _ = lexical_metrics([OTHER], [ORC])
    for bleu, rouge in ((0.5, 0.5), (1.0, 0.0), (0.0, 2.0)):
        found = reward(answer(OTHER), bleu=bleu, rouge=rouge)
        wanted = bleu * metrics["bleu_avg"][0] + rouge * metrics["rouge_l"][0]
        assert found.total[0] == pytest.approx(wanted, abs=1e-6) and found.raw[0] == found.total[0]
    assert reward(answer(ORC)).total[0] == pytest.approx(1)


def test_block_says_which_text_is_compared():
    wrong_key = answer(ORC).replace("why", "something else entirely")
    assert reward(wrong_key).total[0] == pytest.approx(1)
    assert 0 < reward(wrong_key, block="answer").total[0] < 1
    assert reward(answer(ORC), block="answer").total[0] == pytest.approx(1)
    assert reward(ORC).total[0] == 0 and reward(ORC, block="answer").total[0] > 0  # no block around it


def test_hostile_text_gets_nothing_and_does_not_raise_or_hang():
    started = time.monotonic()
    found = reward("", "\ud800", answer("\ud800\x00"), answer("tube " * 200_000), answer(ORC) * 2, "<orc>" * 5000, "🧪")
    assert np.isfinite(found.total).all() and (found.total < 0.1).all() and found.valid.all()
    assert time.monotonic() - started < 20


def test_a_gold_without_text_gives_no_reward():
    empty = Example("b", {"item": ProtocolItem("b", "q", answer="yes")})
    found = lexical_reward([empty, ITEM], [Completion(answer(ORC))] * 2)
    assert found.valid.tolist() == [False, True] and found.total.tolist() == pytest.approx([0, 1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block": "ork"}, "block='ork'.*orc"),
        ({"bleu": -1.0}, "bleu=-1.0"),
        ({"rouge": math.nan}, "rouge=nan"),
        ({"bleu": 0.0, "rouge": 0.0}, "both 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        reward(answer(ORC), **settings)


def test_examples_of_another_task_are_refused():
    with pytest.raises(InputError, match="example 'x' has no protocol item"):
        reward("text", example=Example("x", {}))


def test_a_missing_package_is_named(monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "sacrebleu":
            raise ModuleNotFoundError("No module named 'sacrebleu'", name="sacrebleu")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="sacrebleu is not installed.*eval"):
        reward(answer(OTHER))


def test_as_a_part_of_the_configuration():
    specs = [{"fn": "thoth_jax.rewards.lexical:lexical_reward", "kwargs": {"bleu": 1.0, "rouge": 0.0}}]
    found = compose(None, check_specs(specs), [ITEM], [Completion(answer(OTHER))])
    metrics, _ = lexical_metrics([OTHER], [ORC])
    assert found.total[0] == pytest.approx(metrics["bleu_avg"][0], abs=1e-6)
    assert "thoth_jax.rewards.lexical:lexical_reward/rouge_l" in found.parts
    with pytest.raises(InputError, match="rogue.*rouge"):
        check_specs([{"fn": "thoth_jax.rewards.lexical:lexical_reward", "kwargs": {"rogue": 1.0}}])
