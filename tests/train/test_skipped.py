"""A step whose gradient is not finite changes nothing, its batch is kept, and a run of them ends."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from thoth_jax.train import loop
from thoth_jax.train.checkpoint import newest_step
from thoth_jax.train.lm import LmStage
from thoth_jax.train.metrics import read_metrics
from thoth_jax.train.state import TrainState, apply_update


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_with_a_gradient_that_is_not_finite_changes_nothing(bad):
    params = {"a": jnp.ones(3), "b": jnp.ones((2, 2))}
    optimizer = optax.adam(0.1)
    state = TrainState(step=jnp.int32(4), params=params, lora=None, opt_state=optimizer.init(params))
    gradient = {"a": jnp.ones(3), "b": jnp.ones((2, 2)).at[0, 1].set(bad)}
    after, norm = jax.jit(apply_update, static_argnums=3)(state, gradient, jnp.float32(2), optimizer)
    assert not np.isfinite(norm) and int(after.step) == 5
    for one, other in zip(
        jax.tree.leaves((state.params, state.opt_state)), jax.tree.leaves((after.params, after.opt_state)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    good, _ = apply_update(state, params, jnp.float32(1), optimizer)
    assert float(good.params["a"][0]) == pytest.approx(0.9)


def sick(bad_steps):
    class Sick(LmStage):
        def step(self, state, index, should_stop):
            state, metrics = super().step(state, index, should_stop)
            return state, metrics | ({"grad_norm": float("nan")} if index + 1 in bad_steps else {})

    return Sick


def test_single_steps_are_skipped_and_their_batches_kept(tiny, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(loop.STAGES, "pretrain", sick({2, 3}))
    run = tmp_path / "run"
    assert loop.train(tiny("pretrain", f"run_dir={run}", "eval_at_start=false")) == 0
    assert sorted(file.name for file in (run / "skipped").iterdir()) == ["2.npz", "3.npz"]
    with np.load(run / "skipped" / "2.npz", allow_pickle=False) as batch:
        assert batch["tokens"].shape == (8, 64) and batch["loss_mask"].any()
    assert "step 2: grad_norm is nan: no update" in caplog.text
    assert [row["step"] for row in read_metrics(str(run)) if row["kind"] == "train"] == [1, 2, 3, 4]


@pytest.mark.parametrize(("most", "end"), [(3, 4), (2, 3)])
def test_a_run_of_skipped_steps_ends(tiny, tmp_path, monkeypatch, most, end):
    monkeypatch.setitem(loop.STAGES, "pretrain", sick({2, 3, 4}))
    config = tiny(
        "pretrain", f"run_dir={tmp_path}", "save_every=1", f"stop_after_skipped={most}", "eval_at_start=false"
    )
    with pytest.raises(FloatingPointError, match=f"step {end}: grad_norm is nan, the {most}. step in a row"):
        loop.train(config)
    assert newest_step(str(tmp_path)) == end - 1
