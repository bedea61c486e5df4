"""SCORE as other trainers call it."""

import inspect

import pytest

from thoth_jax.protocol.grammar import Sketch, Step, render
from thoth_jax.rewards import ScoreConfig
from thoth_jax.rewards.adapters import compute_score, compute_scores, trl_reward

STEPS = (Step("add", ("salt",), ("5 g",)), Step("mix", ("salt",), ()))
GOLD = render(Sketch("t", STEPS, ("Add 5 g of salt.", "Mix the salt."), "n"))


def test_trl_calls_it_with_keywords_and_gets_a_list_of_floats():
    reward = trl_reward()
    # What GRPOTrainer passes: prompts, completions, completion_ids, every column, the trainer's state.
    found = reward(
        prompts=["q"] * 4,
        completions=[GOLD, "nothing", GOLD, GOLD],
        completion_ids=[[1]] * 4,
        gold=[GOLD, GOLD, None, "\n".join(GOLD.splitlines()[5:7])],
        trainer_state=object(),
    )
    assert found == [2.5, 0.0, None, 2.5] and type(found[0]) is float
    assert reward.__name__ == "score"


def test_trl_chats_are_scored_by_their_last_turn():
    chats = [
        [{"role": "assistant", "content": GOLD}],
        [{"role": "assistant", "content": "first"}, {"role": "assistant", "content": [{"type": "text", "text": GOLD}]}],
        [{"role": "assistant", "content": None, "tool_calls": []}],
        [],
    ]
    assert trl_reward(gold_column="answer")(prompts=[[]] * 4, completions=chats, answer=[GOLD] * 4) == [2.5, 2.5, 0, 0]


def test_trl_without_the_column_says_so():
    with pytest.raises(ValueError, match="no column 'gold'"):
        trl_reward()(prompts=["q"], completions=["a"], answer=["b"])


def test_verl_calls_it_with_these_names_and_takes_score(monkeypatch):
    assert list(inspect.signature(compute_score).parameters)[:4] == [
        "data_source",
        "solution_str",
        "ground_truth",
        "extra_info",
    ]
    one = compute_score(data_source="thoth", solution_str=GOLD, ground_truth=GOLD, extra_info={"index": 0})
    assert one["score"] == 2.5 and one["order"] == 1 and "total" not in one
    assert all(type(value) is float for value in one.values())
    swapped = render(Sketch("t", STEPS[::-1], ("Mix the salt.", "Add 5 g of salt."), "n"))
    many = compute_scores(["x"] * 2, [GOLD, swapped], [GOLD] * 2, [None] * 2, order_mode="lcs")
    assert [row["order"] for row in many] == [1.0, 0.5]
    monkeypatch.setenv("GRPO_ORDER_MODE", "lcs")
    assert compute_score("x", swapped, GOLD)["order"] == 0.5


def test_verl_settings_are_checked():
    with pytest.raises(ValueError, match="ordr_mode"):
        compute_score("x", GOLD, GOLD, ordr_mode="lcs")
    with pytest.raises(ValueError, match=r"golds\[0\]"):
        compute_score("x", GOLD, "no key")


def test_the_configuration_reaches_the_score():
    assert trl_reward(ScoreConfig(use_order=False))(completions=[GOLD], gold=[GOLD]) == [1.5]
