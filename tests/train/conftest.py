"""A policy of some thousand parameters on the bundled items: compiles in a second or two."""

import jax
import pytest

from thoth_jax import config as configuration
from thoth_jax.sharding import use_mesh
from thoth_jax.train.build import build
from thoth_jax.train.loop import STAGES
from thoth_jax.train.state import create_state

TINY = {
    "model.hidden_size": 32,
    "model.intermediate_size": 48,
    "model.num_layers": 2,
    "model.num_heads": 4,
    "model.num_kv_heads": 2,
    "model.head_dim": 8,
    "task_args": {"system_prompt": "", "drills": 60},
    "eval_examples": 2,
    "max_completion_length": 8,
    "num_steps": 4,
}
OWN = {
    "pretrain": {"batch_size": 8, "max_length": 64},
    "sft": {"batch_size": 4, "max_length": 448},
    "rl": {"prompts_per_step": 2, "group_size": 4, "learning_rate": 1e-2},
}


@pytest.fixture
def tiny():
    """tiny(stage, "key=value", ...) -> configuration."""

    def make(stage: str, *overrides: str):
        return configuration.load(None, [f"stage={stage}", *overrides], {**TINY, **OWN[stage]})

    return make


class Trial:
    """A stage with its state at hand, outside the loop."""

    def __init__(self, config, devices=None):
        self.run = build(config, devices)
        with use_mesh(self.run.mesh):
            self.stage = STAGES[config.stage](self.run)
            self.state = create_state(self.run.params, self.run.lora, self.stage.optimizer, self.run.mesh)
        self.metrics = []

    def steps(self, count: int):
        """Run `count` updates; returns the trained leaves by path."""
        with use_mesh(self.run.mesh):
            for index in range(count):
                self.state, metrics = self.stage.step(self.state, index, lambda: False)
                self.metrics.append({name: float(value) for name, value in metrics.items()})
        return leaves(self.state.trainable)


def leaves(tree):
    """{path: numpy array} of a tree."""
    return {
        jax.tree_util.keystr(path): jax.device_get(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.fixture
def trial():
    """The class `Trial`."""
    return Trial


@pytest.fixture
def rewarded(tmp_path, monkeypatch):
    """An override: a reward that differs among samples of a policy that knows nothing, the share of even token ids."""
    (tmp_path / "even_reward.py").write_text(
        "def even(examples, completions, scale=1.0):\n"
        "    return [scale * sum(t % 2 == 0 for t in c.token_ids) / len(c.token_ids) for c in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    return 'rewards=[{"fn": "even_reward:even"}]'
