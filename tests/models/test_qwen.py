"""The forward pass on its own: segments, positions, padding, vocabulary mask, initialisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import REPO
from thoth_jax.errors import InputError
from thoth_jax.models import count_params, declare, forward, hidden_states, init_params, logits_of
from thoth_jax.models.attention import attention, positions_of
from thoth_jax.models.known import PUBLISHED_PARAMETERS, published

run = jax.jit(forward, static_argnums=1)
TOKENS = np.random.default_rng(0).integers(1, 96, size=(2, 16))
SEGMENTS = np.array([[1] * 6 + [2] * 7 + [0] * 3, [1] * 16])


def test_positions_are_counted_within_segments():
    got = positions_of(jnp.array([[1, 1, 1, 2, 2, 0, 0, 3]]))
    np.testing.assert_array_equal(got, [[0, 1, 2, 0, 1, 0, 1, 0]])


def test_packed_documents_equal_single_ones(config, params):
    packed = run(params, config, TOKENS, None, SEGMENTS)
    for start, end in ((0, 6), (6, 13)):
        alone = run(params, config, TOKENS[:1, start:end])
        np.testing.assert_allclose(packed[0, start:end], alone[0], atol=1e-5)


def test_one_document_of_a_pack_does_not_touch_the_other(config, params):
    changed = TOKENS.copy()
    changed[0, :6] = (changed[0, :6] + 7) % 96
    before, after = (run(params, config, tokens, None, SEGMENTS) for tokens in (TOKENS, changed))
    np.testing.assert_array_equal(before[0, 6:13], after[0, 6:13])
    assert not np.array_equal(before[0, :6], after[0, :6])


def test_later_tokens_do_not_touch_earlier_ones(config, params):
    changed = TOKENS.copy()
    changed[:, 9:] = 5
    before, after = (run(params, config, tokens) for tokens in (TOKENS, changed))
    np.testing.assert_array_equal(before[:, :9], after[:, :9])


def test_given_positions_are_used(config, params):
    arange = np.broadcast_to(np.arange(16), (2, 16))
    plain = run(params, config, TOKENS)
    np.testing.assert_array_equal(run(params, config, TOKENS, arange), plain)
    # Rotary positions are relative: a shift changes nothing, a stretch does.
    np.testing.assert_allclose(run(params, config, TOKENS, arange + 100), plain, atol=1e-4)
    assert np.abs(run(params, config, TOKENS, arange * 2) - plain).max() > 1e-2


@pytest.mark.parametrize("change", [{"rope_theta": 100.0}, {"rms_norm_eps": 1e-2}, {"qk_norm": False}])
def test_each_field_changes_the_logits(config, params, change):
    before, after = (run(params, c, TOKENS) for c in (config, config.replace(**change)))
    assert np.abs(before - after).max() > 1e-3


def test_fully_masked_rows_make_no_nan(config, params):
    def loss(params):
        return (forward(params, config, TOKENS, None, np.zeros_like(TOKENS)) ** 2).mean()

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value) and all(np.isfinite(grad).all() for grad in jax.tree.leaves(grads))
    q = jnp.ones((1, 2, 2, 4))
    np.testing.assert_array_equal(attention(q, q, q, jnp.zeros((1, 2, 2), bool)), np.zeros_like(q))


def test_padded_vocabulary_has_no_probability(config, params):
    short = config.replace(valid_vocab_size=90)
    hidden = jax.jit(hidden_states, static_argnums=1)(params, config, TOKENS)
    probabilities = jax.nn.softmax(logits_of(params, short, hidden))
    assert probabilities[..., 90:].max() == 0.0
    whole, masked = logits_of(params, config, hidden), logits_of(params, short, hidden)
    np.testing.assert_array_equal(masked[..., :90], whole[..., :90])


def test_init_depends_on_key_and_name_only(config, params):
    again = init_params(config, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params, again)
    tied = init_params(config.replace(tie_embeddings=True), jax.random.key(0))
    np.testing.assert_array_equal(tied["embed"], params["embed"])
    assert not np.array_equal(init_params(config, jax.random.key(1))["embed"], params["embed"])
    np.testing.assert_allclose(params["layers"]["q_proj"].std(), config.initializer_range, rtol=0.1)
    assert (params["layers"]["q_norm"] == 1).all()
    assert count_params(config) == sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_published_models(name):
    config = published(name)
    assert count_params(config) == PUBLISHED_PARAMETERS[name]
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    assert jax.tree.map(lambda leaf: leaf.shape, shapes) == jax.tree.map(lambda weight: weight.shape, declare(config))
    logits = jax.eval_shape(lambda params: forward(params, config, jnp.zeros((2, 5), jnp.int32)), shapes)
    assert logits.shape == (2, 5, config.vocab_size)
    assert f"| {name} |" in (REPO / "docs" / "models.md").read_text()


def test_unknown_models_are_refused():
    with pytest.raises(InputError, match="Qwen3-8b: no published model .*Qwen3-8B"):
        published("Qwen3-8b")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_heads": 5}, "num_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"dtype": "float16"}, "dtype"),
        ({"remat": "some"}, "remat"),
        ({"valid_vocab_size": 97}, "valid_vocab_size"),
        ({"num_layers": 0}, "num_layers"),
    ],
)
def test_impossible_configs_are_refused(config, change, field):
    with pytest.raises(InputError, match=rf"model\.{field}"):
        config.replace(**change)
