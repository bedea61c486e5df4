import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thoth_jax.errors import InputError
from thoth_jax.rollout import Sampling
from thoth_jax.rollout.sampling import keep
from thoth_jax.rollout.sampling import sample as draw

sample = jax.jit(draw, static_argnames="sampling")
kept_of = jax.jit(keep, static_argnames="sampling")
# Probabilities 0.4, 0.3, 0.15, 0.1, 0.05 in shuffled places.
PROBABILITIES = np.array([0.1, 0.4, 0.05, 0.3, 0.15])


def support(probabilities, **options):
    weights = (np.asarray(probabilities) / np.max(probabilities)).astype(np.float32)[None]
    return np.flatnonzero(np.asarray(kept_of(weights, sampling=Sampling(**options)))[0]).tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 3, 4]),
        ({"top_k": 5}, [0, 1, 2, 3, 4]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.3}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 0.69}, [1, 3]),
        ({"top_p": 0.8}, [1, 3, 4]),
        ({"top_p": 0.96}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.5}, [1, 3]),
        ({"min_p": 0.24}, [0, 1, 3, 4]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 2, "top_p": 0.6}, [1, 3]),  # 0.4 / 0.7 is below 0.6
        ({"top_k": 2, "top_p": 0.57}, [1]),  # and above 0.57: top-p looks at what top-k left
        ({"top_p": 0.8, "min_p": 0.5}, [1, 3]),
    ],
)
def test_supports(options, expected):
    assert support(PROBABILITIES, **options) == expected


def test_ties_are_kept_and_impossible_tokens_are_not():
    assert support([0.3, 0.3, 0.3, 0.1], top_k=2) == [0, 1, 2]
    assert support([0.25, 0.25, 0.25, 0.25], top_p=0.1) == [0, 1, 2, 3]
    assert support([0.5, 0.0, 0.5, 0.0], top_k=4) == [0, 2]
    assert support([0.5, 0.0, 0.5, 0.0], top_p=0.999) == [0, 2]


def test_filters_agree_with_sorting():
    rng = np.random.default_rng(0)
    for vocabulary in (7, 300):
        weights = np.exp(3 * rng.standard_normal((4, vocabulary))).astype(np.float32)
        for row in weights:
            order = np.argsort(-row)
            for top_k in (1, 5):
                assert support(row, top_k=top_k) == sorted(order[:top_k].tolist())
            mass = np.cumsum(row[order].astype(np.float64)) / row.sum(dtype=np.float64)
            for top_p in (0.5, 0.99):
                count = int(np.searchsorted(mass, top_p)) + 1
                assert support(row, top_p=top_p) == sorted(order[:count].tolist())


def chi_square(counts, probabilities):
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("vocabulary", "options"),
    [
        (5, {}),
        (64, {"temperature": 0.6}),
        (1000, {"temperature": 1.7}),
        (64, {"top_k": 4}),
        (100, {"top_p": 0.8}),
        (5, {"min_p": 0.3}),
    ],
)
def test_frequencies(vocabulary, options):
    """20000 draws: the chi-square statistic has mean n and deviation sqrt(2 n) for n degrees of freedom."""
    sampling, draws = Sampling(**options), 20_000
    logits = 1.5 * np.random.default_rng(vocabulary).standard_normal(vocabulary).astype(np.float32)
    scaled = logits / sampling.temperature
    full = np.exp(scaled - scaled.max()) / np.exp(scaled - scaled.max()).sum()
    kept = support(full, **{name: value for name, value in options.items() if name != "temperature"})
    expected = np.zeros(vocabulary)
    expected[kept] = full[kept] / full[kept].sum()
    keys = jax.random.split(jax.random.key(3), draws)
    tokens, logprobs = sample(jnp.broadcast_to(logits, (draws, vocabulary)), keys, sampling=sampling)
    counts = np.bincount(tokens, minlength=vocabulary)
    assert set(np.flatnonzero(counts)) <= set(kept)
    often = expected * draws >= 5  # the statistic needs some counts; the rest is one class
    classes = np.append(counts[often], counts[~often].sum())
    shares = np.append(expected[often], expected[~often].sum())
    classes, shares = classes[shares > 0], shares[shares > 0]
    degrees = len(shares) - 1
    assert chi_square(classes, shares) < degrees + 4 * np.sqrt(2 * degrees) + 4
    # Of the temperature's full distribution, whatever the filters.
    np.testing.assert_allclose(logprobs, np.log(full)[np.asarray(tokens)], atol=2e-5)


def test_rare_tokens_are_drawn_as_often_as_they_should():
    """1023 tokens of probability 5e-7 each behind one that takes the rest: their sum must come out right."""
    logits = np.full((1, 1024), np.log(5e-7), np.float32)
    logits[0, 100] = 0.0
    draws = 50_000
    keys = jax.random.split(jax.random.key(0), draws)
    tokens, _ = sample(jnp.broadcast_to(logits, (draws, 1024)), keys, sampling=Sampling())
    rare = np.asarray(tokens)[np.asarray(tokens) != 100]
    expected = draws * 1023 * 5e-7
    assert abs(len(rare) - expected) < 5 * np.sqrt(expected)
    assert len(set(rare.tolist())) > 10  # spread over the vocabulary


def test_greedy():
    logits = jnp.log(jnp.asarray([PROBABILITIES, PROBABILITIES[::-1]]))
    tokens, logprobs = sample(logits, jax.random.split(jax.random.key(0), 2), sampling=Sampling(temperature=0))
    assert tokens.tolist() == [1, 3]
    np.testing.assert_allclose(logprobs, np.log([0.4, 0.4]), rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"top_k": 7}, {"top_p": 0.999}, {"min_p": 1e-9}, {"temperature": 0}])
def test_ids_without_probability_are_never_drawn(options):
    logits = np.full((2000, 10), -1e30, np.float32)
    logits[:, [2, 5]] = [1.0, 0.0]
    logits[:, 7] = -np.inf
    tokens, logprobs = sample(logits, jax.random.split(jax.random.key(1), 2000), sampling=Sampling(**options))
    assert set(tokens.tolist()) == ({2} if options.get("temperature") == 0 else {2, 5})
    assert np.isfinite(logprobs).all()


def test_a_row_depends_on_its_own_key_and_logits_only():
    logits = np.random.default_rng(0).standard_normal((8, 50)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 8)
    tokens, logprobs = sample(logits, keys, sampling=Sampling())
    order = np.array([3, 1, 7, 0])
    some, some_logprobs = sample(logits[order], keys[order], sampling=Sampling())
    assert some.tolist() == tokens[order].tolist()
    np.testing.assert_allclose(some_logprobs, logprobs[order], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "sampling.temperature=-1: must be a number >= 0"),
        ({"temperature": float("nan")}, "sampling.temperature=nan"),
        ({"temperature": float("inf")}, "must be finite"),
        ({"top_k": -1}, "sampling.top_k=-1"),
        ({"top_k": 1.5}, "sampling.top_k=1.5: must be an integer"),
        ({"top_p": 0}, "sampling.top_p=0: must be above 0"),
        ({"top_p": 1.1}, "sampling.top_p=1.1: must be a number >= 0 and <= 1"),
        ({"min_p": 2}, "sampling.min_p=2"),
        ({"max_tokens": 0}, "sampling.max_tokens=0"),
        ({"stop_ids": [-1]}, "sampling.stop_ids"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError) as caught:
        Sampling(**options)
    assert message in str(caught.value)


def test_a_list_of_stop_ids_is_hashable():
    assert hash(Sampling(stop_ids=[1, 2])) == hash(Sampling(stop_ids=(1, 2)))
