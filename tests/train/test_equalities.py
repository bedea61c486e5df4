"""What must not change the result: the mesh, the cut into micro-batches, packing."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from thoth_jax.data.packing import plan
from thoth_jax.train.lm import lm_loss, pack
from thoth_jax.train.state import microbatches

from .conftest import leaves


def assert_same(left, right, tolerance):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], atol=tolerance, rtol=0, err_msg=name)


MESHES = {
    "fsdp8": ("mesh.fsdp=8",),
    "fsdp4_tensor2": ("mesh.fsdp=4", "mesh.tensor=2"),
    "fsdp2_tensor4": ("mesh.fsdp=2", "mesh.tensor=4"),  # two K/V heads do not divide by four
    "data2_fsdp2_tensor2": ("mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"),
}


@pytest.mark.parametrize(
    "stage, lora, meshes",
    [
        ("pretrain", 0, ("fsdp8", "fsdp2_tensor4")),
        ("sft", 4, ("fsdp4_tensor2", "data2_fsdp2_tensor2")),
        ("rl", 0, ("fsdp8", "fsdp4_tensor2")),
        pytest.param("pretrain", 4, tuple(MESHES), marks=pytest.mark.slow),
        pytest.param("sft", 0, tuple(MESHES), marks=pytest.mark.slow),
        pytest.param("rl", 0, tuple(MESHES), marks=pytest.mark.slow),
        pytest.param("rl", 4, tuple(MESHES), marks=pytest.mark.slow),
        pytest.param("sft muon", 0, ("fsdp8", "fsdp4_tensor2"), marks=pytest.mark.slow),
    ],
)
def test_a_sharded_step_equals_one_device(tiny, trial, rewarded, stage, lora, meshes):
    stage, _, optimizer = stage.partition(" ")
    words = (f"lora.rank={lora}", f"optimizer={optimizer or 'adamw'}", *([rewarded] if stage == "rl" else []))
    one = trial(tiny(stage, *words, "mesh.fsdp=1"), jax.devices()[:1])
    one.steps(1)
    for mesh in meshes:
        many = trial(tiny(stage, *words, *MESHES[mesh]))
        many.steps(1)
        for name, value in one.metrics[0].items():
            if not name.startswith(("step_time", "compile", "logp_diff", "lr")):
                assert many.metrics[0][name] == pytest.approx(value, rel=2e-4, abs=2e-5), (mesh, name)
        # Adam's first step is +-learning_rate wherever a gradient is rounding noise, so parameters cannot tell; its
        # first moment is the clipped gradient times 0.1.
        moments = [
            {name: leaf for name, leaf in leaves(t.state.opt_state).items() if ".mu" in name} for t in (one, many)
        ]
        assert moments[0] and max(np.abs(leaf).max() for leaf in moments[0].values()) > 1e-4
        assert_same(*moments, 2e-6)


def test_parameters_and_moments_are_sharded_from_the_start(tiny, trial):
    found = trial(tiny("sft", "mesh.fsdp=4", "mesh.tensor=2"))
    specs = {
        "embed": P("tensor", "fsdp"),
        "q_proj": P(None, "fsdp", "tensor", None),
        "down_proj": P(None, "tensor", "fsdp"),
    }
    trees = [found.state.params, found.state.opt_state]
    seen = {name: 0 for name in specs}
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        name = jax.tree_util.keystr(path)
        for key, expected in specs.items():
            if name.endswith(f"['{key}']"):
                seen[key] += 1
                assert leaf.sharding.spec == expected, name
    assert set(seen.values()) == {3}  # the parameter and both moments of Adam


@pytest.mark.parametrize(
    "overrides",
    [("sft",), ("rl",), ("rl", "aggregation=sequence_mean_token_mean"), ("rl", "aggregation=constant", "constant=8")],
)
def test_microbatches_equal_the_full_batch(tiny, trial, rewarded, overrides):
    if overrides[0] == "rl":
        overrides = (*overrides, rewarded)
    whole = trial(tiny(*overrides, "mesh.fsdp=1"), jax.devices()[:1])
    cut = trial(tiny(*overrides, "mesh.fsdp=1", "tokens_per_microbatch=300"), jax.devices()[:1])
    whole.steps(1), cut.steps(1)
    for name, value in whole.metrics[0].items():
        if name.startswith(("step_time", "compile")):
            continue
        np.testing.assert_allclose(cut.metrics[0][name], value, rtol=2e-5, atol=1e-6, err_msg=name)


def test_microbatches_fill_the_last_one_with_empty_rows():
    batch = {"tokens": np.arange(15, dtype=np.int32).reshape(5, 3), "loss_mask": np.ones((5, 3), bool)}
    micro = microbatches(batch, tokens=6, shards=1)
    assert micro["tokens"].shape == (3, 2, 3) and micro["loss_mask"][2].tolist() == [[True] * 3, [False] * 3]
    assert microbatches(batch, tokens=0, shards=4)["tokens"].shape == (1, 8, 3)
    assert microbatches(batch, tokens=1, shards=2)["tokens"].shape == (3, 2, 3)


def test_packed_and_unpacked_answers_have_the_same_loss_and_gradient(tiny, trial):
    found = trial(tiny("sft", "mesh.fsdp=1"), jax.devices()[:1])
    samples = found.stage._encode(found.run.task.examples("train")[:8]).samples
    widths = [s.width for s in samples]
    assert len(plan(widths, 900)) < len(samples)
    grads = []
    for packing in (True, False):
        rows = pack(samples, 900, packing)
        batch = rows.take(np.arange(len(rows)))
        value = jax.jit(jax.value_and_grad(lambda p, b: lm_loss(p, None, found.run.model, b, chunk_size=64)[0]))(
            found.state.params, batch
        )
        grads.append(value)
    assert float(grads[0][0]) == pytest.approx(float(grads[1][0]), rel=1e-5)
    for left, right in zip(jax.tree.leaves(grads[0][1]), jax.tree.leaves(grads[1][1]), strict=True):
        np.testing.assert_allclose(left, right, atol=2e-3, rtol=2e-4)
