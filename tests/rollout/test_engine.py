import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from thoth_jax.errors import InputError
from thoth_jax.models import LoraConfig, QwenConfig, forward, init_lora, init_params
from thoth_jax.rollout import Engine, Sampling
from thoth_jax.rollout.engine import bucket
from thoth_jax.sharding import make_mesh, use_mesh

CONFIG = QwenConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    initializer_range=0.3,  # so that distributions are far from uniform
    max_position_embeddings=128,
)
LENGTHS = (5, 16, 17, 1, 9, 12)  # at and beside the edges of the buckets
T = 12


@pytest.fixture(scope="module")
def params():
    return init_params(CONFIG, jax.random.key(0))


@pytest.fixture(scope="module")
def adapter():
    lora = init_lora(CONFIG, LoraConfig(rank=4, alpha=8.0), jax.random.key(1))
    return jax.tree.map(lambda x: x + 0.2 * jax.random.normal(jax.random.key(x.size), x.shape), lora)


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(0, CONFIG.vocab_size, length).tolist() for length in LENGTHS]


def make_engine(mesh=None, **options):
    return Engine(
        CONFIG, mesh, **{"max_prompt_length": 20, "max_completion_length": T, "slots": 8, "chunk": 4, **options}
    )


@pytest.fixture(scope="module")
def engine():
    return make_engine()


def samples_of(rollouts):
    """(prompt, sample, completion, logprobs) of every sample."""
    for prompt, sample in np.ndindex(rollouts.lengths.shape):
        length = rollouts.lengths[prompt, sample]
        yield prompt, sample, rollouts.tokens[prompt, sample, :length], rollouts.logprobs[prompt, sample, :length]


@functools.partial(jax.jit, static_argnames="config")
def all_logits(params, config, tokens, segments, lora):
    return forward(params, config, tokens, segment_ids=segments, lora=lora)


def full_logits(params, prompts, rollouts, lora=None, config=CONFIG):
    """For each sample the logits [length, V] that the plain forward pass gives for its tokens."""
    rows = [np.concatenate([prompts[prompt], completion]) for prompt, _, completion, _ in samples_of(rollouts)]
    tokens = np.zeros((len(rows), 40), np.int32)
    segments = np.zeros_like(tokens)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)], segments[row, : len(ids)] = ids, 1
    logits = np.asarray(all_logits(params, config, tokens, segments, lora))
    for row, (prompt, _, completion, _) in enumerate(samples_of(rollouts)):
        start = len(prompts[prompt]) - 1
        yield logits[row, start : start + len(completion)]


def assert_matches_forward(params, prompts, rollouts, sampling, lora=None):
    for logits, (_, _, completion, logprobs) in zip(
        full_logits(params, prompts, rollouts, lora), samples_of(rollouts), strict=True
    ):
        expected = jax.nn.log_softmax(logits / (sampling.temperature or 1.0))
        np.testing.assert_allclose(logprobs, expected[np.arange(len(completion)), completion], atol=1e-4)
        if sampling.temperature == 0:
            assert completion.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0, 0.7])
@pytest.mark.parametrize("with_lora", [False, True])
def test_decoding_equals_the_forward_pass(engine, params, prompts, adapter, temperature, with_lora):
    lora = adapter if with_lora else None
    sampling = Sampling(temperature=temperature)
    rollouts = engine.generate(params, prompts, 3, sampling, jax.random.key(2), lora)
    assert rollouts.tokens.shape == (6, 3, T) and rollouts.tokens.dtype == np.int32
    assert (rollouts.lengths == T).all()
    assert_matches_forward(params, prompts, rollouts, sampling, lora)
    if temperature == 0:
        assert (rollouts.tokens == rollouts.tokens[:, :1]).all()


@pytest.mark.parametrize(("data", "fsdp", "tensor"), [(1, 8, 1), (2, 2, 2)])
def test_under_a_mesh(engine, params, prompts, adapter, data, fsdp, tensor):
    mesh = make_mesh(data, fsdp, tensor)
    with use_mesh(mesh):
        sharded = init_params(CONFIG, jax.random.key(0), mesh)
    spread = make_engine(mesh, slots=3)  # rounded up to the mesh
    for temperature, lora in ((0, None), (1.0, adapter)):
        sampling = Sampling(temperature=temperature)
        rollouts = spread.generate(sharded, prompts, 2, sampling, jax.random.key(2), lora)
        alone = engine.generate(params, prompts, 2, sampling, jax.random.key(2), lora)
        assert (rollouts.tokens == alone.tokens).all()
        np.testing.assert_allclose(rollouts.logprobs, alone.logprobs, atol=1e-4)
    compiled = spread.compilations
    spread.generate(sharded, prompts, 2, sampling, jax.random.key(3), lora)
    assert spread.compilations == compiled


def test_keys(engine, params, prompts):
    sampling = Sampling()
    first = engine.generate(params, prompts, 2, sampling, jax.random.key(5))
    again = engine.generate(params, prompts, 2, sampling, jax.random.key(5))
    other = engine.generate(params, prompts, 2, sampling, jax.random.key(6))
    assert (first.tokens == again.tokens).all() and (first.logprobs == again.logprobs).all()
    assert (first.tokens != other.tokens).mean() > 0.5
    assert (first.tokens[:, 0] != first.tokens[:, 1]).mean() > 0.5
    twins = engine.generate(params, [prompts[0]] * 2, 2, sampling, jax.random.key(5))
    assert (twins.tokens[0] != twins.tokens[1]).any()


def test_noise_is_keyed_by_the_ids_that_are_given(engine, params, prompts):
    sampling, key = Sampling(), jax.random.key(3)
    whole = engine.generate(params, prompts, 1, sampling, key)
    later = list(engine.stream(params, prompts[2:], 1, sampling, key, noise_ids=range(2, len(prompts))))
    for group in later:
        assert np.array_equal(group.tokens, whole.tokens[group.index + 2])
    with pytest.raises(InputError, match="noise_ids: 1 for 6 prompts"):
        engine.stream(params, prompts, 1, sampling, key, noise_ids=[0])


def test_results_do_not_depend_on_slots_chunks_or_neighbours(engine, params, prompts):
    sampling = Sampling(stop_ids=tuple(range(0, 40, 5)))
    expected = engine.generate(params, prompts, 3, sampling, jax.random.key(7))
    assert len({*expected.lengths.ravel().tolist()}) > 2
    for options in ({"slots": 1, "chunk": 5}, {"slots": 5}, {"slots": None, "chunk": 64}):
        rollouts = make_engine(**options).generate(params, prompts, 3, sampling, jax.random.key(7))
        assert (rollouts.tokens == expected.tokens).all(), options
        assert (rollouts.lengths == expected.lengths).all()
        np.testing.assert_allclose(rollouts.logprobs, expected.logprobs, atol=1e-5)
    fewer = engine.generate(params, prompts[:2], 2, sampling, jax.random.key(7))
    assert (fewer.tokens == expected.tokens[:2, :2]).all()
    np.testing.assert_allclose(fewer.logprobs, expected.logprobs[:2, :2], atol=1e-5)
    assert_matches_forward(params, prompts, expected, sampling)  # in left-over slots, too


def calls_of(engine, monkeypatch):
    """The programs that an engine runs, in order."""
    names, original = [], Engine._call

    def call(self, name, *args, **kwargs):
        names.append(name)
        return original(self, name, *args, **kwargs)

    monkeypatch.setattr(Engine, "_call", call)
    return names


def test_limits_of_single_samples_with_blocks_that_share_and_shrink(engine, params, prompts, monkeypatch):
    """Free blocks take over waiting samples, and few samples go on in few rows: nobody's tokens change."""
    plain = engine.generate(params, prompts, 4, Sampling(), jax.random.key(7))
    names = calls_of(engine, monkeypatch)
    limits = np.random.default_rng(1).integers(1, T + 1, (6, 4))
    limits[0], limits[1:4] = T, 1  # the first prompt's samples wait while others' blocks are free already
    monkeypatch.setattr("thoth_jax.rollout.engine._LEAST_ROWS", 8)
    other = make_engine(slots=16, chunk=2)
    groups = list(other.stream(params, prompts, 4, Sampling(), jax.random.key(7), limits=limits))
    assert {"copy_prompts", "taken"} <= set(names)
    assert names.count("read_prompts") <= 3 and sorted(group.index for group in groups) == list(range(6))
    for group in groups:
        assert group.lengths.tolist() == limits[group.index].tolist()
        for sample, length in enumerate(group.lengths):
            assert (group.tokens[sample, :length] == plain.tokens[group.index, sample, :length]).all()
            assert not group.tokens[sample, length:].any()
            np.testing.assert_allclose(
                group.logprobs[sample, :length], plain.logprobs[group.index, sample, :length], atol=1e-5
            )
    with pytest.raises(InputError, match=r"limits: shape \(1, 4\), needs one for each of \(6, 4\)"):
        engine.stream(params, prompts, 4, Sampling(), jax.random.key(7), limits=limits[:1])
    with pytest.raises(InputError, match=f"limits: must be in 1..{T}"):
        engine.stream(params, prompts, 4, Sampling(), jax.random.key(7), limits=limits * 0)


def test_a_ring_that_grows_and_goes_round(params, prompts, monkeypatch):
    long = {"max_completion_length": 40, "max_prompt_length": 20}
    limits = np.random.default_rng(2).integers(1, 41, (6, 3))
    expected = Engine(CONFIG, None, **long).generate(params, prompts, 3, Sampling(), jax.random.key(4))
    names = calls_of(None, monkeypatch)
    monkeypatch.setattr("thoth_jax.rollout.engine._SMALLEST_RING", 1)
    small = Engine(CONFIG, None, **long, slots=4, chunk=5)
    for group in small.stream(params, prompts, 3, Sampling(), jax.random.key(4), limits=limits):
        for sample, length in enumerate(limits[group.index]):
            assert (group.tokens[sample, :length] == expected.tokens[group.index, sample, :length]).all()
            np.testing.assert_allclose(
                group.logprobs[sample, :length], expected.logprobs[group.index, sample, :length], atol=1e-5
            )
    assert names.count("grown") == 2 * (2 * CONFIG.num_layers + 1)  # 16, 32 and 48 columns
    assert names.count("decode_chunk") * 5 > 96  # more steps than columns


def test_what_is_under_way_can_be_watched(engine, params, prompts):
    seen = []
    whole = engine.generate(params, prompts, 2, Sampling(), jax.random.key(5))
    for _ in engine.stream(params, prompts, 2, Sampling(), jax.random.key(5), watch=lambda *found: seen.append(found)):
        pass
    assert {len(tokens) for _, _, tokens in seen} >= {4, 8}
    for prompt, sample, tokens in seen:
        assert (tokens == whole.tokens[prompt, sample, : len(tokens)]).all()


def test_stop_tokens_lengths_and_reasons(engine, params, prompts):
    plain = engine.generate(params, prompts, 3, Sampling(), jax.random.key(8))
    stop_ids = (3, 40, 41)
    rollouts = engine.generate(params, prompts, 3, Sampling(stop_ids=stop_ids), jax.random.key(8))
    seen = set()
    for prompt, sample, completion, _ in samples_of(plain):
        where = np.flatnonzero(np.isin(completion, stop_ids))
        length = where[0] + 1 if where.size else T
        reason = "stop" if where.size else "length"
        seen.add(reason)
        assert rollouts.lengths[prompt, sample] == length
        assert rollouts.finish_reason[prompt][sample] == reason
        assert (rollouts.tokens[prompt, sample, :length] == completion[:length]).all()
        assert not rollouts.tokens[prompt, sample, length:].any()
        assert not rollouts.logprobs[prompt, sample, length:].any()
    assert seen == {"stop", "length"}


def test_a_stop_token_at_the_last_place_is_a_stop(engine, params, prompts):
    plain = engine.generate(params, prompts[:1], 1, Sampling(), jax.random.key(9))
    last = int(plain.tokens[0, 0, 0])
    rollouts = engine.generate(params, prompts[:1], 1, Sampling(max_tokens=1, stop_ids=(last,)), jax.random.key(9))
    assert rollouts.finish_reason == (("stop",),) and rollouts.lengths.tolist() == [[1]]
    assert rollouts.tokens.shape == (1, 1, T)


def test_groups_are_streamed_as_they_finish(engine, params, prompts):
    sampling = Sampling(stop_ids=(3, 40, 41, 42, 43, 44))
    whole = engine.generate(params, prompts, 2, sampling, jax.random.key(10))
    polls = []

    def never():
        polls.append(len(seen))
        return False

    seen = []
    for group in engine.stream(params, prompts, 2, sampling, jax.random.key(10), should_stop=never):
        seen.append(group.index)
        assert (group.tokens == whole.tokens[group.index]).all()
        assert group.finish_reason == whole.finish_reason[group.index]
    assert sorted(seen) == list(range(len(prompts)))
    assert len(set(polls)) > 2  # groups came between chunks, not all at the end


def test_should_stop_ends_the_iterator(engine, params, prompts):
    calls = []

    def after_five():
        calls.append(1)
        return len(calls) > 5

    groups = list(engine.stream(params, prompts, 2, Sampling(), jax.random.key(0), should_stop=after_five))
    assert 0 < len(groups) < len(prompts)
    assert all((group.lengths == T).all() for group in groups)
    assert list(engine.stream(params, prompts, 2, Sampling(), jax.random.key(0), should_stop=lambda: True)) == []


def test_changed_weights_change_the_next_rollout(engine, params, prompts, adapter):
    sampling = Sampling(temperature=0)
    first = engine.generate(params, prompts, 1, sampling, jax.random.key(0))
    changed = {**params, "embed": params["embed"].at[:, 0].add(0.5)}
    assert (engine.generate(changed, prompts, 1, sampling, jax.random.key(0)).tokens != first.tokens).any()
    first = engine.generate(params, prompts, 1, sampling, jax.random.key(0), adapter)
    layers = {**adapter.layers, "v_proj": jax.tree.map(lambda x: x.at[0].multiply(3.0), adapter.layers["v_proj"])}
    again = engine.generate(params, prompts, 1, sampling, jax.random.key(0), adapter.replace(layers=layers))
    assert (again.logprobs != first.logprobs).any()
    assert (again.tokens != first.tokens).any()


def test_padded_vocabulary_is_never_sampled(params, prompts):
    config = CONFIG.replace(valid_vocab_size=10)
    engine = Engine(config, None, max_prompt_length=20, max_completion_length=T)
    rollouts = engine.generate(params, prompts, 4, Sampling(temperature=2.0), jax.random.key(0))
    assert rollouts.tokens.max() == 9
    for logits, (_, _, completion, logprobs) in zip(
        full_logits(params, prompts, rollouts, config=config), samples_of(rollouts), strict=True
    ):
        expected = jax.nn.log_softmax(logits[:, :10] / 2.0)
        np.testing.assert_allclose(logprobs, expected[np.arange(len(completion)), completion], atol=1e-4)


def test_filters_reach_the_engine(engine, params, prompts):
    greedy = engine.generate(params, prompts, 1, Sampling(temperature=0), jax.random.key(0))
    top_one = engine.generate(params, prompts, 1, Sampling(top_k=1), jax.random.key(0))
    assert (greedy.tokens == top_one.tokens).all()
    rollouts = engine.generate(params, prompts, 2, Sampling(top_k=3), jax.random.key(0))
    for logits, (_, _, completion, _) in zip(full_logits(params, prompts, rollouts), samples_of(rollouts), strict=True):
        kth = np.sort(logits, axis=-1)[:, -3]
        assert (logits[np.arange(len(completion)), completion] >= kth - 1e-4).all()


def test_bfloat16(prompts):
    config = CONFIG.replace(dtype="bfloat16")
    params = init_params(config, jax.random.key(0))
    engine = Engine(config, None, max_prompt_length=20, max_completion_length=T)
    rollouts = engine.generate(params, prompts, 2, Sampling(), jax.random.key(0))
    for logits, (_, _, completion, logprobs) in zip(
        full_logits(params, prompts, rollouts, config=config), samples_of(rollouts), strict=True
    ):
        expected = jax.nn.log_softmax(logits)[np.arange(len(completion)), completion]
        assert np.abs(logprobs - expected).mean() < 0.05
    assert rollouts.logprobs.dtype == np.float32


def test_compilations_are_bounded(params):
    config = CONFIG.replace(rope_theta=5000.0)  # nobody else's, so that no program exists yet
    engine = Engine(config, None, max_prompt_length=40, max_completion_length=T, slots=8, chunk=4)
    rng = np.random.default_rng(1)

    def lengths(*numbers):
        return [rng.integers(0, CONFIG.vocab_size, number).tolist() for number in numbers]

    engine.generate(params, lengths(10, 16, 16, 3), 2, Sampling(), jax.random.key(0))
    compiled = engine.compilations
    assert 0 < compiled <= 7
    engine.generate(params, lengths(7, 9, 1, 16), 2, Sampling(max_tokens=5), jax.random.key(1))
    assert engine.compilations == compiled
    engine.generate(params, lengths(39, 17, 40, 33), 2, Sampling(), jax.random.key(1))
    assert engine.compilations <= compiled + 5


def test_buckets():
    assert [bucket(length, 100) for length in (1, 16, 17, 32, 33, 64, 65, 100)] == [16, 16, 32, 32, 64, 64, 112, 112]


def test_an_empty_list_works(engine, params):
    assert list(engine.stream(params, [], 4, Sampling(), jax.random.key(0))) == []
    rollouts = engine.generate(params, [], 4, Sampling(), jax.random.key(0))
    assert rollouts.tokens.shape == (0, 4, T) and rollouts.lengths.shape == (0, 4)
    assert rollouts.finish_reason == ()


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1], [1] * 21], {}, "prompt 1: 21 tokens, longer than max_prompt_length 20"),
        ([[1], []], {}, "prompt 1: empty"),
        ([[64]], {}, "prompt 0: token ids must be in 0..63"),
        ([[1]], {"group_size": 0}, "group_size=0"),
        ([[1]], {"sampling": Sampling(max_tokens=13)}, "sampling.max_tokens=13"),
    ],
)
def test_bad_input_is_named_at_the_call(engine, params, prompts, options, message):
    options = {"group_size": 1, "sampling": Sampling(), "key": jax.random.key(0), **options}
    with pytest.raises(InputError) as caught:
        engine.stream(params, prompts, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"max_completion_length": 0}, "max_completion_length=0"),
        ({"max_prompt_length": 120}, "exceed the model's 128 positions"),
    ],
)
def test_bad_sizes_are_named(options, message):
    with pytest.raises(InputError, match=message):
        make_engine(**options)


def test_parameters_are_left_as_they_were(engine, params, prompts):
    before = jax.tree.map(jnp.copy, params)
    engine.generate(params, prompts[:2], 2, Sampling(), jax.random.key(0))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), before, params)))
