"""The device side of the engine: its state, and the jitted steps that fill and advance it.

B rows (slots) decode one sample each. They lie in M blocks of W rows, and the rows of a block work on samples of one
prompt: its keys and values are stored once per block and read by all of them. What a row has sampled itself lies in
its part of a ring of R columns. All rows write the same column in a step, whatever their own positions are: rotary
positions are in the keys already, so the order of columns does not matter, and `seen` says which of them are a row's.
"""

import flax.struct
import jax
import jax.numpy as jnp

from thoth_jax.models import attention as attn
from thoth_jax.models.decode import Cache, prefill, unstack
from thoth_jax.models.qwen import Params, QwenConfig, block, declare, embed, join, logits_of, rms_norm
from thoth_jax.models.rope import rope_angles
from thoth_jax.rollout.sampling import Sampling, sample
from thoth_jax.sharding import constrain

# Both products of a decode step read keys and values as they lie in memory.
_KEY_AXES = ("batch", "kv_heads", "head_dim", "length")
_VALUE_AXES = ("batch", "kv_heads", "length", "head_dim")


@flax.struct.dataclass
class Slots:
    """State of B = M W rows. Keys and values are tuples of one array per layer.

    prompt_keys, prompt_values: [M, K, H, S] and [M, K, S, H], of the prompts without their last tokens.
    prompt_length: [M] columns of them that are a prompt's.
    keys, values: [B, K, H, R] and [B, K, R, H], the ring.
    seen:      [B, R] bool, the columns that the row's own tokens lie in.
    cursor:    [] the column that the next step writes.
    token:     [B] the row's newest token, whose keys and values are not stored yet.
    remaining: [B] tokens that may still be sampled; 0: nothing to do.
    count:     [B] tokens sampled so far.
    prompt, sample: [B] noise id of the prompt and number of the sample that the row works on; its noise depends on
        these and `count` only.
    """

    prompt_keys: tuple[jax.Array, ...]
    prompt_values: tuple[jax.Array, ...]
    prompt_length: jax.Array
    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    seen: jax.Array
    cursor: jax.Array
    token: jax.Array
    remaining: jax.Array
    count: jax.Array
    prompt: jax.Array
    sample: jax.Array


_ROWS = ("token", "remaining", "count", "prompt", "sample")


def _placed(slots: Slots) -> Slots:
    """The same state, split over the mesh by blocks (and by K/V heads)."""

    def layers(arrays, axes):
        return tuple(constrain(x, axes) for x in arrays)

    return slots.replace(
        prompt_keys=layers(slots.prompt_keys, _KEY_AXES),
        prompt_values=layers(slots.prompt_values, _VALUE_AXES),
        prompt_length=constrain(slots.prompt_length, ("batch",)),
        keys=layers(slots.keys, _KEY_AXES),
        values=layers(slots.values, _VALUE_AXES),
        seen=constrain(slots.seen, ("batch", "length")),
        **{name: constrain(getattr(slots, name), ("batch",)) for name in _ROWS},
    )


def empty_slots(config: QwenConfig, blocks: int, width: int, prompt_room: int, ring: int) -> Slots:
    """M idle blocks of W rows, for prompts of up to `prompt_room` + 1 tokens, with a ring of `ring` columns."""
    c, batch = config, blocks * width

    def layers(*shape):
        return tuple(jnp.zeros(shape, c.dtype) for _ in range(c.num_layers))

    return _placed(
        Slots(
            prompt_keys=layers(blocks, c.num_kv_heads, c.head_dim, prompt_room),
            prompt_values=layers(blocks, c.num_kv_heads, prompt_room, c.head_dim),
            prompt_length=jnp.zeros(blocks, jnp.int32),
            keys=layers(batch, c.num_kv_heads, c.head_dim, ring),
            values=layers(batch, c.num_kv_heads, ring, c.head_dim),
            seen=jnp.zeros((batch, ring), bool),
            cursor=jnp.int32(0),
            **{name: jnp.zeros(batch, jnp.int32) for name in _ROWS},
        )
    )


# The state changes its shape one array at a time, and each old array goes before the next one is made: the whole state
# may fill most of a device's memory.


def grown(x: jax.Array, cursor: jax.Array, ring: int, kind: str) -> jax.Array:
    """One array of `kind` "keys", "values" or "seen" with a ring of `ring` columns.

    What is there comes first, in the order of its writing; the next column to write is then the old length.
    """
    axes, axis = {"keys": (_KEY_AXES, 3), "values": (_VALUE_AXES, 2), "seen": (("batch", "length"), 1)}[kind]
    room = ring - x.shape[axis]
    x = jnp.roll(x, -cursor, axis)  # the column that would be written next is the oldest
    return constrain(jnp.pad(x, [(0, room if at == axis else 0) for at in range(x.ndim)]), axes)


def taken(x: jax.Array, sources: jax.Array) -> jax.Array:
    """Rows or blocks of one array in a new order: x[sources]."""
    return constrain(x[sources], ("batch",) + (None,) * (x.ndim - 1))


def only(remaining: jax.Array, live: jax.Array) -> jax.Array:
    """`remaining`, 0 for rows that are not live."""
    return constrain(jnp.where(live, remaining, 0), ("batch",))


def lay_out(params: Params, lora, config: QwenConfig):
    """Parameters and adapter as decoding wants them: in the compute dtype, gathered over fsdp, layers unstacked.

    Norm weights keep their dtype (they are computed in float32). A split over the tensor axis stays; without one, maps
    of the same input become one matrix.
    """

    def one(weight, x):
        if weight.axes[-1] != "norm":
            x = x.astype(config.dtype)
        return constrain(x, ["features" if axis == "embed" else axis for axis in weight.axes])

    params = jax.tree.map(one, declare(config), dict(params))
    if lora is not None:
        lora = unstack(jax.tree.map(lambda x: constrain(x, (None,) * x.ndim), lora))
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["tensor"] == 1:
        params = {**params, "layers": join(params["layers"])}
    return unstack(params), lora


def read_prompts(params: Params, lora, tokens: jax.Array, lengths: jax.Array, config: QwenConfig) -> Cache:
    """Keys and values [L, n, S, K, H] of n right-padded prompts [n, S]; each prompt is read once, whatever G is."""
    return prefill(params, config, tokens, lengths, lora)[1]


def place_prompts(slots: Slots, prompts: Cache, blocks: jax.Array, lengths: jax.Array) -> Slots:
    """Give blocks new prompts.

    Args:
      prompts: n of them, from `read_prompts`.
      blocks: [n] block of each; a number beyond the last one writes nothing (padding of n), all are different.
      lengths: [n] their tokens, without the last one, which the first decode step reads: so the first sampled token
        needs no step of its own kind, and no prompt the head.
    """
    length = min(prompts.k.shape[2], slots.prompt_keys[0].shape[3])

    def fill(old, new, layout):
        new = jnp.transpose(new[:, :length], layout).astype(old.dtype)
        at = old.at[blocks, :, :, :length] if layout == (0, 2, 3, 1) else old.at[blocks, :, :length]
        return at.set(new, mode="drop", unique_indices=True)

    return _placed(
        slots.replace(
            prompt_keys=tuple(map(fill, slots.prompt_keys, prompts.k, [(0, 2, 3, 1)] * len(prompts.k))),
            prompt_values=tuple(map(fill, slots.prompt_values, prompts.v, [(0, 2, 1, 3)] * len(prompts.v))),
            prompt_length=slots.prompt_length.at[blocks].set(lengths, mode="drop", unique_indices=True),
        )
    )


def copy_prompts(slots: Slots, sources: jax.Array, blocks: jax.Array) -> Slots:
    """Give blocks the prompts of other blocks, so that their rows help with its samples.

    Args:
      sources, blocks: [n]; a block beyond the last one writes nothing (padding of n), all `blocks` are different.
    """

    def put(x):
        return x.at[blocks].set(x[sources], mode="drop", unique_indices=True)

    return _placed(
        slots.replace(
            prompt_keys=tuple(map(put, slots.prompt_keys)),
            prompt_values=tuple(map(put, slots.prompt_values)),
            prompt_length=put(slots.prompt_length),
        )
    )


def start_rows(slots: Slots, rows: jax.Array, token, remaining, prompt, sample) -> Slots:
    """Give m rows new samples to work on.

    Args:
      rows: [m] slot of each; a number beyond the last slot writes nothing (padding of m), all are different.
      token: [m] the last token of the prompt, which lies in the row's block.
      remaining, prompt, sample: [m] as in `Slots`.
    """

    def put(old, new):
        return old.at[rows].set(new, mode="drop", unique_indices=True)

    return _placed(
        slots.replace(
            seen=put(slots.seen, False),
            token=put(slots.token, token),
            remaining=put(slots.remaining, remaining),
            count=put(slots.count, 0),
            prompt=put(slots.prompt, prompt),
            sample=put(slots.sample, sample),
        )
    )


def decode(params: Params, lora, slots: Slots, rope, config: QwenConfig):
    """Feed each row's newest token.

    Args:
      params, lora: from `lay_out`.
      rope: (cos, sin) [B, 1, H/2] of the newest tokens' positions.

    Returns:
      (float32 logits [B, V] of the next token, keys, values, seen). Idle rows get meaningless logits.
    """
    c, (B, R) = config, slots.seen.shape
    K, H = c.num_kv_heads, c.head_dim
    live = slots.remaining > 0
    column = slots.cursor % R
    in_prompt = jnp.arange(slots.prompt_keys[0].shape[3])[None] < slots.prompt_length[:, None]
    seen = jax.lax.dynamic_update_slice(slots.seen, live[:, None], (0, column))
    keys, values = [], []
    x = embed(params, c, slots.token[:, None], lora)
    adapters = ({},) * c.num_layers if lora is None else lora.layers
    for layer, weights in enumerate(params["layers"]):

        def attend(q, k, v, layer=layer):
            key = jax.lax.dynamic_update_slice(slots.keys[layer], k[:, 0, :, :, None], (0, 0, 0, column))
            value = jax.lax.dynamic_update_slice(slots.values[layer], v[:, 0, :, None], (0, 0, column, 0))
            keys.append(constrain(key, _KEY_AXES))
            values.append(constrain(value, _VALUE_AXES))
            shared = slots.prompt_keys[layer], slots.prompt_values[layer], in_prompt
            return _attention(q[:, 0].reshape(B, K, -1, H), shared, (keys[-1], values[-1], seen)), None

        x, _ = block(x, weights, adapters[layer], rope, attend, c, 1.0 if lora is None else lora.scale)
    logits = logits_of(params, c, rms_norm(x[:, 0], params["norm"], c.rms_norm_eps), lora)
    return constrain(logits, ("batch", "vocab")), tuple(keys), tuple(values), seen


def _attention(q, shared, own):
    """One query token per row, over its block's prompt and its own tokens: q [B, K, G, H] -> [B, 1, N, H].

    Args:
      shared: (keys [M, K, H, S], values [M, K, S, H], seen [M, S]): the W rows of a block are one matrix of W G
        queries.
      own: (keys [B, K, H, R], values [B, K, R, H], seen [B, R]).
    """
    B, K, G, H = q.shape
    M = shared[0].shape[0]
    blocked = q.reshape(M, -1, K, G, H).swapaxes(1, 2).reshape(M, K, -1, H)

    def by_row(x):
        """[M, K, W G, n] as [B, K, G, n]."""
        return x.reshape(M, K, -1, G, x.shape[-1]).swapaxes(1, 2).reshape(B, K, G, -1)

    def scores(q, keys, seen):
        out = jnp.einsum("BKGH,BKHS->BKGS", q, keys, preferred_element_type=jnp.float32) * H**-0.5
        return jnp.where(seen[:, None, None], out, attn.MASKED)

    def mixed(weights, values):
        return jnp.einsum("BKGS,BKSH->BKGH", weights.astype(q.dtype), values, preferred_element_type=jnp.float32)

    first, second = scores(blocked, shared[0], shared[2]), scores(q, own[0], own[2])
    # A row has always seen its newest token, so the second maximum is a number and masked scores vanish beside it.
    top_first, top_second = first.max(axis=-1, keepdims=True), second.max(axis=-1, keepdims=True)
    weights_first, weights_second = jnp.exp(first - top_first), jnp.exp(second - top_second)
    top = jnp.maximum(by_row(top_first), top_second)
    scale_first, scale_second = jnp.exp(by_row(top_first) - top), jnp.exp(top_second - top)
    total = scale_first * by_row(weights_first.sum(axis=-1, keepdims=True))
    total += scale_second * weights_second.sum(axis=-1, keepdims=True)
    out = scale_first * by_row(mixed(weights_first, shared[1])) + scale_second * mixed(weights_second, own[1])
    return (out / total).reshape(B, 1, K * G, H).astype(q.dtype)


def decode_chunk(
    params: Params, lora, slots: Slots, key: jax.Array, config: QwenConfig, sampling: Sampling, steps: int
):
    """Up to `steps` tokens for every working row; ends early when none is left working.

    Every working row's tokens must fit the ring together with those of this chunk.

    Returns:
      (slots, tokens [steps, B], logprobs [steps, B]). Of a row's column the first (new count - old count) are real.
    """
    B = slots.token.shape[0]
    stop_ids = jnp.asarray(sampling.stop_ids, jnp.int32)

    def own_key(prompt, sample):
        return jax.random.fold_in(jax.random.fold_in(key, prompt), sample)

    row_keys = jax.vmap(own_key)(slots.prompt, slots.sample)
    # The angles of all steps, before the loop: inside it every fusion that turns a query or a key would compute them
    # again. A prompt's last token has the position prompt_length, and a working row advances by one a step.
    position = jnp.repeat(slots.prompt_length, B // slots.prompt_length.shape[0]) + slots.count
    position = position[None, :, None] + jnp.arange(steps)[:, None, None]
    ropes = rope_angles(position, config.head_dim, config.rope_theta, config.yarn)

    def working(carry):
        step, slots, _, _ = carry
        return (step < steps) & jnp.any(slots.remaining > 0)

    def advance(carry):
        step, slots, tokens, logprobs = carry
        rope = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, step, keepdims=False), ropes)
        logits, keys, values, seen = decode(params, lora, slots, rope, config)
        token, logprob = sample(logits, jax.vmap(jax.random.fold_in)(row_keys, slots.count), sampling)
        live = slots.remaining > 0
        stopped = jnp.any(token[:, None] == stop_ids, axis=1)
        one = live.astype(jnp.int32)
        slots = slots.replace(
            keys=keys,
            values=values,
            seen=seen,
            cursor=(slots.cursor + 1) % seen.shape[1],
            token=jnp.where(live, token, slots.token),
            remaining=jnp.where(stopped, 0, slots.remaining - one),
            count=slots.count + one,
        )
        return step + 1, _placed(slots), tokens.at[step].set(token), logprobs.at[step].set(logprob)

    empty = jnp.zeros((steps, B), jnp.int32), jnp.zeros((steps, B), jnp.float32)
    _, slots, tokens, logprobs = jax.lax.while_loop(working, advance, (jnp.int32(0), slots, *empty))
    return slots, tokens, logprobs
