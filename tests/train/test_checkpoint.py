"""Checkpoints that were damaged on disk, bases that train on, numbers that are not finite, user code that fails."""

import json
import logging
import shutil

import jax
import numpy as np
import pytest

from thoth_jax.errors import InputError
from thoth_jax.sharding import make_mesh
from thoth_jax.train import loop
from thoth_jax.train.build import load_weights
from thoth_jax.train.checkpoint import newest_step
from thoth_jax.train.metrics import read_metrics


def weights_of(run_dir):
    return jax.tree.leaves(jax.device_get(load_weights(str(run_dir), make_mesh())[1]))


def steps_of(run_dir):
    return sorted(int(path.name) for path in (run_dir / "checkpoints").iterdir())


def largest_file(directory):
    return max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def cut(directory):
    file = largest_file(directory)
    file.write_bytes(file.read_bytes()[:100])


def flip(directory):
    file = largest_file(directory)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def empty(directory):
    shutil.rmtree(directory)
    directory.mkdir()


def stateless(directory):
    shutil.rmtree(directory / "state")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three steps with all of its checkpoints."""
    return {"directory": tmp_path_factory.mktemp("finished") / "run"}


@pytest.fixture
def run(finished, tiny, tmp_path):
    """A copy of that run, and the configuration that continues it there."""

    def config(directory):
        keys = ("num_steps=3", "save_every=1", "keep_checkpoints=3", "eval_at_start=false", "eval_examples=1")
        return tiny("sft", f"run_dir={directory}", *keys)

    if not finished["directory"].exists():
        assert loop.train(config(finished["directory"])) == 0
    shutil.copytree(finished["directory"], tmp_path / "run")
    return tmp_path / "run", config(tmp_path / "run")


@pytest.mark.parametrize("damage", [cut, flip, empty, stateless])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_continues(run, damage, caplog):
    directory, config = run
    whole = weights_of(directory)
    damage(directory / "checkpoints" / "3")
    try:  # the damage may lie in the optimiser's moments, which are not read here
        assert all(np.array_equal(left, right) for left, right in zip(whole, weights_of(directory), strict=True))
    except InputError as error:
        assert "checkpoints/3: the checkpoint is damaged" in str(error) and "use the one before" in str(error)
    with caplog.at_level(logging.WARNING):
        assert loop.train(config) == 0
    assert "checkpoint 3 is damaged" in caplog.text and (directory / "damaged" / "3").exists()
    assert steps_of(directory) == [1, 2, 3]
    for left, right in zip(whole, weights_of(directory), strict=True):
        assert np.array_equal(left, right)
    assert [row["step"] for row in read_metrics(str(directory)) if row["kind"] == "train"] == [1, 2, 3]


def test_a_run_without_a_whole_checkpoint_is_refused_and_nothing_is_lost(run):
    directory, config = run
    for step in (1, 2, 3):
        cut(directory / "checkpoints" / str(step))
    before = (directory / "metrics.jsonl").read_text()
    with pytest.raises(InputError, match=r"no checkpoint is whole \(steps 3, 2, 1 were moved"):
        loop.train(config)
    assert sorted(path.name for path in (directory / "damaged").iterdir()) == ["1", "2", "3"]
    assert (directory / "metrics.jsonl").read_text() == before


def test_another_shape_is_not_a_damage(run, tiny):
    directory, config = run
    config.model.intermediate_size = 64
    with pytest.raises(InputError, match=r"their shapes differ .*model.\* and lora.\* of a run cannot change"):
        loop.train(config, allow_config_change=True)
    assert steps_of(directory) == [1, 2, 3]


def test_a_checkpoint_from_before_checksums_continues(run):
    directory, config = run
    for step in (1, 2, 3):
        file = directory / "checkpoints" / str(step) / "position" / "metadata"
        position = json.loads(file.read_text())
        del position["checksums"]
        file.write_text(json.dumps(position))
    shutil.rmtree(directory / "checkpoints" / "3")
    assert loop.train(config) == 0 and not (directory / "damaged").exists()


def test_the_base_of_adapters_is_pinned(run, tiny, tmp_path):
    directory, config = run
    adapters = tiny("sft", f"init_from={directory}", f"run_dir={tmp_path / 'a'}", "num_steps=1", "lora.rank=2")
    assert loop.train(adapters) == 0
    before = weights_of(tmp_path / "a")
    config.num_steps, config.keep_checkpoints = 4, 4
    assert loop.train(config, allow_config_change=True) == 0 and newest_step(str(directory)) == 4
    for left, right in zip(before, weights_of(tmp_path / "a"), strict=True):
        assert np.array_equal(left, right)
    # Continued, it still stands on step 3.
    adapters.num_steps = 2
    assert loop.train(adapters, allow_config_change=True) == 0
    assert json.loads((tmp_path / "a" / "policy" / "base.json").read_text())["step"] == 3
    shutil.rmtree(directory / "checkpoints" / "3")
    with pytest.raises(InputError, match="holds adapters only, their base cannot be read: .*checkpoints/3: .* is gone"):
        load_weights(str(tmp_path / "a"), make_mesh())
    directory.rename(tmp_path / "moved")
    with pytest.raises(InputError, match="their base cannot be read: .*no such directory"):
        load_weights(str(tmp_path / "a"), make_mesh())


def test_parameters_that_are_not_finite_are_never_saved(run):
    directory, config = run
    config.num_steps, config.learning_rate, config.schedule = 4, 3e38, "constant"
    config.weight_decay = 3e38
    with pytest.raises(FloatingPointError, match="step 4: a parameter is not finite"):
        loop.train(config, allow_config_change=True)
    assert newest_step(str(directory)) == 3


def test_a_reward_that_fails_costs_one_step_and_names_its_line(tiny, tmp_path, monkeypatch):
    (tmp_path / "failing_reward.py").write_text(
        "calls = []\n\n\ndef reward(examples, completions):\n    calls.append(0)\n"
        "    if len(calls) > 6:\n        raise KeyError('no such gold')\n"
        "    return [len(c.text) for c in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    config = tiny(
        "rl",
        'rewards=[{"fn": "failing_reward:reward"}]',
        f"run_dir={tmp_path / 'run'}",
        "num_steps=9",
        "eval_at_start=false",
    )
    with pytest.raises(KeyError, match="no such gold"):
        loop.train(config)
    assert newest_step(str(tmp_path / "run")) == 3  # 2 prompts a step: the 7th call is in step 4
    assert "failing_reward.py" in (tmp_path / "run" / "log.txt").read_text()


def test_a_gold_that_cannot_be_scored_is_refused_before_the_first_step(tiny, tmp_path, trial, caplog):
    rows = [{"id": name, "query": "q", "response": gold} for name, gold in (("a", _GOLD), ("b", "none"), ("c", _GOLD))]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f'task_args={{"train": "{file}", "eval": "{file}", "system_prompt": ""}}'
    with pytest.raises(InputError, match=r"rows.jsonl:2: the gold answer has no key block that can be scored"):
        trial(tiny("rl", data))
    with caplog.at_level(logging.WARNING):
        found = trial(tiny("rl", data.replace("}", ', "skip_bad": true}')))
    assert "1 bad rows skipped" in caplog.text and "2 prompts" in found.stage.describe().splitlines()[-1]


_GOLD = '<key>\nStep 1: {"action": "mix", "objects": ["a"], "parameters": []}\n</key>'
