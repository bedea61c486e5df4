"""Rewards from parts: weights, validity, and faults of specs and functions."""

import math

import numpy as np
import pytest

from thoth_jax.errors import InputError
from thoth_jax.rewards import check_specs, compose
from thoth_jax.task import Completion, Example, Rewards

EXAMPLES = [Example(str(index), {}) for index in range(3)]
COMPLETIONS = [Completion("a" * index) for index in range(3)]

MODULE = """
import numpy as np
from thoth_jax.task import Rewards

def length(examples, completions, scale=1.0):
    return [scale * len(completion.text) for completion in completions]

def some(examples, completions, missing=None):
    return [1.0, missing, 3.0]

def wrong(examples, completions, kind="short"):
    kinds = {"short": [1.0], "none": None, "number": 1.0, "texts": ["a", "b", "c"], "matrix": np.ones((3, 2))}
    return kinds[kind]

def full(examples, completions):
    ones = np.ones(3, np.float32)
    steps = np.arange(6, dtype=np.float32).reshape(3, 2)
    return Rewards(ones / 2, {"inner": [1, None, 3]}, np.array([True, True, False]), ones, steps, np.ones((3, 2), int))

VALUE = 5
"""


class PlainTask:
    name = "plain"

    def reward(self, examples, completions):
        values = np.arange(len(completions), dtype=np.float32)
        return Rewards(values, {"values": values}, np.ones(len(completions), bool), values)


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "my_rewards_for_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def run(*specs):
    return compose(PlainTask(), list(specs), EXAMPLES, COMPLETIONS)


def fn(name, **rest):
    return {"fn": f"my_rewards_for_test:{name}", **rest}


def test_no_specs_is_the_tasks_own_reward():
    rewards = run()
    assert rewards.total.tolist() == [0, 1, 2] and list(rewards.parts) == ["values"] and rewards.valid.all()


def test_weighted_sum():
    rewards = run({"fn": "task", "weight": 2}, fn("length", weight=-1.0, kwargs={"scale": 3}))
    assert rewards.total.tolist() == rewards.raw.tolist() == [0, -1, -2]
    assert set(rewards.parts) == {"task", "task/values", "my_rewards_for_test:length"}
    assert rewards.parts["my_rewards_for_test:length"].tolist() == [0, 3, 6]


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_a_missing_value_is_invalid_and_not_zero(missing):
    rewards = run(fn("some", kwargs={"missing": missing}), fn("length"))
    assert rewards.valid.tolist() == [True, False, True] and rewards.total.tolist() == [1, 0, 5]
    assert np.isnan(rewards.parts["my_rewards_for_test:some"][1])


def test_a_part_of_weight_zero_changes_nothing():
    rewards = run(fn("some", weight=0), fn("length"))
    assert rewards.valid.all() and rewards.total.tolist() == [0, 1, 2]
    assert rewards.parts["my_rewards_for_test:some"][2] == 3


def test_a_part_may_return_rewards():
    rewards = run(fn("full", weight=4))
    assert rewards.total.tolist() == [2, 2, 0] and rewards.raw.tolist() == [4, 4, 0]
    assert rewards.valid.tolist() == [True, True, False]
    assert rewards.steps[1].tolist() == [8, 12] and rewards.step_char_ends.shape == (3, 2)
    np.testing.assert_array_equal(rewards.parts["my_rewards_for_test:full/inner"], [1, math.nan, 3])


def test_one_function_twice():
    rewards = run(fn("length"), fn("length", kwargs={"scale": 2}))
    assert list(rewards.parts) == ["my_rewards_for_test:length#0", "my_rewards_for_test:length#1"]
    assert rewards.total.tolist() == [0, 3, 6]


def test_checked_specs_can_be_passed_on():
    parts = check_specs([fn("length"), {"fn": "task", "weight": 0}])
    assert [part.weight for part in parts] == [1.0, 0.0]
    assert compose(PlainTask(), parts, EXAMPLES, COMPLETIONS).total.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["short", "none", "number", "texts", "matrix"])
def test_wrong_values(kind):
    with pytest.raises(InputError, match="'my_rewards_for_test:wrong'"):
        run(fn("wrong", kwargs={"kind": kind}))


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ("my_rewards_for_test:length", "rewards: expected a list"),
        ([["fn"]], r"rewards\[0\]: expected a mapping"),
        ([{"fn": "task", "wieght": 1}], r"rewards\[0\].wieght: unknown key; did you mean 'weight'"),
        ([{"weight": 1}], r"rewards\[0\].fn: expected"),
        ([{"fn": "task", "weight": "1"}], r"rewards\[0\].weight"),
        ([{"fn": "task", "weight": math.nan}], r"rewards\[0\].weight"),
        ([{"fn": "task", "weight": 0}], "every weight is 0"),
        ([{"fn": "task", "kwargs": {"a": 1}}], "task_args"),
        ([{"fn": "task", "kwargs": 1}], r"rewards\[0\].kwargs"),
        ([fn("lenght")], "did you mean 'length'"),
        ([fn("VALUE")], "is not a function"),
        ([{"fn": "no_such_module_here:a"}], "no module"),
        ([{"fn": "task"}, fn("length", kwargs={"sclae": 1})], r"rewards\[1\].kwargs.sclae: .*did you mean 'scale'"),
        ([fn("length", kwargs={"completions": 1})], r"rewards\[0\].kwargs.completions"),
    ],
)
def test_bad_specs_are_refused_before_training(specs, message):
    with pytest.raises(InputError, match=message):
        check_specs(specs)


def test_lengths_must_agree():
    with pytest.raises(InputError, match="3 examples but 2 completions"):
        compose(PlainTask(), [], EXAMPLES, COMPLETIONS[:2])
