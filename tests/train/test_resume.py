"""Runs survive: killed, stopped, started again, they end as if nothing had happened."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from thoth_jax import config as configuration
from thoth_jax.errors import InputError
from thoth_jax.models.qwen import init_params
from thoth_jax.sharding import make_mesh
from thoth_jax.train import loop
from thoth_jax.train.build import load_weights
from thoth_jax.train.checkpoint import newest_step
from thoth_jax.train.metrics import read_metrics

_TIMES = ("time", "tokens_per_sec")


def rows_of(run_dir):
    """Metrics without wall times."""
    rows = []
    for row in read_metrics(str(run_dir)):
        rows.append({k: v for k, v in row.items() if k not in _TIMES and not k.startswith(("step_time", "compile"))})
    return rows


def weights_of(run_dir):
    return jax.tree.leaves(jax.device_get(load_weights(str(run_dir), make_mesh())[1]))


class Killed(Exception):
    """Stands for the end of the process."""


def die_at(monkeypatch, stage, step):
    """Make the loop fail in the middle of a step, after the checkpoints before it have been written."""
    kind = loop.STAGES[stage]
    original = kind.step

    def dying(self, state, index, should_stop):
        if index == step:
            raise Killed
        return original(self, state, index, should_stop)

    monkeypatch.setattr(kind, "step", dying)


@pytest.mark.parametrize("stage, lora", [("pretrain", 0), ("sft", 4), ("rl", 0)])
def test_a_killed_run_ends_as_an_uninterrupted_one(tiny, rewarded, tmp_path, monkeypatch, stage, lora):
    reward = [rewarded] if stage == "rl" else []
    config = [
        tiny(
            stage,
            f"run_dir={tmp_path / name}",
            "num_steps=5",
            "save_every=2",
            "eval_every=2",
            f"lora.rank={lora}",
            *reward,
        )
        for name in "ab"
    ]
    assert loop.train(config[0]) == 0
    for step in (1, 3, 4):  # before the first checkpoint, after one, right at one
        with monkeypatch.context() as patch:
            die_at(patch, stage, step)
            with pytest.raises(Killed):
                loop.train(config[1])
    assert loop.train(config[1]) == 0
    for left, right in zip(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"), strict=True):
        assert np.array_equal(left, right)
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")
    steps = [(row["step"], row["kind"]) for row in rows_of(tmp_path / "b")]
    assert len(set(steps)) == len(steps) and [s for s, kind in steps if kind == "train"] == [1, 2, 3, 4, 5]
    for name in ("summary.json", "samples/0.jsonl", "samples/5.jsonl"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()


def test_a_finished_run_started_again_changes_nothing(tiny, tmp_path):
    config = tiny("sft", f"run_dir={tmp_path / 'a'}", "num_steps=2")
    assert loop.train(config) == 0
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "a").rglob("*")
        if path.is_file() and path.name in ("metrics.jsonl", "summary.json")
    }
    assert loop.train(config) == 0
    assert before == {path: path.read_bytes() for path in before}


def test_another_configuration_is_refused_by_the_names_of_the_keys(tiny, tmp_path):
    assert loop.train(tiny("sft", f"run_dir={tmp_path / 'a'}", "num_steps=1")) == 0
    changed = tiny("sft", f"run_dir={tmp_path / 'a'}", "num_steps=2", "learning_rate=0.5")
    with pytest.raises(InputError, match=r"learning_rate: 0.001 there, 0.5 here; num_steps: 1 there, 2 here"):
        loop.train(changed)
    assert loop.train(changed, allow_config_change=True) == 0
    assert read_metrics(str(tmp_path / "a"))[-1]["step"] == 2


def test_lora_checkpoints_hold_the_adapters_only(tiny, tmp_path):
    config = tiny("sft", f"run_dir={tmp_path / 'a'}", "num_steps=1", "lora.rank=2")
    assert loop.train(config) == 0
    state = tmp_path / "a" / "checkpoints" / "1" / "state"
    names = json.loads((state / "_METADATA").read_text())["tree_metadata"]
    assert names and not any("embed" in name for name in names)


def test_keep_checkpoints(tiny, tmp_path):
    assert (
        loop.train(
            tiny(
                "sft", f"run_dir={tmp_path}", "num_steps=4", "save_every=1", "keep_checkpoints=3", "eval_at_start=false"
            )
        )
        == 0
    )
    assert newest_step(str(tmp_path)) == 4
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [2, 3, 4]


def test_the_best_checkpoints_stay_beside_the_newest(tiny, tmp_path, monkeypatch):
    """By a metric of the evaluation, whatever save_every says; NaN is never the best."""
    values = iter([0.5, 0.9, float("nan"), 0.1, 0.2])

    def evaluate(stage, state, step, run_dir, metrics, stopped):
        return {"score": next(values), "other": 0.0}

    monkeypatch.setattr(loop, "_evaluate", evaluate)
    words = ("num_steps=5", "eval_every=1", "eval_at_start=false", "save_every=100", "keep_checkpoints=1")
    run = tmp_path / "max"
    assert loop.train(tiny("pretrain", f"run_dir={run}", *words, "keep_best=2", "best_metric=score")) == 0
    assert sorted(int(step.name) for step in (run / "checkpoints").iterdir()) == [1, 2, 5]
    values, run = iter([0.5, 0.9, float("nan"), 0.1, 0.2]), tmp_path / "min"
    assert (
        loop.train(tiny("pretrain", f"run_dir={run}", *words, "keep_best=1", "best_metric=score", "best_mode=min")) == 0
    )
    assert sorted(int(step.name) for step in (run / "checkpoints").iterdir()) == [4, 5]
    values = iter([0.5])
    with pytest.raises(InputError, match="best_metric='scre': evaluations have other, score"):
        loop.train(tiny("pretrain", f"run_dir={tmp_path / 'x'}", *words, "keep_best=1", "best_metric=scre"))


def test_a_stage_starts_from_another_run_and_kl_is_zero_there(tiny, rewarded, tmp_path, trial):
    sft = tmp_path / "sft"
    assert loop.train(tiny("sft", f"run_dir={sft}", "num_steps=2", "lora.rank=2", "learning_rate=0.05")) == 0
    for lora in (0, 2):
        found = trial(tiny("rl", rewarded, f"init_from={sft}", "kl_coef=0.1", f"lora.rank={lora}"))
        found.steps(2)
        assert found.metrics[0]["kl"] == 0.0
        assert found.metrics[1]["kl"] > 0.0
        assert found.metrics[0]["ratio/max"] == pytest.approx(1.0, abs=1e-4)
    base = init_params(found.run.model, jax.random.key(0))
    merged = load_weights(str(sft), make_mesh())[1]
    assert float(np.abs(base["layers"]["q_proj"] - np.asarray(merged["layers"]["q_proj"])).max()) > 1e-4


def command(run_dir, *more):
    keys = {
        "model.hidden_size": 32,
        "model.num_layers": 2,
        "model.head_dim": 8,
        "max_length": 448,
        "max_completion_length": 8,
    }
    overrides = [f"--config.{name}={value}" for name, value in keys.items()]
    return [
        sys.executable,
        "-m",
        "thoth_jax.cli",
        "train",
        "--config.stage=sft",
        f"--config.run_dir={run_dir}",
        "--config.task_args.system_prompt=",
        *overrides,
        *more,
    ]


def test_sigterm_saves_and_exits_75_and_the_same_command_continues(tmp_path, repo):
    run = tmp_path / "run"
    words = command(run, "--config.num_steps=100000", "--config.save_every=100000", "--config.eval_at_start=false")
    environment = {**os.environ, "PYTHONPATH": str(repo)}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (run / "metrics.jsonl").exists() or not read_metrics(str(run)):
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    done = read_metrics(str(run))[-1]["step"]
    assert "stopped by a signal" in errors and [int(p.name) for p in (run / "checkpoints").iterdir()] == [done]


def test_a_write_error_ends_the_run_with_a_clear_line(tiny, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match="cannot write there"):
        loop.train(tiny("sft", f"run_dir={blocked / 'run'}"))


def test_a_run_without_weights_cannot_be_loaded(tiny, tmp_path):
    config = tiny("sft")
    (tmp_path / "config.json").write_text(configuration.to_json(config))
    with pytest.raises(InputError, match="policy"):
        load_weights(str(tmp_path), make_mesh())
    with pytest.raises(InputError, match="no such directory"):
        load_weights(str(pathlib.Path(tmp_path) / "nothing"), make_mesh())


def test_a_signal_during_an_evaluation_loses_neither_it_nor_the_summary(tiny, tmp_path, monkeypatch):
    config = [tiny("sft", f"run_dir={tmp_path / name}", "num_steps=2", "eval_every=1") for name in "ab"]
    assert loop.train(config[0]) == 0
    kind = loop.STAGES["sft"]
    original = kind.evaluate
    for number in (2, 1):  # the evaluation after step 1, then the one at the end
        calls = []

        def interrupted(self, state, should_stop, number=number, calls=calls):
            calls.append(0)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGTERM)
                return None
            return original(self, state, should_stop)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "evaluate", interrupted)
            assert loop.train(config[1]) == loop.PREEMPTED
        assert not (tmp_path / "b" / "summary.json").exists()
    assert loop.train(config[1]) == 0
    assert sorted(map(str, rows_of(tmp_path / "a"))) == sorted(map(str, rows_of(tmp_path / "b")))
    assert (tmp_path / "a" / "summary.json").read_text() == (tmp_path / "b" / "summary.json").read_text()


def test_a_broken_configuration_in_the_run_directory_is_refused(tiny, tmp_path):
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    with pytest.raises(InputError, match="not a run's configuration"):
        loop.train(tiny("sft", f"run_dir={tmp_path}"))
