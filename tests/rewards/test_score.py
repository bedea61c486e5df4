"""Gates, text rules, options and golds of score_batch."""

import dataclasses

import numpy as np
import pytest

from thoth_jax.protocol import Sketch, Step, read_items, render
from thoth_jax.rewards import ScoreConfig, score_batch
from thoth_jax.rewards.coverage import _parts, canonical

STEPS = (Step("add", ("buffer",), ("5 ml", "4 °c")), Step("rinse", ("tube",), ("gently",)))
ORC = ("Adding 5 ml buffer at 4 °C.", "Keep rinsing the tube in a gentle way.")
ANSWER = render(Sketch("Because.", STEPS, ORC, "Wear gloves."))


def one(output=ANSWER, gold=ANSWER, **settings):
    score = score_batch([output], [gold], ScoreConfig(**settings))
    return score._replace(**{name: value[0] for name, value in score._asdict().items()})


def with_orc(*sentences, steps=STEPS):
    return render(Sketch("Because.", steps, sentences, "Wear gloves."))


def test_gold_answer_has_the_ideal_score():
    score = one()
    assert (score.total, score.coverage, score.reasons) == (2.5, 1.0, "")


def test_golds_as_key_blocks_with_and_without_tags():
    lines = ANSWER.split("<key>")[1].split("</key>")[0]
    for gold in (lines, f"<key>{lines}</key>", f"<KEY>{lines}</Key>", lines.replace("\n", "\r\n")):
        assert one(gold=gold).total == 2.5


@pytest.mark.parametrize(
    "gold", ["", "no steps", "<key></key>", "<key>Step 1: {}", "<orc>x</orc>", 'Step 1: {"action": 1}']
)
def test_gold_that_cannot_be_parsed_names_its_row(gold):
    with pytest.raises(ValueError, match=r"golds\[1\]"):
        score_batch([ANSWER, ANSWER], [ANSWER, gold])


def test_different_lengths_are_refused():
    with pytest.raises(ValueError, match="1 outputs but 2 golds"):
        score_batch([ANSWER], [ANSWER, ANSWER])


def test_empty_batch():
    score = score_batch([], [])
    assert score.total.shape == (0,) and score.reasons == []


def test_coverage_joins_inflections_and_refuses_what_is_not_said():
    assert one(with_orc("Adding 5 ml buffer at 4 °C.", "Rinse the tube, gentle.")).coverage == 1
    score = one(with_orc("Adding 5 ml buffer.", "Rinse the tube gently."))
    assert score.reasons == "low_coverage" and score.total == 0 and score.content == 1.5
    assert score.coverage == pytest.approx(7 / 9)  # 4 and c are missing
    assert one(with_orc("Adding 5 ml buffer.", "Rinse the tube gently."), coverage_threshold=0.7).total == 2.5


def test_coverage_is_counted_step_by_step():
    assert one(with_orc(ORC[1], ORC[0])).coverage == 0


def test_coverage_at_the_threshold_passes():
    words = [f"w{index}" for index in range(19)]
    steps = (Step("mix", tuple(words), ()),)
    assert one(with_orc(" ".join(words), steps=steps)).consistency_gate == 1
    assert one(with_orc(" ".join(words[1:]), steps=steps)).consistency_gate == 0


def test_steps_of_stop_words_only_have_no_coverage():
    score = one(with_orc("The of.", steps=(Step("the", ("of",), ()),)))
    assert score.coverage == 0 and score.reasons == "low_coverage"


def test_item_coverage_is_literal():
    assert one(coverage="item").reasons == "low_coverage"  # "Adding" has "add", but "rinse" is not in "rinsing"
    assert one(with_orc("Add buffer 5 ml 4 °C", "rinse tube gently"), coverage="item").total == 2.5


def test_many_items_are_found_as_few_are():
    text = "abcabcd " * 60_000
    items = {f"item {index}" for index in range(100)} | {"abc", "bca", "cd a", "d", "abcd", "dd"}
    assert _parts(items, text) == sum(item in text for item in items) == 5


def test_require_numbers():
    steps = (Step("add", tuple("abcdefghijklmnopqrstuvwxyz"), ("5 ml",)), STEPS[1])
    output = with_orc("Add b c d e f g h i j k l m n o p q r s t u v w x y z ml.", ORC[1], steps=steps)
    assert one(output, coverage_threshold=0.9).total > 0
    assert one(output, coverage_threshold=0.9, require_numbers=True).reasons == "missing_numbers:1"


@pytest.mark.parametrize(
    ("left", "right"),
    [("3-5 min", "3–5 min"), ("4 °C", "4 °c"), ("37 ℃", "37 °c"), ("Ca²⁺", "ca2+"), ("10⁶", "10^6"), ("10⁻³", "10^-3")]
    + [("a\u00a0 b\n", "A B"), ("ﬁlter", "filter"), ("5 µl", "5 μl")],
)
def test_texts_that_are_equal(left, right):
    assert canonical(left) == canonical(right)


def test_texts_that_are_not_equal():
    assert canonical("10⁶") != canonical("106")


def test_gate_switches():
    loose = ANSWER.replace("<note>", "")
    assert one(loose).reasons == "missing_block:note"
    assert one(loose, use_format_gate=False).total == 2.5
    nothing = one("no key", use_format_gate=False)
    assert nothing.total == 0 and nothing.format_gate == 1 and nothing.reasons == "missing_block:think"
    for settings in ({"final_combine": "sum"}, {"use_consistency_gate": False}, {"use_step_scale": False}):
        assert one("no key", use_format_gate=False, **settings).total == 0
    silent = with_orc("Nothing.", "Nothing.")
    assert one(silent).total == 0 and one(silent, use_consistency_gate=False).total == 2.5


def test_format_options():
    assert one("Sure!\n" + ANSWER).reasons == "outer_text:before"
    assert one("Sure!\n" + ANSWER, allow_outer_text=True).total == 2.5
    renumbered = ANSWER.replace("Step 2", "Step 3")
    assert one(renumbered).reasons == "numbering:key:2"
    assert one(renumbered, strict_numbering=False).total == 2.5
    bare = ANSWER.split("<note>")[0]
    assert one(bare, require_note=False).total == 2.5


def test_combinations():
    assert one(combine="product").total == 1.5
    assert one(final_combine="sum").total == 3.5
    assert one(use_order=False).total == 1.5
    assert one(use_order=False, combine="product").total == 1.5
    assert one(content_denominator="max_length", order_mode="lcs").total == 2.5


@pytest.mark.parametrize(
    "settings",
    [{"order_mode": "strict_subseq"}, {"max_words": 0}, {"coverage_threshold": 1.1}, {"use_decay": 1}]
    + [{"decay_power": float("nan")}, {"parameter_weight": -1}, {"max_words": "30"}, {"scale_fraction": True}],
)
def test_config_refuses_bad_values_by_name(settings):
    with pytest.raises(ValueError, match=f"ScoreConfig.{next(iter(settings))}"):
        ScoreConfig(**settings)
    with pytest.raises(ValueError, match=f"ScoreConfig.{next(iter(settings))}"):
        dataclasses.replace(ScoreConfig(), **settings)


def test_config_from_environment(monkeypatch):
    assert ScoreConfig.from_env({}) == ScoreConfig()
    monkeypatch.setenv("GRPO_ORDER_MODE", "lcs")
    monkeypatch.setenv("GRPO_CONTENT_DENOM", "max_len")
    monkeypatch.setenv("GRPO_FINAL_COMBINE", "sum")
    expected = ScoreConfig(order_mode="lcs", content_denominator="max_length", final_combine="sum", max_words=20)
    assert ScoreConfig.from_env(max_words=20) == expected
    assert ScoreConfig.from_env({"GRPO_ORDER_MODE": "strict_subseq"}) == ScoreConfig()
    with pytest.raises(ValueError, match="GRPO_COMBINE_MODE"):
        ScoreConfig.from_env({"GRPO_COMBINE_MODE": "mean"})


def test_rows_do_not_depend_on_their_batch(pairs):
    outputs, golds = (texts[:40] for texts in pairs)
    whole = score_batch(outputs, golds).total
    alone = np.array([score_batch([output], [gold]).total[0] for output, gold in zip(outputs, golds, strict=True)])
    np.testing.assert_array_equal(whole, alone)


def test_authors_gold_answers_pass(shared):
    files = ("demo_sft.json", "demo_rl.jsonl")
    items = [item for file in files for item in read_items(shared / "data" / "thoth_demo" / file).items]
    answers = list(dict.fromkeys(item.answer for item in items))
    score = score_batch(answers, answers)
    assert len(answers) == 23 and score.format_gate.all()
    assert (score.total == 2.5).sum() >= 22
    assert score_batch(answers, answers, ScoreConfig(coverage="item")).consistency_gate.mean() < 0.5
