"""Run directories as a trainer leaves them, without training."""

import json

import pytest

PARTS = {"format_gate": 1.0, "content": 0.5}


@pytest.fixture
def make_run(tmp_path):
    """make_run(name, stage, ...) -> path of a run directory below tmp_path."""

    def make(name="rl", stage="rl", steps=5, finished=True, samples=(), **values):
        run = tmp_path / name
        (run / "samples").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"stage": stage, "num_steps": 8, "model": {"hidden_size": 32}}))
        rows = []
        for step in range(1, steps + 1):
            row = {"step": step, "kind": "train", "time": 1000.0 + 60 * step, "rewards/mean": 0.1 * step}
            row |= {"rewards/format_gate": 1.0, "kl": 0.01 * step, "logp_diff/max": 1e-6, **values}
            rows.append(row)
        rows.append({"step": steps, "kind": "eval", "time": 2000.0, "score": 0.5})
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if samples:
            (run / "samples" / f"{steps}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
        if finished:
            (run / "summary.json").write_text(json.dumps({"steps": steps, "eval": {"score": 0.5}}))
        return run

    return make


@pytest.fixture
def answer():
    """answer(...) -> a row of samples/STEP.jsonl with an explanation."""

    def make(id="item-1", reward=1.25, output="the answer", steps=(), reason=""):
        explained = {"formula": "SCORE 1.25 = all of it", "reason": reason, "steps": list(steps)}
        row = {"id": id, "question": "How?", "output": output, "finish_reason": "stop", "explained": explained}
        return row | {"reward": reward, "parts": PARTS}

    return make
