"""Policies judged by samples and greedily, with intervals over protocols and paired differences."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from thoth_jax import config as configuration
from thoth_jax.errors import InputError
from thoth_jax.evaluation.sampled import Judged, compare, judge_policy, summarise
from thoth_jax.task import Completion
from thoth_jax.tasks.protocol import ProtocolTask
from thoth_jax.train.build import build

METRICS = {
    "score",
    "format_rate",
    "consistency_rate",
    "step_match",
    "order_strict",
    "order_lcs",
    "order_tau",
    "content_score",
    "steps",
}
TINY = {
    "model.hidden_size": 32,
    "model.intermediate_size": 48,
    "model.num_layers": 1,
    "model.num_heads": 4,
    "model.num_kv_heads": 2,
    "model.head_dim": 8,
    "task_args": {"system_prompt": ""},
    "max_completion_length": 8,
}


class Counting(ProtocolTask):
    """Judges by the length of an answer, so that what was averaged can be told; keeps what it was asked."""

    def __init__(self):
        super().__init__(system_prompt="")
        self.asked = []

    def judge(self, examples, completions):
        self.asked.append([(e.id, c) for e, c in zip(examples, completions, strict=True)])
        return {"score": np.array([len(set(c.token_ids)) for c in completions], np.float64)}


@pytest.fixture(scope="module")
def run():
    return build(configuration.load(None, ["stage=rl"], TINY), jax.devices()[:1])


def test_of_the_protocol_task(run):
    judged = judge_policy(run, "test", samples=2, limit=3)
    assert set(judged.metrics) == METRICS | {"score_greedy"}
    assert all(values.shape == (3,) and np.isfinite(values).all() for values in judged.metrics.values())
    assert judged.ids == tuple(e.id for e in run.task.examples("test")[:3])
    assert len(set(judged.clusters)) >= 1 and judged.clusters[0] == "Passaging of adherent cells with trypsin"
    assert [row["id"] for row in judged.rows] == [judged.ids[0], judged.ids[2]] and judged.rows[0]["explained"]
    summary = summarise(judged, samples=50)
    assert summary["steps"][0] == pytest.approx(judged.metrics["steps"].mean()) and len(summary["score"]) == 3


def test_samples_are_averaged_by_item_and_greedy_is_apart(run):
    task = Counting()
    judged = judge_policy(dataclasses.replace(run, task=task), "test", samples=3, limit=4, seed=5)
    drawn, greedy = task.asked
    ids = [example.id for example in task.examples("test")[:4]]
    assert [name for name, _ in drawn] == [name for name in ids for _ in range(3)]
    assert [name for name, _ in greedy] == ids
    lengths = np.array([len(set(c.token_ids)) for _, c in drawn]).reshape(4, 3)
    np.testing.assert_allclose(judged.metrics["score"], lengths.mean(1))
    np.testing.assert_allclose(judged.metrics["score_greedy"], [len(set(c.token_ids)) for _, c in greedy])
    assert len({c.token_ids for _, c in drawn[:3]}) > 1  # really sampled, and greedy answers are not
    again, other = Counting(), Counting()
    judge_policy(dataclasses.replace(run, task=again), "test", samples=3, limit=4, seed=5)
    judge_policy(dataclasses.replace(run, task=other), "test", samples=3, limit=4, seed=6)
    assert again.asked == task.asked and other.asked[0] != task.asked[0] and other.asked[1] == greedy


def test_temperature_is_that_of_the_samples(run):
    task = Counting()
    judge_policy(dataclasses.replace(run, task=task), "test", samples=2, limit=2, temperature=1e-4)
    drawn, greedy = task.asked
    assert [c.token_ids for _, c in drawn[::2]] == [c.token_ids for _, c in greedy]


def test_a_stop_gives_nothing_and_a_task_without_judge_is_refused(run):
    assert judge_policy(run, "test", samples=1, limit=1, should_stop=lambda: True) is None

    class Plain:
        name = "plain"

    with pytest.raises(InputError, match="judge"):
        judge_policy(dataclasses.replace(run, task=Plain()), "test")


def judged(scores, clusters="aabbccdd"):
    ids = tuple(f"{n}" for n in range(len(scores)))
    return Judged(ids, tuple(clusters), {"score": np.array(scores, np.float64)}, ({"id": "0"},))


def test_intervals_are_over_clusters():
    # Items of one cluster agree: over clusters the interval is as wide as that of half as many values.
    values = [0, 0, 1, 1, 0, 0, 1, 1]
    mean, low, high = summarise(judged(values))["score"]
    _, low_items, high_items = summarise(judged(values, "abcdefgh"))["score"]
    assert mean == 0.5 and high - low > high_items - low_items


def test_comparison_is_paired():
    base = [0.0, 0.1, 5.0, 5.1, 9.0, 9.1, 2.0, 2.1]
    better = judged([value + 0.5 for value in base])
    assert compare(better, judged(base))["score"] == pytest.approx([0.5, 0.5, 0.5])
    with pytest.raises(ValueError, match="different items"):
        compare(better, judged(base, "aabbccda"))


def test_json_keeps_it():
    one = judged([0.25] * 8)
    back = Judged.from_json(json.loads(json.dumps(one.to_json())))
    assert back.ids == one.ids and back.clusters == one.clusters and back.rows == one.rows
    assert compare(back, one)["score"] == [0, 0, 0]


def test_evaluate_is_the_mean_of_judge():
    task = ProtocolTask()
    examples = task.examples("test")[:3]
    completions = [Completion(task.target(examples[0])), Completion("nothing"), Completion(task.target(examples[2]))]
    single = task.judge(examples, completions)
    assert set(single) == METRICS and single["score"].tolist() == [2.5, 0, 2.5]
    assert task.evaluate(examples, completions) == {name: values.mean() for name, values in single.items()}
