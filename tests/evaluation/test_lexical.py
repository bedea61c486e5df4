"""Lexical metrics: what the libraries say, what is missing is missing and not 0."""

import builtins
import json

import numpy as np
import pytest

from thoth_jax.evaluation import lexical
from thoth_jax.evaluation.files import evaluate_file, table
from thoth_jax.evaluation.lexical import averages, lexical_metrics

GOLD = "Step 1: Add 5 ml of buffer to the tube.\nStep 2: Spin the tube at 500 x g for 5 min."


def test_equal_texts_have_one_and_an_empty_one_nothing():
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    found, _ = lexical_metrics([GOLD, "", "  \n", "Spin the tube."], [GOLD] * 4)
    for name in (*lexical.NAMES["bleu"], *lexical.NAMES["rouge"]):
        assert found[name][:3] == pytest.approx([1, 0, 0]) and 0 < found[name][3] <= 1


def test_bleu_by_hand():
    pytest.importorskip("sacrebleu")
    # Predicted "a b c d", gold "a b c e": 3 of 4, 2 of 3, 1 of 2 n-grams, none of one; zero is smoothed to 1 / (2 * 1).
    found, _ = lexical_metrics(["a b c d"], ["a b c e"])
    precisions = [3 / 4, 2 / 3, 1 / 2, 1 / 2]
    assert [found[f"bleu_{n}"][0] for n in (1, 2, 3, 4)] == pytest.approx(precisions)
    assert found["bleu_avg"][0] == pytest.approx(np.mean(precisions))


def test_rouge_by_hand():
    pytest.importorskip("rouge_score")
    # Stems mix, salt / mix, water, salt: unigrams P 1, R 2/3; no common bigram; longest common subsequence 2.
    found, _ = lexical_metrics(["mixes salts"], ["mix water salt"])
    assert found["rouge_1"][0] == pytest.approx(0.8) and found["rouge_2"][0] == 0
    assert found["rouge_l"][0] == pytest.approx(0.8)


def test_hostile_text_does_not_raise():
    pytest.importorskip("sacrebleu")
    texts = ["\ud800", "\x00" * 50, "Step 1: " * 300, "🧪" * 100, "a" * 10_000]
    found, _ = lexical_metrics(texts, [GOLD] * len(texts))
    assert all(np.isfinite(values).all() for values in found.values())


def test_what_cannot_be_computed_is_missing_with_a_reason(monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] in ("sacrebleu", "rouge_score", "keybert", "bert_score"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
        return original(name, *rest)

    def no_wordnet(pairs):
        raise LookupError("Resource wordnet not found")

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setitem(lexical._FAMILIES, "meteor", no_wordnet)
    found, missing = lexical_metrics([GOLD], [GOLD])
    assert found == {} and set(missing) == set(lexical.NAMES)
    assert missing["bleu"] == "the package sacrebleu is not installed (extra: eval)" and "WordNet" in missing["meteor"]


def test_averages_are_those_of_the_papers_tables():
    # Thoth's row of Table 1 and 3 (AVG 52.10) and the same without Order-Tau, as in Table 2 (49.45).
    row = dict(zip(lexical.TABLE, (46.60, 75.34, 25.50, 73.33, 53.00, 43.62, 50.02, 47.39, 54.13), strict=True))
    assert averages(row)["avg_9"] == pytest.approx(52.10, abs=0.01)
    assert averages(row)["avg_8"] == pytest.approx(49.45, abs=0.01)
    del row["meteor"]
    assert averages(row) == {}


def test_files_carry_them(tmp_path):
    key = 'Step 1: {"action": "add", "objects": ["salt"], "parameters": []}'
    row = {"question": "q", "key": key, "orc": "Step 1: Add salt.", "type": "planning", "level": "1"}
    file = tmp_path / "gold.jsonl"
    file.write_text(json.dumps(row) + "\n")
    rows, summary = evaluate_file(str(file), lexical=True)
    assert set(summary["missing"]) | {name.partition("_")[0] for name in rows[0]} >= {"bleu", "rouge", "meteor"}
    assert "missing" not in evaluate_file(str(file))[1]
    assert all(len(line) <= 100 for line in table(summary).splitlines())
    for family, why in summary["missing"].items():
        assert f"missing: {family}: {why}" in table(summary)
