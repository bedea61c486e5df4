"""The SCORE benchmark measures what it says: an honest peer, fresh text, the same answers."""

import json

import numpy as np

from thoth_jax.bench import evaluator
from thoth_jax.bench.answers import make_batch
from thoth_jax.bench.score import bench_score
from thoth_jax.evaluation.structured import structured_metrics
from thoth_jax.rewards import score_batch


def test_the_peer_gives_the_evaluators_numbers(shared):
    """Wherever the published evaluator swallowed no exception."""
    lines = (shared / "golden" / "score_cases.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    rows = [row for row in rows if not row["reference_errors"] and not row["python_dependent"]]
    checked = 0
    for row in rows:
        try:
            found = evaluator.compare(evaluator.parse(row["pred_key"]), evaluator.parse(row["gold_key"]))
        except (AttributeError, TypeError):
            continue  # odd JSON types, on which plain Python raises as the original does
        for name, value in found.items():
            assert abs(value - row["metrics"][name]) < 1e-6, (row["id"], name)
        checked += 1
    assert checked > 120


def test_text_is_fresh_and_like_real_answers():
    one, other = make_batch(0, 16, 8), make_batch(1, 16, 8)
    assert len(one.outputs) == len(set(one.outputs)) == 128 and not set(one.outputs) & set(other.outputs)
    assert make_batch(0, 16, 8) == one
    lines = [line.partition(": ")[2] for key in one.output_keys for line in key.split("\n")]
    assert 0.4 < len(set(lines)) / len(lines) < 0.8
    score = score_batch(one.outputs, one.golds)
    assert score.format_gate.all() and score.consistency_gate.mean() > 0.95 and 0.3 < score.total.mean() < 2.2
    ours = structured_metrics(one.output_keys, one.gold_keys)
    theirs = [
        evaluator.compare(evaluator.parse(a), evaluator.parse(b))
        for a, b in zip(one.output_keys, one.gold_keys, strict=True)
    ]
    for name in theirs[0]:
        assert np.allclose(ours[name], [row[name] for row in theirs], atol=1e-5)


def test_long_answers_have_about_so_many_words():
    words = [len(text.split()) for text in make_batch(0, 8, 8, 400).outputs]
    assert 350 < np.mean(words) < 450


def test_the_report_has_both_and_their_ratio(monkeypatch):
    monkeypatch.setattr("thoth_jax.bench.score._LONG_PROMPTS", 2)
    found = bench_score(pairs=16, repeats=1)
    assert found["pairs"] == 16 and found["score_batch"]["pairs_per_s"] > 0 and found["kernel"]["wall_s"] > 0
    ratio = found["evaluator"]["wall_s"] / found["score_batch"]["wall_s"]
    assert found["times_the_evaluator"]["wall"] == ratio and found["long"]["words_per_answer"] > 300
