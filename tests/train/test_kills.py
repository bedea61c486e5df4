"""Runs that are killed with SIGKILL, whatever they are doing, end bit for bit as one that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests.conftest import QUICK
from tests.train.conftest import OWN, TINY
from thoth_jax import config as configuration
from thoth_jax.sharding import make_mesh
from thoth_jax.train.build import load_weights
from thoth_jax.train.metrics import read_metrics

SMALL = {"model.num_layers": 1, "eval_examples": 1, "eval_every": 7, "max_completion_length": 6, "save_every": 2}
# What a stage has to bring back besides its parameters: waiting groups, noise of the dropout, epochs of the data.
STAGES = {
    "rl": ('rewards=[{"fn": "paced_reward:even"}]', "dynamic_sampling.max_rounds=3", "num_iterations=2"),
    "sft": ("lora.rank=2", "lora.dropout=0.3", "keep_best=2", "best_metric=loss", "best_mode=min"),
    "pretrain": ("batch_size=2", "train_examples=20"),
}
# Slow enough that a kill can fall into a step.
PACED = """
import time

def even(examples, completions):
    time.sleep(0.03)
    return [sum(token % 2 == 0 for token in c.token_ids) // 4 for c in completions]
"""


def write_config(directory, stage: str, name: str, steps: int) -> str:
    (directory / "paced_reward.py").write_text(PACED)
    keys = [f"stage={stage}", *STAGES[stage], f"run_dir={directory / name}", f"num_steps={steps}"]
    file = directory / f"{name}.json"
    file.write_text(configuration.to_json(configuration.load(None, keys, {**TINY, **OWN[stage], **SMALL})))
    return str(file)


def start(config: str, directory) -> subprocess.Popen:
    flags = " ".join(["--xla_force_host_platform_device_count=1", *QUICK])
    command = [sys.executable, "-m", "thoth_jax.cli", "train", "--config", config]
    environment = {**os.environ, "XLA_FLAGS": flags}
    return subprocess.Popen(command, env=environment, cwd=directory, stderr=subprocess.PIPE, text=True)


def finish(config: str, directory) -> str:
    process = start(config, directory)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, errors[-4000:]
    return errors


def steps_done(run) -> int:
    return max((row["step"] for row in read_metrics(str(run)) if row["kind"] == "train"), default=0)


def kill_at(config: str, directory, run, step: int, delay: float) -> bool:
    """Kill a run `delay` seconds after the row of `step` is there; False where it ended before."""
    process = start(config, directory)
    try:
        while steps_done(run) < step and process.poll() is None:
            time.sleep(0.01)
        try:
            process.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        errors = process.communicate()[1]
    assert process.returncode in (-signal.SIGKILL, 0), errors[-4000:]
    return process.returncode != 0


def untimed(run) -> list[dict]:
    """Rows of the metrics without times, throughput and the number of compilations."""
    left_out = ("time", "tokens_per_sec", "compile/", "step_time/")
    return [{k: v for k, v in row.items() if not k.startswith(left_out)} for row in read_metrics(str(run))]


def assert_same_end(one, other, steps: int) -> None:
    trees = [jax.tree.leaves(jax.device_get(load_weights(str(run), make_mesh())[1])) for run in (one, other)]
    for left, right in zip(*trees, strict=True):
        np.testing.assert_array_equal(left, right)
    # The position holds a sum of the bits of every array, those of the optimiser among them.
    positions = [json.loads((run / f"checkpoints/{steps}/position/metadata").read_text()) for run in (one, other)]
    for name in ("checksums", "sampling", "step"):
        assert positions[0][name] == positions[1][name], name
    assert untimed(one) == untimed(other)
    assert [row["step"] for row in untimed(one) if row["kind"] == "train"] == list(range(1, steps + 1))
    assert sorted(p.name for p in (one / "checkpoints").iterdir()) == sorted(
        p.name for p in (other / "checkpoints").iterdir()
    )
    for file in (one / "summary.json", *(one / "samples").iterdir()):
        assert file.read_text() == (other / file.relative_to(one)).read_text()


def test_two_kills_change_nothing(tmp_path):
    killed, straight = (write_config(tmp_path, "rl", name, 8) for name in ("killed", "straight"))
    finish(straight, tmp_path)
    for step, delay in ((2, 0.02), (5, 0.1)):
        assert kill_at(killed, tmp_path, tmp_path / "killed", step, delay)
    assert "continuing from step" in finish(killed, tmp_path)
    assert_same_end(tmp_path / "straight", tmp_path / "killed", 8)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_twenty_kills_at_random_moments_change_nothing(tmp_path, stage):
    chance = random.Random(7)
    killed, straight = (write_config(tmp_path, stage, name, 40) for name in ("killed", "straight"))
    began = time.monotonic()
    finish(straight, tmp_path)
    whole = time.monotonic() - began
    # After a random step and up to a few steps more; where it is past that step already, at any moment of its start.
    kills, moments = 0, sorted(chance.randrange(36) for _ in range(20))
    for step in moments:
        past = steps_done(tmp_path / "killed") >= step
        delay = chance.uniform(0, whole / 2) if past else chance.uniform(0, 0.2)
        kills += kill_at(killed, tmp_path, tmp_path / "killed", step, delay)
    assert kills >= 18  # one that has ended is started again to no effect, and cannot be killed in a step
    finish(killed, tmp_path)
    assert_same_end(tmp_path / "straight", tmp_path / "killed", 40)
