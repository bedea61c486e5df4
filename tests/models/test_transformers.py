"""Equal to transformers and peft on every architecture: outputs stored by golden/make.py, weights drawn by name."""

import functools

import jax
import numpy as np
import pytest

from tests.models.golden import make
from thoth_jax.models import (
    LoraConfig,
    declare,
    decode_step,
    forward,
    hf_config,
    hidden_states,
    merge,
    prefill,
    token_logprobs,
)
from thoth_jax.models.lora import declare_lora
from thoth_jax.models.tensors import hf_names, hf_shape, to_hf, to_ours

run = jax.jit(forward, static_argnums=1)
DATA = make.batch()


@pytest.fixture(scope="module")
def want():
    with np.load(make.HERE / "transformers.npz") as file:
        return dict(file)


def drawn(declared):
    """The weights that make.py drew."""

    def one(weight):
        parts = [to_ours(weight, make.draw(name, hf_shape(weight))) for name in hf_names(weight)]
        return np.stack(parts) if weight.stacked else parts[0]

    return jax.tree.map(one, declared)


@pytest.fixture(scope="module", params=make.CASES)
def case(request):
    config = hf_config.config_from_hf({**make.SIZES, **make.CASES[request.param]})
    return request.param, config, drawn(declare(config))


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_of_padded_rows(case, want, side):
    name, config, params = case
    mask = DATA[f"{side}_mask"]
    got = run(params, config, DATA[side], None, mask)
    np.testing.assert_allclose(got[mask > 0], want[f"{name}/{side}"][mask > 0], atol=2e-4)


def test_logits_of_packed_rows(case, want):
    name, config, params = case
    packed = run(params, config, DATA["packed"], None, DATA["packed_segments"])[0]
    rows = np.concatenate([want[f"{name}/right"][row, :length] for row, length in enumerate(make.LENGTHS)])
    np.testing.assert_allclose(packed, rows, atol=2e-4)


def test_greedy_tokens(case, want):
    name, config, params = case
    prompt = DATA["right"][1:2, : make.LENGTHS[1]]
    first = jax.jit(prefill, static_argnums=(1, 5))
    step = jax.jit(decode_step, static_argnums=1)
    logits, cache = first(params, config, prompt, np.array([make.LENGTHS[1]]), None, make.LENGTHS[1] + make.STEPS)
    found = []
    for number in range(make.STEPS):
        found.append(int(logits[0].argmax()))
        at = np.array([make.LENGTHS[1] + number])
        logits, cache = step(params, config, cache, np.array(found[-1:], np.int32), at)
    np.testing.assert_array_equal(found, want[f"{name}/greedy"])


def test_loss_and_gradients(case, want):
    name, config, params = case
    ids, mask = DATA["right"], DATA["right_mask"]

    def loss(params):
        hidden = hidden_states(params, config, ids, None, mask)
        logprobs, _ = token_logprobs(params, config, hidden[:, :-1], ids[:, 1:], chunk_size=16)
        return -(logprobs * mask[:, 1:]).sum() / mask[:, 1:].sum()

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    np.testing.assert_allclose(value, want[f"{name}/loss"], rtol=1e-5)
    got = {}
    jax.tree.map(lambda weight, grad: got.update(to_hf(weight, grad)), declare(config), grads)
    expected = {key.split("/grad/")[1]: value for key, value in want.items() if key.startswith(f"{name}/grad/")}
    assert got.keys() == expected.keys()
    for key, (norm, projection) in expected.items():
        grad, seen = got[key].astype(np.float64), make.draw(f"seen {key}", got[key].shape)
        assert np.linalg.norm(grad) == pytest.approx(norm, rel=1e-3, abs=1e-6), key
        assert (grad * seen).sum() == pytest.approx(projection, abs=1e-3 * norm * np.linalg.norm(seen) + 1e-6), key


def test_bfloat16_stays_close(case, want):
    name, config, params = case
    mask = DATA["right_mask"] > 0
    got = np.asarray(run(params, config.replace(dtype="bfloat16"), DATA["right"], None, DATA["right_mask"]))
    error = np.abs(got - want[f"{name}/right"])[mask]
    assert error.max() < 0.05 * np.abs(want[f"{name}/right"]).max() and error.mean() < 0.03


def test_adapter_on_off_and_merged(want):
    config = hf_config.config_from_hf({**make.SIZES, **make.CASES["qwen3"]})
    params = drawn(declare(config))
    settings = make.ADAPTER
    lora_config = LoraConfig(
        settings["r"], settings["lora_alpha"], targets=tuple(settings["target_modules"]), rslora=settings["use_rslora"]
    )
    lora = drawn(declare_lora(config, lora_config))
    mask = DATA["right_mask"]
    adapted = functools.partial(run, params, config, DATA["right"], None, mask)
    for got, key in ((adapted(lora), "adapted"), (adapted(None), "right")):
        np.testing.assert_allclose(got[mask > 0], want[f"qwen3/{key}"][mask > 0], atol=2e-4)
    merged = run(merge(params, config, lora), config, DATA["right"], None, mask)
    np.testing.assert_allclose(merged[mask > 0], want["qwen3/adapted"][mask > 0], atol=5e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"factor": 2.0},
        {"original_max_position_embeddings": 24},
        {"attention_factor": 1.0},
        {"beta_fast": 1.0},
        {"beta_slow": 0.6},
        {"mscale": 1.2, "mscale_all_dim": 0.7},
        {"truncate": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_of_yarn_counts(change):
    # Base 80 puts both ends of the ramp strictly inside the head, so that each of them is seen.
    fields = {**make.SIZES, **make.CASES["qwen3_yarn"], "rope_theta": 80.0}
    scaling = {**make.YARN, "beta_fast": 1.5, "beta_slow": 0.3}
    before = hf_config.config_from_hf({**fields, "rope_scaling": scaling})
    after = hf_config.config_from_hf({**fields, "rope_scaling": {**scaling, **change}})
    params = drawn(declare(before))
    got = [run(params, config, DATA["packed"][:, :20]) for config in (before, after)]
    assert np.abs(got[0] - got[1]).max() > 1e-3


def test_both_spellings_of_yarn_and_the_way_back():
    fields = {**make.SIZES, **make.CASES["qwen3_yarn"]}
    classic = hf_config.config_from_hf(dict(fields))
    newer = {key: value for key, value in fields.items() if key not in ("rope_scaling", "rope_theta")}
    newer["rope_parameters"] = {**make.YARN, "rope_theta": fields["rope_theta"]}
    assert hf_config.config_from_hf(newer) == classic
    for config in (classic, hf_config.config_from_hf({**make.SIZES, **make.CASES["qwen2_yarn"]})):
        assert hf_config.config_from_hf(hf_config.config_to_hf(config)) == config
