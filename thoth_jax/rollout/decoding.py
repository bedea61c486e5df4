"""The device side of the engine: its state, and the jitted steps that fill and advance it.

Rows are slots: each decodes one sample and is given the next one when that is done. Keys are stored [B, K, H, S] and
values [B, K, S, H], so that both products of a decode step read the cache as it lies in memory.
"""

import flax.struct
import jax
import jax.numpy as jnp

from thoth_jax.models import attention as attn
from thoth_jax.models.decode import Cache, prefill, unstack
from thoth_jax.models.qwen import Params, QwenConfig, block, declare, embed, logits_of, rms_norm
from thoth_jax.models.rope import rope_angles
from thoth_jax.rollout.sampling import Sampling, sample
from thoth_jax.sharding import constrain

_KEY_AXES = ("batch", "kv_heads", "head_dim", "length")
_VALUE_AXES = ("batch", "kv_heads", "length", "head_dim")


@flax.struct.dataclass
class Slots:
    """State of B rows.

    keys, values: one array per layer, [B, K, H, S] and [B, K, S, H].
    token:     [B] the row's newest token, whose keys and values are not in the cache yet.
    position:  [B] its position.
    remaining: [B] tokens that may still be sampled; 0: nothing to do.
    count:     [B] tokens sampled so far.
    prompt, sample: [B] noise id of the prompt and number of the sample that the row works on; its noise depends on
        these and `count` only.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    token: jax.Array
    position: jax.Array
    remaining: jax.Array
    count: jax.Array
    prompt: jax.Array
    sample: jax.Array


def _placed(slots: Slots) -> Slots:
    """The same state, split over the mesh by rows (and by K/V heads)."""
    rows = {
        name: constrain(getattr(slots, name), ("batch",))
        for name in ("token", "position", "remaining", "count", "prompt", "sample")
    }
    return slots.replace(
        keys=tuple(constrain(x, _KEY_AXES) for x in slots.keys),
        values=tuple(constrain(x, _VALUE_AXES) for x in slots.values),
        **rows,
    )


def empty_slots(config: QwenConfig, batch: int, length: int) -> Slots:
    """B idle rows with room for `length` positions each."""
    c = config
    keys = tuple(jnp.zeros((batch, c.num_kv_heads, c.head_dim, length), c.dtype) for _ in range(c.num_layers))
    values = tuple(jnp.zeros((batch, c.num_kv_heads, length, c.head_dim), c.dtype) for _ in range(c.num_layers))
    return _placed(Slots(keys, values, *(jnp.zeros(batch, jnp.int32) for _ in range(6))))


def lay_out(params: Params, lora, config: QwenConfig):
    """Parameters and adapter as decoding wants them: in the compute dtype, gathered over fsdp, layers unstacked.

    Norm weights keep their dtype (they are computed in float32). Split over the tensor axis stays.
    """

    def one(weight, x):
        if weight.axes[-1] != "norm":
            x = x.astype(config.dtype)
        return constrain(x, ["features" if axis == "embed" else axis for axis in weight.axes])

    params = jax.tree.map(one, declare(config), dict(params))
    if lora is not None:
        lora = unstack(jax.tree.map(lambda x: constrain(x, (None,) * x.ndim), lora))
    return unstack(params), lora


def read_prompts(params: Params, lora, tokens: jax.Array, lengths: jax.Array, config: QwenConfig) -> Cache:
    """Keys and values [L, n, S, K, H] of n right-padded prompts [n, S]; each prompt is read once, whatever G is."""
    return prefill(params, config, tokens, lengths, lora)[1]


def admit(slots: Slots, prompts: Cache, rows: jax.Array, source: jax.Array, token, position, remaining, prompt, sample):
    """Give m rows new samples to work on.

    Args:
      prompts: from `read_prompts`.
      rows: [m] slot of each; a number beyond the last slot writes nothing (padding of m).
      source: [m] index into `prompts`.
      token, position: [m] the prompt's last token and its position; the first decode step reads it again, so that
        the first sampled token needs no step of its own kind.
      remaining, prompt, sample: [m] as in `Slots`.
    """
    length = prompts.k.shape[2]

    def fill(old, new, layout):
        new = jnp.transpose(new[source], layout)
        at = old.at[rows, :, :, :length] if layout == (0, 2, 3, 1) else old.at[rows, :, :length, :]
        return at.set(new.astype(old.dtype), mode="drop", unique_indices=True)

    def put(old, new):
        return old.at[rows].set(new, mode="drop", unique_indices=True)

    return _placed(
        slots.replace(
            keys=tuple(fill(old, new, (0, 2, 3, 1)) for old, new in zip(slots.keys, prompts.k, strict=True)),
            values=tuple(fill(old, new, (0, 2, 1, 3)) for old, new in zip(slots.values, prompts.v, strict=True)),
            token=put(slots.token, token),
            position=put(slots.position, position),
            remaining=put(slots.remaining, remaining),
            count=put(slots.count, 0),
            prompt=put(slots.prompt, prompt),
            sample=put(slots.sample, sample),
        )
    )


def decode(params: Params, lora, slots: Slots, config: QwenConfig, window: int):
    """Feed each row's newest token.

    Args:
      params, lora: from `lay_out`.
      window: cache positions that are looked at; all working rows are below it.

    Returns:
      (float32 logits [B, V] of the next token, keys, values). Idle rows write nothing and get meaningless logits.
    """
    c, B = config, slots.token.shape[0]
    K, H = c.num_kv_heads, c.head_dim
    rows, heads = jnp.arange(B)[:, None], jnp.arange(K)[None]
    beyond = slots.values[0].shape[2]
    position = jnp.where(slots.remaining > 0, slots.position, beyond)
    at = position[:, None]
    rope = rope_angles(at, H, c.rope_theta, c.yarn)
    seen = jnp.arange(window)[None] <= at
    keys, values = [], []
    x = embed(params, c, slots.token[:, None], lora)
    adapters = ({},) * c.num_layers if lora is None else lora.layers
    for layer, weights in enumerate(params["layers"]):

        def attend(q, k, v, layer=layer):
            drop = {"mode": "drop", "unique_indices": True}
            key = constrain(slots.keys[layer].at[rows, heads, :, at].set(k[:, 0], **drop), _KEY_AXES)
            value = constrain(slots.values[layer].at[rows, heads, at].set(v[:, 0], **drop), _VALUE_AXES)
            keys.append(key)
            values.append(value)
            return _attention(q[:, 0].reshape(B, K, -1, H), key[..., :window], value[:, :, :window], seen), None

        x, _ = block(x, weights, adapters[layer], rope, attend, c, 1.0 if lora is None else lora.scale)
    logits = logits_of(params, c, rms_norm(x[:, 0], params["norm"], c.rms_norm_eps), lora)
    return constrain(logits, ("batch", "vocab")), tuple(keys), tuple(values)


def _attention(q, k, v, seen):
    """One query token per row: q [B, K, G, H], k [B, K, H, S], v [B, K, S, H], seen [B, S] -> [B, 1, N, H]."""
    B, K, G, H = q.shape
    scores = jnp.einsum("BKGH,BKHS->BKGS", q, k, preferred_element_type=jnp.float32) * H**-0.5
    scores = jnp.where(seen[:, None, None], scores, attn.MASKED)
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    out = jnp.einsum("BKGS,BKSH->BKGH", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return (out / weights.sum(axis=-1, keepdims=True)).reshape(B, 1, K * G, H).astype(q.dtype)


def decode_chunk(
    params: Params, lora, slots: Slots, key: jax.Array, config: QwenConfig, sampling: Sampling, steps: int, window: int
):
    """Up to `steps` tokens for every working row; ends early when none is left working.

    Returns:
      (slots, tokens [steps, B], logprobs [steps, B]). Of a row's column the first (new count - old count) are real.
    """
    B = slots.token.shape[0]
    stop_ids = jnp.asarray(sampling.stop_ids, jnp.int32)

    def own_key(prompt, sample):
        return jax.random.fold_in(jax.random.fold_in(key, prompt), sample)

    row_keys = jax.vmap(own_key)(slots.prompt, slots.sample)

    def working(carry):
        step, slots, _, _ = carry
        return (step < steps) & jnp.any(slots.remaining > 0)

    def advance(carry):
        step, slots, tokens, logprobs = carry
        logits, keys, values = decode(params, lora, slots, config, window)
        token, logprob = sample(logits, jax.vmap(jax.random.fold_in)(row_keys, slots.count), sampling)
        live = slots.remaining > 0
        stopped = jnp.any(token[:, None] == stop_ids, axis=1)
        one = live.astype(jnp.int32)
        slots = slots.replace(
            keys=keys,
            values=values,
            token=jnp.where(live, token, slots.token),
            position=slots.position + one,
            remaining=jnp.where(stopped, 0, slots.remaining - one),
            count=slots.count + one,
        )
        return step + 1, _placed(slots), tokens.at[step].set(token), logprobs.at[step].set(logprob)

    empty = jnp.zeros((steps, B), jnp.int32), jnp.zeros((steps, B), jnp.float32)
    _, slots, tokens, logprobs = jax.lax.while_loop(working, advance, (jnp.int32(0), slots, *empty))
    return slots, tokens, logprobs
