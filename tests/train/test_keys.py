"""Each key of the trainer changes something: with the key ignored, its line here fails."""

import logging

import jax
import numpy as np
import optax
import pytest

from thoth_jax import config as configuration
from thoth_jax.data import bundled
from thoth_jax.errors import InputError
from thoth_jax.models import hf, init_params
from thoth_jax.models.tokenizer import load_tokenizer
from thoth_jax.tasks.protocol import ProtocolTask
from thoth_jax.train import build, loop
from thoth_jax.train.build import lora_config, model_config
from thoth_jax.train.metrics import read_metrics
from thoth_jax.train.optimizer import make_optimizer


def updates_of(config, steps=4):
    """Parameters of a toy problem after some updates."""
    params = {"norm": np.ones(2, np.float32), "q_proj": np.ones((1, 2, 1, 2), np.float32)}
    optimizer = make_optimizer(config, steps)
    state = optimizer.init(params)
    for step in range(steps):
        gradient = jax.tree.map(lambda leaf, factor=3.0 - step: leaf * factor, params)
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize(
    "override",
    [
        "learning_rate=0.01",
        "schedule=constant",
        "schedule=linear",
        "warmup_ratio=0.5",
        "adam_b1=0.5",
        "adam_b2=0.5",
        "max_grad_norm=5",
        "max_grad_norm=0",
        "optimizer=muon",
    ],
)
def test_optimiser_keys(tiny, override):
    before, after = updates_of(tiny("sft")), updates_of(tiny("sft", override))
    assert not np.allclose(before["q_proj"], after["q_proj"], atol=1e-9)


def test_weight_decay_reaches_matrices_but_not_norms(tiny):
    before, after = updates_of(tiny("sft")), updates_of(tiny("sft", "weight_decay=0.5"))
    assert not np.allclose(before["q_proj"], after["q_proj"], atol=1e-6)
    np.testing.assert_array_equal(before["norm"], after["norm"])


def test_muon_turns_the_maps_of_each_layer_by_an_orthogonal_matrix(tiny):
    """Equal singular values whatever the gradient is, by layer, with the size that AdamW's updates have."""
    rate = 0.01
    config = tiny("sft", "optimizer=muon", f"learning_rate={rate}", "schedule=constant", "max_grad_norm=0")
    rng = np.random.default_rng(0)
    shapes = {"q_proj": (2, 8, 2, 4), "o_proj": (2, 2, 4, 8), "down_proj": (2, 16, 8), "embed": (5, 8), "norm": (8,)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, rows in (("q_proj", 8), ("o_proj", 8), ("down_proj", 16)):
        U, _, V = np.linalg.svd(params[name].reshape(2, rows, 8), full_matrices=False)
        params[name] = (U * np.linspace(1.0, 4.0, 8, dtype=np.float32) @ V).reshape(shapes[name])
    optimizer = make_optimizer(config, 1)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    for name, rows in (("q_proj", 8), ("o_proj", 8), ("down_proj", 16)):
        for layer in np.asarray(updates[name]).reshape(2, rows, 8):
            singular = np.linalg.svd(layer, compute_uv=False) / (0.2 * rate * np.sqrt(max(layer.shape)))
            assert 0.6 < singular.min() and singular.max() < 1.3, name
    for name in ("embed", "norm"):  # the first update of AdamW is the sign of the gradient
        np.testing.assert_allclose(np.abs(updates[name]), rate, rtol=1e-3)


def test_muon_is_for_all_parameters(tiny):
    with pytest.raises(InputError, match=r"optimizer=muon: .* adapters \(lora.rank=2\) take adamw"):
        make_optimizer(tiny("sft", "optimizer=muon", "lora.rank=2"), 1)


@pytest.mark.parametrize(
    "override",
    [
        "hidden_size=64", "intermediate_size=64", "num_layers=3", "num_heads=8", "num_kv_heads=4", "head_dim=16",
        "rope_theta=500", "tie_embeddings=false", "dtype=bfloat16", "remat=full",
    ],
)  # fmt: skip
def test_model_keys(tiny, override):
    name = override.split("=")[0]
    before, after = model_config(tiny("sft"), 100), model_config(tiny("sft", f"model.{override}"), 100)
    assert {field for field in before.__dataclass_fields__ if getattr(before, field) != getattr(after, field)} == {name}


def test_lora_keys(tiny):
    found = lora_config(tiny("sft", "lora.rank=3", "lora.alpha=7", "lora.dropout=0.5", "lora.targets=q_proj,up_proj"))
    assert (found.rank, found.alpha, found.dropout, found.targets) == (3, 7.0, 0.5, ("q_proj", "up_proj"))


def test_rslora_and_modules_to_save(tiny, trial):
    assert lora_config(tiny("sft", "lora.rank=4", "lora.alpha=8", "lora.rslora=true")).scale == 4.0
    assert lora_config(tiny("sft", "lora.rank=4", "lora.alpha=8")).scale == 2.0
    found = trial(tiny("sft", "lora.rank=2", "lora.modules_to_save=embed_tokens", "learning_rate=0.1"))
    before = jax.device_get(found.run.params["embed"])
    after = found.steps(1)
    own = next(leaf for name, leaf in after.items() if "modules" in name)
    assert own.dtype == np.float32 and not np.array_equal(own, before)
    np.testing.assert_array_equal(jax.device_get(found.state.params["embed"]), before)


@pytest.mark.parametrize("trained", [True, False])
def test_an_untrained_end_token_is_warned_of(tiny, tmp_path, caplog, trained):
    tokenizer = load_tokenizer(str(bundled.path("tokenizer.model")))
    model = model_config(tiny("sft"), len(tokenizer)).replace(vocab_size=len(tokenizer) + 64)
    params = dict(init_params(model, jax.random.key(0)))
    if not trained:  # as rows that no token has
        params["embed"] = params["embed"].at[len(tokenizer) :].set(0.001).at[tokenizer.end_id].set(0.001)
    hf.save(tmp_path, model, params, tokenizer)
    with caplog.at_level(logging.WARNING):
        build.build(tiny("sft", f"init_from={tmp_path}", "lora.rank=2"))
    assert ("looks untrained" in caplog.text) == (not trained)
    caplog.clear()
    build.build(tiny("sft", f"init_from={tmp_path}", "lora.rank=2", "lora.modules_to_save=embed_tokens"))
    assert "looks untrained" not in caplog.text


def test_lora_dropout_changes_the_step(tiny, trial):
    losses = []
    for dropout in (0.0, 0.5):
        found = trial(tiny("sft", "lora.rank=2", f"lora.dropout={dropout}", "learning_rate=0.1"))
        found.steps(2)
        losses.append(found.metrics[1]["loss"])
    assert losses[0] != losses[1]


# What a step must show when a key is set, and the keys set in both runs so that it can show.
CLIPPED = ("num_iterations=3", "learning_rate=1e-3", "epsilon_low=0.01", "epsilon_high=0.01")
RL_KEYS = {
    "seed=1": ("rewards/mean",),
    "prompts_per_step=3": ("tokens",),
    "group_size=6": ("tokens",),
    "temperature=0.3": ("entropy",),
    "max_completion_length=4": ("completions/max_length",),
    "aggregation=sequence_mean_token_sum": ("loss/policy",),
    "scale_rewards=none": ("grad_norm",),
    "scale_rewards=batch": ("grad_norm",),
    "baseline=leave_one_out": ("grad_norm",),
    "entropy_coef=1.0": ("loss/entropy",),
    "kl_coef=0.5": ("loss/kl",),
    "num_iterations=2": ("ratio/max",),
    "epsilon_low=0.5": ("pg_clipfrac/low", *CLIPPED),
    "epsilon_high=0.5": ("pg_clipfrac/high", *CLIPPED),
    "level=sequence": ("grad_norm", "num_iterations=2", "learning_rate=1e-3"),
    "kl_estimator=k1": ("kl", *CLIPPED, "kl_coef=0.5"),
    "kl_clamp=1e-4,1e-5": ("kl", *CLIPPED, "kl_coef=0.5"),
    "prompts_per_update=1": ("ratio/max",),
    "overlong.buffer=4": ("rewards/overlong",),
    "overlong.penalty=2": ("rewards/overlong", "overlong.buffer=4"),
    "dynamic_sampling.max_rounds=1": ("sampling/rounds",),
    "preset=gspo": ("ratio/max", "num_iterations=2", "learning_rate=1e-2"),
    "constant=4": ("grad_norm", "aggregation=constant", "constant=8", "max_grad_norm=0"),
    "mask_truncated=true": ("tokens",),
    "kl_in_reward=5": ("rewards/kl_penalty",),
    "dual_clip=1.01": ("pg_clipfrac/dual", "num_iterations=2"),
    "rollout_correction.level=token": ("rollout_weight/mean",),
    "rollout_correction.cap=0.5": ("rollout_weight/mean", "rollout_correction.level=sequence"),
    "rollout_correction.mode=mask": (
        "rollout_weight/mean",
        "rollout_correction.level=token",
        "rollout_correction.cap=0.5",
    ),
}


@pytest.fixture(scope="module")
def steps_seen():
    """Metrics of the first step by overrides, so that each comparison run is made once."""
    return {}


@pytest.mark.parametrize("override", RL_KEYS)
def test_rl_keys(tiny, trial, rewarded, steps_seen, override):
    metric, *common = RL_KEYS[override]
    for words in (tuple(common), (*common, override)):
        if words not in steps_seen:
            found = trial(tiny("rl", rewarded, "mesh.fsdp=1", *words), jax.devices()[:1])
            found.steps(1)
            steps_seen[words] = found.metrics[0]
    base, other = steps_seen[tuple(common)], steps_seen[(*common, override)]
    assert metric in other and other[metric] != base.get(metric)


def test_kl_in_the_reward_moves_the_advantages(tiny, trial, rewarded):
    found = []
    for weight in (0.0, 50.0):
        words = (rewarded, "mesh.fsdp=1", "learning_rate=1e-2", "max_grad_norm=0", f"kl_in_reward={weight}")
        one = trial(tiny("rl", *words), jax.devices()[:1])
        one.steps(2)
        found.append(one.metrics)
    plain, shaped = found
    assert shaped[0]["rewards/kl_penalty"] == pytest.approx(0, abs=1e-4)  # the policy is the reference still
    assert shaped[0]["grad_norm"] == pytest.approx(plain[0]["grad_norm"], rel=1e-3)
    assert abs(shaped[1]["rewards/kl_penalty"]) > 1e-3 and "rewards/kl_penalty" not in plain[1]
    assert shaped[1]["rewards/mean"] == plain[1]["rewards/mean"]  # what is logged is the reward before it
    assert shaped[1]["grad_norm"] != pytest.approx(plain[1]["grad_norm"], rel=1e-2)


@pytest.mark.parametrize(
    "override, metric", [("batch_size=2", "tokens"), ("seed=1", "loss"), ("max_length=32", "tokens")]
)
def test_lm_keys(tiny, trial, override, metric):
    base, other = (trial(tiny("pretrain", "mesh.fsdp=1", *more), jax.devices()[:1]) for more in ((), (override,)))
    base.steps(1), other.steps(1)
    assert other.metrics[0][metric] != base.metrics[0][metric]


def test_packing_and_thinking_keys(tiny, trial):
    rows = [
        trial(tiny("sft", "max_length=900", word)).stage._rows
        for word in ("packing=true", "packing=false", "enable_thinking=false")
    ]
    assert len(rows[0]) < len(rows[1]) == len(ProtocolTask().examples("train"))
    assert rows[2].segment_ids.astype(bool).sum() > rows[0].segment_ids.astype(bool).sum()


def test_chunk_and_slots_reach_what_they_size(tiny, trial):
    assert trial(tiny("rl", "slots=3", "loss_chunk_size=7")).stage._options()["chunk_size"] == 7
    whole, few = (
        trial(tiny("rl", "mesh.fsdp=1"), jax.devices()[:1]),
        trial(tiny("rl", "slots=3", "mesh.fsdp=1"), jax.devices()[:1]),
    )
    whole.steps(1), few.steps(1)
    # The same samples, whatever the number of slots.
    assert whole.metrics[0]["tokens"] == few.metrics[0]["tokens"]
    assert few.stage._engine._fixed_slots == 3 and whole.stage._engine._fixed_slots == 8


def test_evaluation_keys(tiny, tmp_path):
    def evals(*words):
        run_dir = tmp_path / str(len(list(tmp_path.iterdir())))
        assert loop.train(tiny("sft", f"run_dir={run_dir}", "eval_at_start=false", *words)) == 0
        rows = [row for row in read_metrics(str(run_dir)) if row["kind"] == "eval"]
        return [row["step"] for row in rows], len((run_dir / "samples" / "4.jsonl").read_text().splitlines())

    assert evals() == ([4], 2)
    assert evals("eval_every=2", "eval_at_start=true") == ([0, 2, 4], 2)
    assert evals("eval_examples=1") == ([4], 1)


def test_train_examples_takes_the_first(tiny, trial):
    assert len(trial(tiny("sft", "train_examples=5", "packing=false")).stage._rows) == 5
    assert [e.id for e in trial(tiny("rl", "train_examples=3")).stage._examples] == [
        e.id for e in ProtocolTask().examples("train")[:3]
    ]
    few, all_rows = trial(tiny("pretrain", "train_examples=4")).stage._rows, trial(tiny("pretrain")).stage._rows
    assert len(few) < len(all_rows) / 2


def test_num_epochs_sets_the_steps(tiny, trial):
    rows = len(trial(tiny("pretrain")).stage._rows)
    assert trial(tiny("pretrain", "num_steps=0", "num_epochs=3")).stage.num_steps == -(-3 * rows // 8)
    items = len(ProtocolTask().examples("train"))
    assert trial(tiny("rl", "num_steps=0", "num_epochs=3")).stage.num_steps == -(-3 * items // 2)


def test_architecture_keys_against_init_from_are_refused(tiny, tmp_path):
    assert loop.train(tiny("sft", f"run_dir={tmp_path}", "num_steps=1", "eval_at_start=false")) == 0
    with pytest.raises(InputError, match="model.num_layers=6: the weights of init_from have 2"):
        build.build(tiny("sft", f"init_from={tmp_path}", "model.num_layers=6"))
    run = build.build(tiny("sft", f"init_from={tmp_path}", "model.dtype=bfloat16", "model.remat=full"))
    assert (run.model.dtype, run.model.remat) == ("bfloat16", "full")


def test_tokenizer_and_task_keys(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such tokenizer"):
        build.build(tiny("sft", "tokenizer=none.model"))
    with pytest.raises(InputError, match="no module 'own'"):
        build.build(tiny("sft", "task=own:Task"))
    assert configuration.run_dir_of(tiny("rl")) == "runs/rl"


def test_every_key_is_read_by_the_code(repo):
    """A key that no line of the package reads is a dead option."""
    code = "\n".join(path.read_text() for path in (repo / "thoth_jax").rglob("*.py") if "config" not in path.name)
    code += (repo / "thoth_jax" / "config.py").read_text()
    for name in configuration.KEYS:
        leaf = name.split(".")[-1]
        assert f".{leaf}" in code or f'"{leaf}"' in code, name
